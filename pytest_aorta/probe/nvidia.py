"""NVIDIA's driver and devices, as nvidia-smi and the driver's files show them."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.tool import ToolFailed, ask

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

_TIMEOUT_SEC = 5.0

_BASIC = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "pci_bus_id",
    "driver_version": "driver_version",
    "memory.total": "memory_total_mib",
}
# Not every driver knows these, and one unknown field makes nvidia-smi refuse the whole query.
_MORE = {
    "compute_cap": "compute_capability",
    "vbios_version": "vbios_version",
    "mig.mode.current": "mig_mode",
    "ecc.mode.current": "ecc_mode",
}
_NO_DEVICES = "No devices were found"


def nvidia(guard: Guard, root: Path = Path("/")) -> Facts | None:
    """``driver_version`` and ``devices`` (memory in bytes); ``None`` on a machine without NVIDIA's driver."""
    proc = root / "proc/driver/nvidia"
    driver = proc.exists()
    smi = shutil.which("nvidia-smi")
    if smi is None and not driver:
        return None
    devices: list[Facts] | None = None
    if smi is not None:
        devices = guard.fact("accelerator.nvidia", lambda: _devices_of_smi(smi, expected=driver), None)
    if devices is None and not driver:
        # Many images have the tool on machines without a GPU.
        return None
    if devices is None:
        none: list[Facts] = []
        devices = guard.fact("accelerator.nvidia", lambda: _devices_of_driver(proc), none)
    version = next((device["driver_version"] for device in devices if device.get("driver_version")), None)
    if version is None:
        version = guard.fact("accelerator.nvidia", lambda: _driver_version(proc), None)
    return {"driver_version": version, "devices": devices}


def _devices_of_smi(smi: str, expected: bool) -> list[Facts] | None:
    """The devices; ``None`` when nvidia-smi fails and no driver is ``expected``: then there is no GPU."""
    for fields in ({**_BASIC, **_MORE}, _BASIC):
        query = ",".join(fields)
        answer = ask([smi, f"--query-gpu={query}", "--format=csv,noheader,nounits"], _TIMEOUT_SEC)
        if answer.returncode == 0:
            return [_device(dict(zip(fields.values(), row, strict=True))) for row in csv.reader(_lines(answer.stdout))]
        if _NO_DEVICES in answer.stdout + answer.stderr:
            return []
        if "not a valid field" not in answer.stdout + answer.stderr:
            break
    if expected:
        raise ToolFailed(answer.complaint())
    return None


def _lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.strip() and _NO_DEVICES not in line]


def _device(row: dict[str, str]) -> Facts:
    # "[N/A]", "[Not Supported]", "[Unknown Error]": nvidia-smi puts what it cannot query in brackets.
    device: Facts = {key: None if text.strip().startswith("[") else text.strip() for key, text in row.items()}
    mib = device.pop("memory_total_mib")
    device["memory_total_bytes"] = int(mib) * 2**20 if mib is not None else None
    if device["index"] is not None:
        device["index"] = int(device["index"])
    return device


def _devices_of_driver(proc: Path) -> list[Facts]:
    """The devices in /proc/driver/nvidia/gpus: fewer facts than nvidia-smi has, but there in every container."""
    names = {"Model": "name", "GPU UUID": "uuid", "Bus Location": "pci_bus_id", "Video BIOS": "vbios_version"}
    devices = []
    for file in sorted(proc.glob("gpus/*/information")):
        pairs = (line.partition(":") for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
        devices.append({names[key.strip()]: value.strip() for key, _, value in pairs if key.strip() in names})
    return devices


def _driver_version(proc: Path) -> str | None:
    file = proc / "version"
    if not file.exists():
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", file.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None
