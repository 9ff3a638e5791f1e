"""The machine, what is wrapped around this process, and its interpreter: the same for all trials of a cell."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import psutil

from pytest_aorta.probe.guard import Facts, Guard, first_line, keyed_lines, read_text
from pytest_aorta.probe.variables import redacted_command_line

# Instruction sets that decide which kernel of a BLAS or of ATen runs, x86's and ARM's. Torch's own answer
# (torch.backends.cpu.get_cpu_capability) is not asked for: asking freezes ATEN_CPU_CAPABILITY for the process.
_SIMD = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16"),
    *("asimd", "sve", "sve2", "bf16", "i8mm"),
)

# Some kernels (before 5.18) sleep while they measure a clock; a trial does not wait for that.
_CHEAP_SEC = 0.001

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


def host(guard: Guard) -> Facts:
    nothing: dict[str, str] = {}
    cpu = guard.fact("host.cpu_model", functools.partial(keyed_lines, "/proc/cpuinfo"), nothing)
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    name, release, version, machine = os.uname()[1:]
    return {
        "hostname": name,
        "kernel": release,
        "kernel_version": version,
        "machine": machine,
        "cpu_model": next((cpu[key] for key in ("model name", "Model", "cpu", "uarch") if key in cpu), None),
        "cpu_simd": [each for each in _SIMD if each in flags],
        "cpu_count": os.cpu_count(),
        **guard.facts(
            "host",
            {
                "kernel_command_line": kernel_command_line,
                "os_release": _os_release,
                "libc": lambda: " ".join(platform.libc_ver()).strip() or None,
                "cpu_cores": functools.partial(psutil.cpu_count, logical=False),
                "cpu_frequency": cpu_frequency,
                "numa_nodes": lambda: len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
                "numa_balancing": _numa_balancing,
                "transparent_huge_pages": transparent_huge_pages,
                "memory_total_bytes": lambda: psutil.virtual_memory().total,
                "swap_total_bytes": lambda: psutil.swap_memory().total,
            },
        ),
    }


def kernel_command_line(root: Path = Path("/")) -> str | None:
    line = first_line(root / "proc/cmdline")
    return redacted_command_line(line) if line is not None else None


def _os_release() -> dict[str, str] | None:
    try:
        release = platform.freedesktop_os_release()
    except FileNotFoundError:
        return None
    return {key.lower(): release[key] for key in ("ID", "VERSION_ID", "PRETTY_NAME") if key in release}


def cpu_frequency(root: Path = Path("/")) -> Facts:
    """How the clocks are governed: ``governors`` in use, ``max_mhz`` of the fastest processor.

    ``limit_mhz`` is the lowest limit that is set for any processor, ``boost`` whether it may clock higher than its
    nominal frequency. Virtual machines have none of it.
    """
    base = root / "sys/devices/system/cpu"
    governors: set[str | None] = set()
    limits: list[float | None] = []
    fastest: list[float | None] = []
    for policy in base.glob("cpufreq/policy[0-9]*"):
        governors.add(first_line(policy / "scaling_governor"))
        limits.append(_mhz(policy / "scaling_max_freq"))
        fastest.append(_mhz(policy / "cpuinfo_max_freq"))
    boost, no_turbo = first_line(base / "cpufreq/boost"), first_line(base / "intel_pstate/no_turbo")
    return {
        "governors": sorted(filter(None, governors)),
        "max_mhz": max(filter(None, fastest), default=None),
        "limit_mhz": min(filter(None, limits), default=None),
        "boost": boost == "1" if boost is not None else no_turbo == "0" if no_turbo is not None else None,
    }


def clock_mhz(root: Path = Path("/")) -> float | None:
    """The present clock of the first processor that this process may run on; ``None`` where it is not shown."""
    return _mhz(root / f"sys/devices/system/cpu/cpu{min(os.sched_getaffinity(0))}/cpufreq/scaling_cur_freq")


def clock_is_cheap(root: Path = Path("/")) -> bool:
    start = time.perf_counter()
    try:
        return clock_mhz(root) is not None and time.perf_counter() - start < _CHEAP_SEC
    except OSError:
        return False


def _mhz(file: Path) -> float | None:
    khz = first_line(file)
    return int(khz) / 1000 if khz is not None and khz.isdigit() else None


def transparent_huge_pages(root: Path = Path("/")) -> Facts | None:
    folder = root / "sys/kernel/mm/transparent_hugepage"
    if not folder.is_dir():
        return None
    found: Facts = {}
    for name in ("enabled", "defrag"):
        chosen = re.search(r"\[([\w+-]+)\]", read_text(folder / name))  # of "always [madvise] never"
        found[name] = chosen[1] if chosen else None
    return found


def _numa_balancing() -> bool | None:
    line = first_line("/proc/sys/kernel/numa_balancing")
    return None if line is None else line != "0"


# What is wrapped around this process


def runtime_context(guard: Guard) -> Facts:
    """Facts about container, control group and environment; ``None`` for each that is not there."""
    return guard.facts(
        "runtime_context",
        {"container": container, "cgroup": cgroup_limits, "venv": virtual_environment, "conda": _conda_environment},
    )


def container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Facts | None:
    """The container around this process: ``kind``, ``detected_by``; ``id``, ``image``, ``image_id`` if shown."""
    cgroup = read_text(root / "proc/self/cgroup")
    found: dict[str, str] = {}
    for kind, signs in _CONTAINERS.items():
        for sign in signs:
            if sign.startswith("cgroup "):
                is_there = re.search(rf"[/-]{sign[7:]}\b", cgroup) is not None
            else:
                is_there = (root / sign[1:]).exists() if sign.startswith("/") else sign in environ
            if is_there:
                found[sign] = kind
    if not found:
        return None
    podman = keyed_lines(root / "run/.containerenv", "=")
    image = podman.get("image", "").strip('"')
    identity = _CONTAINER_ID.search(read_text(root / "proc/self/mountinfo")) or _CGROUP_ID.search(cgroup)
    return {
        "kind": next(iter(found.values())),
        "detected_by": list(found),
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
        trees = [name for name in ("memory", "cpu") if name in controllers.split(",")] if controllers else ["."]
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


def virtual_environment() -> Facts | None:
    # By sys.prefix: VIRTUAL_ENV may be another shell's.
    if sys.prefix == sys.base_prefix:
        return None
    settings = keyed_lines(Path(sys.prefix, "pyvenv.cfg"), "=")
    return {
        "path": sys.prefix,
        "base_prefix": sys.base_prefix,
        "system_site_packages": settings.get("include-system-site-packages", "").lower() == "true",
    }


def _conda_environment() -> Facts | None:
    if not Path(sys.base_prefix, "conda-meta").is_dir():
        return None
    return {"path": sys.base_prefix, "name": Path(sys.base_prefix).name}


@functools.cache
def image_digest(image: str, engine: str = "docker") -> str | None:
    """The id (``sha256:...``) of an image that is present on this host, or ``None``; of docker and podman only."""
    if engine not in ("docker", "podman"):
        return None
    command = [engine, "image", "inspect", "--format", "{{.Id}}", image]
    try:
        # A trial never waits longer for a label.
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = answer.stdout.strip()
    return None if not found else found if ":" in found else f"sha256:{found}"


def interpreter() -> Facts:
    return {
        "version": platform.python_version(),
        "build": sys.version,
        "implementation": sys.implementation.name,
        "executable": sys.executable or None,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        # -O and PYTHONOPTIMIZE remove the assert statements that many reproducers rely on.
        "optimize": sys.flags.optimize,
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    }
