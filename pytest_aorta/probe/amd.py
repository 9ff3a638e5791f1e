"""AMD's driver and devices, as the kernel's files show them; AMD's tools only where those show nothing.

Files come first because they answer at once and cannot hang, and because the tools talk to every GPU of the host.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.common.kfd_topology import kfd_nodes, kfd_properties
from pytest_aorta.probe.tool import ToolFailed, ask

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

_TIMEOUT_SEC = 5.0
_TOOLS = (
    ("amd-smi", "static", "--asic", "--driver", "--vbios", "--json"),
    ("rocm-smi", "--showproductname", "--showdriverversion", "--showvbios", "--json"),
)
# Heap types of the KFD topology that are the device's own memory: public and private frame buffer.
_FRAME_BUFFERS = (1, 2)
_PCI_FILES = ("product_name", "vbios_version", "current_compute_partition", "current_memory_partition")


def amd(guard: Guard, root: Path = Path("/")) -> Facts | None:
    """``driver_version``, ``devices`` (memory in bytes) and ``hidden_devices``; ``None`` without AMD's compute driver.

    ``driver_version`` is ``None`` for the driver that comes with the kernel. ``hidden_devices`` counts the GPUs that a
    container may not look at. ``tool`` is what amd-smi or rocm-smi said, asked only when the files show no device.
    """
    if not (root / "dev/kfd").exists() and not (root / "sys/class/kfd").exists():
        return None
    devices: list[Facts] = []
    hidden = 0
    for node in kfd_nodes(root):
        try:
            device = _device(node, root)
        except PermissionError:
            hidden += 1
        except Exception as error:
            guard.failed(f"accelerator.amd.node {node.name}", error)
        else:
            devices += [device] if device is not None else []
    found: Facts = {
        "driver_version": guard.fact("accelerator.amd", lambda: _line(root / "sys/module/amdgpu/version"), None),
        "devices": devices,
        "hidden_devices": hidden,
    }
    if not devices and not hidden:
        found["tool"] = guard.fact("accelerator.amd", _tool, None)
    return found


def _device(node: Path, root: Path) -> Facts | None:
    """One node of the topology; ``None`` for a CPU."""
    if int((node / "gpu_id").read_text(encoding="utf-8")) == 0:
        return None
    properties = kfd_properties(node)
    address = _pci_address(properties)
    pci = root / "sys/bus/pci/devices" / address
    return {
        "node": int(node.name),
        "gfx": gfx_name(properties.get("gfx_target_version", 0)),
        "codename": _line(node / "name"),
        "pci_bus_id": address,
        "unique_id": f"0x{properties['unique_id']:016x}" if "unique_id" in properties else None,
        "compute_units": properties.get("simd_count", 0) // max(properties.get("simd_per_cu", 1), 1),
        "memory_total_bytes": _memory(node),
        **{name: _line(pci / name) for name in _PCI_FILES},
    }


def gfx_name(target_version: int) -> str | None:
    """The name of an architecture: 90402 is gfx942, 90010 is gfx90a, 110000 is gfx1100; ``None`` for 0.

    The last two of its three parts are hexadecimal digits in the name.
    """
    if target_version == 0:
        return None
    major, minor, step = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{step:x}"


def _pci_address(properties: dict[str, int]) -> str:
    location = properties.get("location_id", 0)
    return f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"


def _memory(node: Path) -> int:
    banks = [kfd_properties(bank) for bank in node.glob("mem_banks/*")]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFERS)


def _line(file: Path) -> str | None:
    """The file's first line; ``None`` without the file, or when it is empty."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip() or None
    except FileNotFoundError:
        return None


def _tool() -> Facts | None:
    """What the first installed tool says, as it says it: its keys differ from release to release."""
    for name, *arguments in _TOOLS:
        path = shutil.which(name)
        if path is None:
            continue
        answer = ask([path, *arguments], _TIMEOUT_SEC)
        if answer.returncode != 0:
            raise ToolFailed(answer.complaint())
        return {"name": name, "answer": json.loads(answer.stdout)}
    return None
