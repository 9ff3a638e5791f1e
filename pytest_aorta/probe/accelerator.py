"""GPUs, their drivers, the toolkits installed for them, and the compilers on PATH."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

from pytest_aorta.common.kfd_topology import kfd_nodes, kfd_properties
from pytest_aorta.probe.guard import Facts, Guard, ToolFailed, ask, first_line

#: Seconds that a tool may take.
_TIMEOUT_SEC = 5.0

_SMI_FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "pci_bus_id",
    "driver_version": "driver_version",
    "memory.total": "memory_total_mib",
}
# Not every driver knows these, and one unknown field makes nvidia-smi refuse the whole query.
_NEWER_SMI_FIELDS = {
    "compute_cap": "compute_capability",
    "vbios_version": "vbios_version",
    "mig.mode.current": "mig_mode",
    "ecc.mode.current": "ecc_mode",
}

# Heap types of the KFD topology that are the device's own memory: public and private frame buffer.
_FRAME_BUFFERS = (1, 2)
_PCI_FILES = ("product_name", "vbios_version", "current_compute_partition", "current_memory_partition")

# Where each component of ROCm keeps its version: lib/cmake/<folder>/*version.cmake.
_ROCM_COMPONENTS = (
    *("hip", "hsa-runtime64", "rccl", "rocblas", "hipblas", "hipblaslt", "miopen", "composable_kernel", "rocsolver"),
    *("Tensile", "amd_comgr"),
)

# Compilers, and a part of the line that names the version, where it is not the first line.
_COMPILERS = {"gcc": "", "g++": "", "clang": "", "hipcc": "HIP version", "nvcc": "release "}


def accelerator(guard: Guard) -> Facts:
    """``nvidia``, ``amd``, ``cuda_toolkit`` and ``rocm``; ``None`` for each that this machine does not have."""
    rocm_home = os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME") or "/opt/rocm"
    found: Facts = dict.fromkeys(("nvidia", "amd", "cuda_toolkit", "rocm"))
    with guard.probe("accelerator.nvidia"):
        found["nvidia"] = nvidia(guard)
    with guard.probe("accelerator.amd"):
        found["amd"] = amd(guard)
    with guard.probe("accelerator.cuda_toolkit"):
        found["cuda_toolkit"] = cuda_toolkit_in_use()
    with guard.probe("accelerator.rocm"):
        found["rocm"] = rocm(Path(rocm_home))
    return found


def nvidia(guard: Guard, root: Path = Path("/")) -> Facts | None:
    """``driver_version`` and ``devices`` (memory in bytes); ``None`` on a machine without NVIDIA's driver."""
    proc = root / "proc/driver/nvidia"
    has_driver, smi = proc.exists(), shutil.which("nvidia-smi")
    devices: list[Facts] = []
    if smi is not None:
        with guard.probe("accelerator.nvidia"):
            devices = _ask_smi(smi, expected=has_driver)
    if not has_driver and not devices:  # many images have the tool on machines without a GPU
        return None
    version = next((device["driver_version"] for device in devices if device["driver_version"]), None)
    if version is None:
        with guard.probe("accelerator.nvidia"):
            found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", first_line(proc / "version") or "")
            version = found[1] if found else None
    return {"driver_version": version, "devices": devices}


def _ask_smi(smi: str, expected: bool, fields: dict[str, str] = _SMI_FIELDS | _NEWER_SMI_FIELDS) -> list[Facts]:
    try:
        answer = ask([smi, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], _TIMEOUT_SEC)
    except ToolFailed as error:
        if "not a valid field" in str(error) and fields is not _SMI_FIELDS:
            return _ask_smi(smi, expected, _SMI_FIELDS)
        if expected and "No devices were found" not in str(error):
            raise
        return []
    lines = [line for line in answer.splitlines() if line.strip() and "No devices were found" not in line]
    devices: list[Facts] = []
    for row in csv.reader(lines):
        # "[N/A]", "[Not Supported]", "[Unknown Error]": nvidia-smi puts what it cannot query in brackets.
        cells = [None if text.strip().startswith("[") else text.strip() for text in row]
        device: Facts = dict(zip(fields.values(), cells, strict=True))
        mib = device.pop("memory_total_mib")
        device["memory_total_bytes"] = int(mib) * 2**20 if mib is not None else None
        device["index"] = int(device["index"]) if device["index"] is not None else None
        devices.append(device)
    return devices


def amd(guard: Guard, root: Path = Path("/")) -> Facts | None:
    """``driver_version``, ``devices`` (memory in bytes) and ``hidden_devices``; ``None`` without AMD's compute driver.

    From the driver's files, which answer at once and cannot hang, as tools can. ``driver_version`` is ``None`` for the
    driver that comes with the kernel. ``hidden_devices`` counts the GPUs that a container may not look at.
    """
    if not (root / "dev/kfd").exists() and not (root / "sys/class/kfd").exists():
        return None
    devices: list[Facts] = []
    hidden = 0
    for node in kfd_nodes(root):
        with guard.probe(f"accelerator.amd.node {node.name}"):
            try:
                if int((node / "gpu_id").read_text(encoding="utf-8")) != 0:  # else a CPU
                    devices.append(_amd_device(node, root))
            except PermissionError:
                hidden += 1
    version = None
    with guard.probe("accelerator.amd"):
        version = first_line(root / "sys/module/amdgpu/version")
    return {"driver_version": version, "devices": devices, "hidden_devices": hidden}


def _amd_device(node: Path, root: Path) -> Facts:
    properties = kfd_properties(node)
    location = properties.get("location_id", 0)
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    address = f"{properties.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function:x}"
    banks = [kfd_properties(bank) for bank in node.glob("mem_banks/*")]
    return {
        "node": int(node.name),
        "gfx": gfx_name(properties.get("gfx_target_version", 0)),
        "pci_bus_id": address,
        "unique_id": f"0x{properties['unique_id']:016x}" if "unique_id" in properties else None,
        "compute_units": properties.get("simd_count", 0) // max(properties.get("simd_per_cu", 1), 1),
        "memory_total_bytes": sum(
            bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFERS
        ),
        **{name: first_line(root / "sys/bus/pci/devices" / address / name) for name in _PCI_FILES},
    }


def gfx_name(target_version: int) -> str | None:
    """The name of an architecture: 90402 is gfx942, 90010 is gfx90a, 110000 is gfx1100; ``None`` for 0.

    The last two of its three parts are hexadecimal digits in the name.
    """
    if target_version == 0:
        return None
    major, minor, step = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{step:x}"


def cuda_toolkit_in_use(default: str = "/usr/local/cuda") -> Facts | None:
    """``path`` and ``version`` of the toolkit that extensions of torch are built with.

    Looked for where ``torch.utils.cpp_extension`` does: the variables, the folder of nvcc, the usual folder. A folder
    that holds no toolkit is passed over, as where nvcc on PATH is a script that calls the real one.
    """
    nvcc = shutil.which("nvcc")
    beside = str(Path(os.path.realpath(nvcc)).parents[1]) if nvcc else None
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), beside, default)):
        file = Path(home, "version.json")
        if file.exists():
            return {"path": home, "version": json.loads(file.read_text(encoding="utf-8"))["cuda"]["version"]}
    return None


def rocm(home: Path) -> Facts | None:
    """``path``, ``version`` and the versions of the ``components`` of the ROCm release in ``home``."""
    version = first_line(home / ".info/version")
    if version is None:
        return None
    components: dict[str, str] = {}
    for name in _ROCM_COMPONENTS:
        for file in sorted((home / "lib/cmake" / name).glob("*.cmake")):
            if file.name.lower().endswith(("config-version.cmake", "configversion.cmake")):
                text = file.read_text(encoding="utf-8", errors="replace")
                if found := re.search(r'set\s*\(\s*PACKAGE_VERSION\s+"([^"]+)"', text):
                    components[name] = found[1]
                break
    return {"path": os.path.realpath(home), "version": version, "components": components}


def compilers(guard: Guard) -> Facts:
    """``path`` and ``version`` (the line of its output that has it) of each; ``None`` for one that is not on PATH.

    None of them looks at a GPU for this.
    """
    found: Facts = {}
    for name, mark in _COMPILERS.items():
        path = found[name] = shutil.which(name)
        if path is None:
            continue
        found[name] = {"path": path, "version": None}
        with guard.probe(f"compilers.{name}"):
            said = ask([path, "--version"], _TIMEOUT_SEC).strip()
            if not said:
                raise ToolFailed(f"{name} --version printed nothing")
            line = re.search(f".*{mark}.*", said)
            found[name]["version"] = (line[0] if line else said.splitlines()[0]).strip()
    return found
