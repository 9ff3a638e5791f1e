"""The machine, what is wrapped around this process, its interpreter, accelerators and compilers.

They are the same for all trials of a cell.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from pytest_aorta.common.kfd_topology import kfd_address, kfd_nodes, kfd_properties
from pytest_aorta.probe.guard import Facts, Guard, ToolFailed, ask, first_line, keyed_lines, read_text
from pytest_aorta.probe.variables import redacted_command_line

# Instruction sets that decide which kernel of a BLAS or of ATen runs, x86's and ARM's. Torch's own answer
# (torch.backends.cpu.get_cpu_capability) is not asked for: asking freezes ATEN_CPU_CAPABILITY for the process.
_SIMD = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16"),
    *("asimd", "sve", "sve2", "bf16", "i8mm"),
)

# Version 1 of control groups says "no limit" with the largest multiple of the page size.
_UNLIMITED_FROM = 1 << 60

# Strongest first: a pod's container is also a docker or containerd one, and pod is what its user calls it. A sign is a
# file, a variable (only whether it is set is used; of their values, only the image's path is recorded), or a cgroup.
_CONTAINERS = {
    "singularity": ("/.singularity.d", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"),
    "kubernetes": ("/var/run/secrets/kubernetes.io", "KUBERNETES_SERVICE_HOST", "cgroup kubepods"),
    "podman": ("/run/.containerenv", "cgroup libpod"),
    "docker": ("/.dockerenv", "cgroup docker"),
    "lxc": ("cgroup lxc",),
    "other": ("cgroup containerd",),
}
_CONTAINER_ID = re.compile(r"/(?:overlay-)?containers/([0-9a-f]{64})/\S* /etc/(?:hostname|hosts|resolv\.conf) ")
_CGROUP_ID = re.compile(r"([0-9a-f]{64})")


# The machine


def host(guard: Guard, root: Path = Path("/")) -> Facts:
    """The machine; ``cpu_frequency`` is empty on virtual machines.

    ``governors`` are those in use, ``max_mhz`` is of the fastest processor, ``limit_mhz`` the lowest limit that is set
    for any, ``boost`` whether it may clock higher than its nominal frequency.
    """
    import psutil

    name, release, version, machine = os.uname()[1:]
    cpu: dict[str, str] = {}
    with guard.probe("host.cpu_model"):
        cpu = keyed_lines(root / "proc/cpuinfo")
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    probes: dict[str, Callable[[], object]] = {
        "hostname": lambda: name,
        "kernel": lambda: release,
        "kernel_version": lambda: version,
        "machine": lambda: machine,
        "cpu_model": lambda: cpu.get("model name") or cpu.get("Model") or cpu.get("cpu") or cpu.get("uarch"),
        "cpu_simd": lambda: list(filter(flags.__contains__, _SIMD)),
        "cpu_count": os.cpu_count,
        "kernel_command_line": lambda: redacted_command_line(first_line(root / "proc/cmdline") or "") or None,
        "os_release": _os_release,
        "libc": lambda: " ".join(platform.libc_ver()).strip() or None,
        "cpu_cores": lambda: psutil.cpu_count(logical=False),
        "cpu_frequency": lambda: _cpu_frequency(root / "sys/devices/system/cpu"),
        "numa_nodes": lambda: len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "numa_balancing": lambda: _is_on(root / "proc/sys/kernel/numa_balancing"),
        "transparent_huge_pages": lambda: _huge_pages(root / "sys/kernel/mm/transparent_hugepage"),
        "nics": lambda: nics(root),
        "memory_total_bytes": lambda: psutil.virtual_memory().total,
        "swap_total_bytes": lambda: psutil.swap_memory().total,
    }
    return guard.facts("host", probes)


def _os_release() -> Facts | None:
    try:
        release = platform.freedesktop_os_release()
    except FileNotFoundError:
        return None
    return {key.lower(): release[key] for key in ("ID", "VERSION_ID", "PRETTY_NAME") if key in release}


def _cpu_frequency(base: Path) -> Facts:
    policies = list(base.glob("cpufreq/policy[0-9]*"))
    boost, no_turbo = _is_on(base / "cpufreq/boost"), _is_on(base / "intel_pstate/no_turbo")
    return {
        "governors": sorted(filter(None, {first_line(each / "scaling_governor") for each in policies})),
        "max_mhz": max(filter(None, (mhz(each / "cpuinfo_max_freq") for each in policies)), default=None),
        "limit_mhz": min(filter(None, (mhz(each / "scaling_max_freq") for each in policies)), default=None),
        "boost": boost if boost is not None else None if no_turbo is None else not no_turbo,
    }


def _is_on(file: Path) -> bool | None:
    line = first_line(file)
    return None if line is None else line != "0"


def _huge_pages(folder: Path) -> Facts | None:
    # Of "always [madvise] never", the one that is chosen.
    chosen = {name: re.search(r"\[([\w+-]+)\]", read_text(folder / name)) for name in ("enabled", "defrag")}
    return {name: it[1] if it else None for name, it in chosen.items()} if folder.is_dir() else None


def nics(root: Path = Path("/")) -> Facts:
    """Network and InfiniBand devices of hardware: ``firmware``, ``board``, ``driver``, ``device`` (PCI's numbers)."""
    found: Facts = {}
    for kind in ("infiniband", "net"):
        for nic in sorted((root / "sys/class" / kind).glob("*")):
            device = nic / "device"
            if not device.exists() or (device / "physfn").exists():  # made by software, or a part of another one
                continue
            driver = device / "driver"
            facts = {
                "firmware": first_line(nic / "fw_ver"),
                "board": first_line(nic / "board_id"),
                "driver": driver.resolve().name if driver.exists() else None,
                "device": ":".join(filter(None, (first_line(device / name) for name in ("vendor", "device")))) or None,
            }
            found[nic.name] = {name: value for name, value in facts.items() if value is not None}
    return found


def mhz(file: str | Path) -> float | None:
    khz = first_line(file)
    return int(khz) / 1000 if khz is not None and khz.isdigit() else None


# What is wrapped around this process


def runtime_context(guard: Guard) -> Facts:
    """Facts about container, control group and environment; ``None`` for each that is not there."""
    conda = {"path": sys.base_prefix, "name": Path(sys.base_prefix).name}
    probes: dict[str, Callable[[], object]] = {
        "container": container,
        "cgroup": cgroup_limits,
        "venv": lambda: venv(sys.prefix, sys.base_prefix),  # not VIRTUAL_ENV, which may be another shell's
        "conda": lambda: conda if Path(sys.base_prefix, "conda-meta").is_dir() else None,
    }
    return guard.facts("runtime_context", probes)


def venv(prefix: str, base_prefix: str) -> Facts | None:
    """The virtual environment of an interpreter; ``None`` if it is in none."""
    if prefix == base_prefix:
        return None
    settings = keyed_lines(Path(prefix, "pyvenv.cfg"), "=")
    system = settings.get("include-system-site-packages", "").lower() == "true"
    return {"path": prefix, "base_prefix": base_prefix, "system_site_packages": system}


def container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Facts | None:
    """The container around this process: ``kind``, ``detected_by``; ``id``, ``image``, ``image_id`` if shown."""
    cgroup = read_text(root / "proc/self/cgroup")
    container: dict[str, str] = {}
    for kind, signs in _CONTAINERS.items():
        for sign in signs:
            if sign.startswith("cgroup "):
                is_there = re.search(rf"[/-]{sign[7:]}\b", cgroup) is not None
            else:
                is_there = (root / sign[1:]).exists() if sign.startswith("/") else sign in environ
            if is_there:
                container[sign] = kind
    if not container:
        return None
    podman = keyed_lines(root / "run/.containerenv", "=")
    image = podman.get("image", "").strip('"')
    identity = _CONTAINER_ID.search(read_text(root / "proc/self/mountinfo")) or _CGROUP_ID.search(cgroup)
    return {
        "kind": next(iter(container.values())),
        "detected_by": list(container),
        "id": identity[1] if identity else None,
        "image": image or environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or None,
        "image_id": podman.get("imageid", "").strip('"') or None,
    }


def cgroup_limits(root: Path = Path("/")) -> Facts:
    """``memory_limit_bytes`` and ``cpu_limit`` (in CPUs): the tightest of this process's group and the groups above it.

    ``None`` where there is no limit. What the kernel kills a trial for is this, not the host's memory.
    """
    memory: list[int] = []
    cpus: list[float] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        # Version 2 has one tree; version 1 has one for each controller. In a container the path may be the host's, and
        # only its root is mounted: then only that one has files.
        trees = {"memory", "cpu"}.intersection(controllers.split(",")) if controllers else {"."}
        path = PurePosixPath("/", group.lstrip("/")).relative_to("/")
        for tree, each in itertools.product(trees, (path, *path.parents)):
            folder = root / "sys/fs/cgroup" / tree / each
            for name in ("memory.max", "memory.limit_in_bytes"):
                if (limit := first_line(folder / name)) is not None and limit != "max":
                    memory.append(int(limit))
            both = first_line(folder / "cpu.max")
            if both is None:
                both = f"{first_line(folder / 'cpu.cfs_quota_us')} {first_line(folder / 'cpu.cfs_period_us')}"
            quota, period = re.sub("max|None", "0", both).split()
            cpus += [int(quota) / int(period)] if int(quota) > 0 else []
    memory_limit = min(memory, default=_UNLIMITED_FROM)
    return {
        "memory_limit_bytes": memory_limit if memory_limit < _UNLIMITED_FROM else None,
        "cpu_limit": min(cpus, default=None),
    }


@functools.cache
def image_digest(image: str, engine: str = "docker") -> str | None:
    """The id (``sha256:...``) of an image that is present on this host, or ``None``; of docker and podman only."""
    if engine not in ("docker", "podman"):
        return None
    try:
        # A trial never waits longer for a label.
        output = ask([engine, "image", "inspect", "--format", "{{.Id}}", image], _TIMEOUT_SEC).strip()
    except (OSError, ToolFailed):
        return None
    return None if not output else output if ":" in output else f"sha256:{output}"


# GPUs, their drivers, the toolkits installed for them, and the compilers on PATH

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
    probes: dict[str, Callable[[], object]] = {
        "nvidia": lambda: nvidia(guard),
        "amd": lambda: amd(guard),
        "cuda_toolkit": cuda_toolkit_in_use,
        "rocm": lambda: rocm(Path(rocm_home)),
    }
    return guard.facts("accelerator", probes)


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
        match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read_text(proc / "version"))
        version = match[1] if match else None
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
    version = first_line(root / "sys/module/amdgpu/version")
    return {"driver_version": version, "devices": devices, "hidden_devices": hidden}


def _amd_device(node: Path, root: Path) -> Facts:
    properties = kfd_properties(node)
    address = kfd_address(properties)
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
                if match := re.search(r'set\s*\(\s*PACKAGE_VERSION\s+"([^"]+)"', text):
                    components[name] = match[1]
                break
    return {"path": os.path.realpath(home), "version": version, "components": components}


def compilers(guard: Guard) -> Facts:
    """``path`` and ``version`` (the line of its output that has it) of each; ``None`` for one that is not on PATH.

    None of them looks at a GPU for this.
    """
    versions: Facts = {}
    for name, mark in _COMPILERS.items():
        path = versions[name] = shutil.which(name)
        if path is None:
            continue
        versions[name] = {"path": path, "version": None}
        with guard.probe(f"compilers.{name}"):
            said = ask([path, "--version"], _TIMEOUT_SEC).strip()
            if not said:
                raise ToolFailed(f"{name} --version printed nothing")
            line = re.search(f".*{mark}.*", said)
            versions[name]["version"] = (line[0] if line else said.splitlines()[0]).strip()
    return versions
