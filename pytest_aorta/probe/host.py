"""The machine, what is wrapped around this process, and its interpreter: the same for all trials of a cell."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import psutil

from pytest_aorta.probe.tool import ToolTimedOut, ask
from pytest_aorta.probe.variables import redacted_command_line

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

# Instruction sets that decide which kernel of a BLAS or of ATen runs. Torch's own answer
# (torch.backends.cpu.get_cpu_capability) is not asked for: asking freezes ATEN_CPU_CAPABILITY for the process.
_SIMD = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16")
_SIMD_ARM = ("asimd", "sve", "sve2", "bf16", "i8mm")

# Seconds that the look-up of the host's own name may take; a resolver gives up on a lost packet after 5.
_PATIENCE = 2.0

# Some kernels (before 5.18) sleep while they measure a clock; a trial does not wait for that.
_CHEAP_SEC = 0.001

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

_HUGE_PAGES = {
    "total": "HugePages_Total",
    "free": "HugePages_Free",
    "reserved": "HugePages_Rsvd",
    "surplus": "HugePages_Surp",
}

# Version 1 of control groups says "no limit" with the largest multiple of the page size.
_UNLIMITED_FROM = 1 << 60

# Strongest first: a pod's container is also a docker or containerd one, and pod is what its user calls it.
_CONTAINERS = ("singularity", "kubernetes", "podman", "docker", "lxc", "other")
_CONTAINER_FILES = {
    ".singularity.d": "singularity",
    "var/run/secrets/kubernetes.io": "kubernetes",
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
}
# Only whether these are set is used; of their values, only the image's path is recorded.
_CONTAINER_VARIABLES = {
    "APPTAINER_CONTAINER": "singularity",
    "SINGULARITY_CONTAINER": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
_CONTAINER_CGROUPS = {
    "kubepods": "kubernetes",
    "libpod": "podman",
    "docker": "docker",
    "lxc": "lxc",
    "containerd": "other",
}
_CONTAINER_ID = re.compile(r"/(?:overlay-)?containers/([0-9a-f]{64})/\S* /etc/(?:hostname|hosts|resolv\.conf) ")
_CGROUP_ID = re.compile(r"[0-9a-f]{64}")


# Small files of the kernel


def first_line(file: str | os.PathLike[str]) -> str | None:
    """The file's first line without blanks at its ends; ``None`` without the file, or when the line is empty."""
    return _text(file).partition("\n")[0].strip() or None


def keyed_lines(file: str | os.PathLike[str], separator: str = ":") -> dict[str, str]:
    """``key: value`` lines as a dictionary, the first of equal keys; empty without the file."""
    found: dict[str, str] = {}
    for line in _text(file).splitlines():
        key, separates, value = line.partition(separator)
        if separates:
            found.setdefault(key.strip(), value.strip())
    return found


def _text(file: str | os.PathLike[str]) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


# The machine


def host(guard: Guard) -> Facts:
    """Facts about the host; memory in bytes."""
    uname = os.uname()
    return guard.facts(
        "host",
        {
            "hostname": lambda: uname.nodename,
            "own_name_lookup_ms": own_name_lookup_ms,
            "kernel": lambda: uname.release,
            "kernel_version": lambda: uname.version,
            "kernel_command_line": kernel_command_line,
            "machine": lambda: uname.machine,
            "os_release": _os_release,
            "libc": _libc,
            "cpu_model": lambda: _cpuinfo("model name", "Model", "cpu", "uarch"),
            "cpu_simd": _cpu_simd,
            "cpu_count": os.cpu_count,
            "cpu_cores": lambda: psutil.cpu_count(logical=False),
            "cpu_topology": cpu_topology,
            "cpu_caches": cpu_caches,
            "cpu_frequency": cpu_frequency,
            "numa_nodes": lambda: None if (nodes := numa_nodes()) is None else len(nodes),
            "numa": numa_nodes,
            "numa_balancing": numa_balancing,
            "transparent_huge_pages": transparent_huge_pages,
            "memory_total_bytes": lambda: psutil.virtual_memory().total,
            "swap_total_bytes": lambda: psutil.swap_memory().total,
        },
    )


def own_name_lookup_ms(hosts: Path = Path("/etc/hosts")) -> float:
    """Milliseconds of one look-up of this host's own name, as every rank does that joins a process group.

    0 where /etc/hosts has the name, so that nothing else is asked. Raises ``ToolTimedOut`` after 2 s.
    """
    name = os.uname().nodename
    lines = (line.partition("#")[0].split() for line in hosts.read_text(errors="replace").splitlines())
    if any(name in line[1:] for line in lines):
        return 0.0
    start = time.monotonic()
    try:
        ask(["getent", "ahosts", name], _PATIENCE)
    except ToolTimedOut:
        raise ToolTimedOut(f"the look-up of {name} takes longer than {_PATIENCE:g} s") from None
    return round((time.monotonic() - start) * 1000, 1)


def kernel_command_line(root: Path = Path("/")) -> str | None:
    """What the kernel was booted with, secrets redacted by the rules for variables."""
    line = first_line(root / "proc/cmdline")
    return redacted_command_line(line) if line is not None else None


def _os_release() -> dict[str, str] | None:
    try:
        release = platform.freedesktop_os_release()
    except FileNotFoundError:
        return None
    return {key.lower(): release[key] for key in ("ID", "VERSION_ID", "PRETTY_NAME") if key in release}


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:  # not glibc
        return None


def _cpuinfo(*keys: str) -> str | None:
    found = keyed_lines("/proc/cpuinfo")
    return next((found[key] for key in keys if key in found), None)


def _cpu_simd() -> list[str]:
    flags = set((_cpuinfo("flags", "Features") or "").split())
    return [name for name in (*_SIMD, *_SIMD_ARM) if name in flags]


def cpu_topology(root: Path = Path("/")) -> Facts:
    """``sockets``, ``cores_per_socket`` and ``threads_per_core`` of the processors that are online.

    Each is the largest, where sockets or cores differ (hybrid processors); ``None`` where the kernel does not show it.
    """
    cores_of_socket: dict[str, set[str]] = {}
    threads_of_core: dict[str, int] = {}
    for folder in root.glob("sys/devices/system/cpu/cpu[0-9]*/topology"):
        socket, siblings = first_line(folder / "physical_package_id"), first_line(folder / "thread_siblings_list")
        if socket is not None and siblings is not None:
            cores_of_socket.setdefault(socket, set()).add(siblings)
            threads_of_core[siblings] = threads_of_core.get(siblings, 0) + 1
    return {
        "sockets": len(cores_of_socket) or None,
        "cores_per_socket": max(map(len, cores_of_socket.values()), default=None),
        "threads_per_core": max(threads_of_core.values(), default=None),
    }


def cpu_caches(root: Path = Path("/")) -> Facts | None:
    """``size_bytes`` and ``shared_by_cpus`` of each cache of the first processor, as ``L1d``, ``L1i``, ``L2``, ..."""
    caches = {}
    for folder in sorted(root.glob("sys/devices/system/cpu/cpu0/cache/index[0-9]*")):
        level, kind = first_line(folder / "level"), first_line(folder / "type") or ""
        size = re.fullmatch(r"(\d+)([KMG]?)", first_line(folder / "size") or "")
        if level is not None and size is not None:
            caches["L" + level + {"Data": "d", "Instruction": "i"}.get(kind, "")] = {
                "size_bytes": int(size[1]) * _UNITS.get(size[2], 1),
                "shared_by_cpus": first_line(folder / "shared_cpu_list"),
            }
    return caches or None


def cpu_frequency(root: Path = Path("/")) -> Facts:
    """How the clocks are governed: ``driver``, ``governors`` in use, ``max_mhz`` of the fastest processor.

    ``limit_mhz`` is the lowest limit that is set for any processor, ``boost`` whether it may clock higher than its
    nominal frequency. Virtual machines have none of it, only ``nominal_mhz``: the one in /proc/cpuinfo.
    """
    base = root / "sys/devices/system/cpu"
    policies = list(base.glob("cpufreq/policy[0-9]*"))
    governors = {first_line(policy / "scaling_governor") for policy in policies}
    drivers = {first_line(policy / "scaling_driver") for policy in policies}
    limits = [mhz for policy in policies if (mhz := _mhz(policy / "scaling_max_freq")) is not None]
    fastest = [mhz for policy in policies if (mhz := _mhz(policy / "cpuinfo_max_freq")) is not None]
    boost, no_turbo = first_line(base / "cpufreq/boost"), first_line(base / "intel_pstate/no_turbo")
    nominal = keyed_lines(root / "proc/cpuinfo").get("cpu MHz")
    return {
        "driver": next(iter(drivers - {None}), None),
        "governors": sorted(name for name in governors if name is not None),
        "max_mhz": max(fastest, default=None),
        "limit_mhz": min(limits, default=None),
        "boost": boost == "1" if boost is not None else no_turbo == "0" if no_turbo is not None else None,
        "nominal_mhz": float(nominal) if nominal else None,
    }


def clock_mhz(root: Path = Path("/")) -> float | None:
    """The present clock of the first processor that this process may run on; ``None`` where it is not shown."""
    return _mhz(root / f"sys/devices/system/cpu/cpu{min(os.sched_getaffinity(0))}/cpufreq/scaling_cur_freq")


def clock_is_cheap(root: Path = Path("/")) -> bool:
    """Whether ``clock_mhz`` gives a number, within a millisecond."""
    start = time.perf_counter()
    try:
        return clock_mhz(root) is not None and time.perf_counter() - start < _CHEAP_SEC
    except OSError:
        return False


def _mhz(file: Path) -> float | None:
    khz = first_line(file)
    return int(khz) / 1000 if khz is not None and khz.isdigit() else None


def transparent_huge_pages(root: Path = Path("/")) -> Facts | None:
    """The settings in force (``always``, ``madvise``, ``never``, ...) as ``enabled``, ``defrag``, ``shmem_enabled``."""
    folder = root / "sys/kernel/mm/transparent_hugepage"
    if not folder.is_dir():
        return None
    # The chosen one of "always [madvise] never".
    chosen = {
        name: re.search(r"\[([\w+-]+)\]", _text(folder / name)) for name in ("enabled", "defrag", "shmem_enabled")
    }
    return {name: found[1] if found else None for name, found in chosen.items()}


def memory_state(root: Path = Path("/")) -> Facts:
    """``available_bytes``: what can be allocated without swapping; ``huge_pages``: the pool of explicit ones, in pages.

    Both ``None`` where the kernel does not show it.
    """
    lines = keyed_lines(root / "proc/meminfo")
    pool = None
    if _HUGE_PAGES["total"] in lines:
        pool = {name: int(lines[key]) for name, key in _HUGE_PAGES.items() if key in lines}
        pool["page_size_bytes"] = _bytes(lines.get("Hugepagesize", "0 kB"))
    return {
        "available_bytes": _bytes(lines["MemAvailable"]) if "MemAvailable" in lines else None,
        "huge_pages": pool,
    }


def _bytes(kilobytes: str) -> int:
    return int(kilobytes.split()[0]) * 1024


def numa_nodes(root: Path = Path("/")) -> list[Facts] | None:
    """``node``, its ``cpus``, ``memory_total_bytes`` and ``distances`` to every node, by number."""
    folder = root / "sys/devices/system/node"
    if not folder.is_dir():
        return None
    nodes = sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return [_node(node) for node in nodes]


def _node(folder: Path) -> Facts:
    # "Node 0 MemTotal:       32814200 kB"
    total = next((text for key, text in keyed_lines(folder / "meminfo").items() if key.endswith(" MemTotal")), None)
    return {
        "node": int(folder.name[4:]),
        "cpus": first_line(folder / "cpulist"),
        "memory_total_bytes": _bytes(total) if total else None,
        "distances": [int(text) for text in (first_line(folder / "distance") or "").split()],
    }


def numa_balancing(root: Path = Path("/")) -> bool | None:
    """Whether the kernel moves pages to the node that uses them; ``None`` for a kernel that cannot."""
    line = first_line(root / "proc/sys/kernel/numa_balancing")
    return None if line is None else line != "0"


# What is wrapped around this process


def runtime_context(guard: Guard) -> Facts:
    """Facts about container, control group and environment; ``None`` for each that is not there."""
    return guard.facts(
        "runtime_context",
        {"container": container, "cgroup": cgroup_limits, "venv": virtual_environment, "conda": conda_environment},
    )


def container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Facts | None:
    """The container around this process: ``kind``, ``detected_by``; ``id``, ``image``, ``image_id`` if shown."""
    cgroup = _text(root / "proc/self/cgroup")
    signs = [(kind, f"/{name}") for name, kind in _CONTAINER_FILES.items() if (root / name).exists()]
    signs += [(kind, name) for name, kind in _CONTAINER_VARIABLES.items() if name in environ]
    cgroups = _CONTAINER_CGROUPS.items()
    signs += [(kind, f"cgroup {word}") for word, kind in cgroups if re.search(rf"[/-]{word}\b", cgroup)]
    if not signs:
        return None
    podman = {key: value.strip('"') for key, value in keyed_lines(root / "run/.containerenv", "=").items()}
    images = (podman.get("image"), environ.get("APPTAINER_CONTAINER"), environ.get("SINGULARITY_CONTAINER"))
    identity = _CONTAINER_ID.search(_text(root / "proc/self/mountinfo"))
    in_cgroup = _CGROUP_ID.search(cgroup)
    return {
        "kind": min((kind for kind, _ in signs), key=_CONTAINERS.index),
        "detected_by": [sign for _, sign in signs],
        "id": identity[1] if identity else in_cgroup[0] if in_cgroup else None,
        "image": next(filter(None, images), None),
        "image_id": podman.get("imageid") or None,
    }


def cgroup_limits(root: Path = Path("/")) -> Facts:
    """``memory_limit_bytes`` and ``cpu_limit`` (in CPUs): the tightest of this process's group and the groups above it.

    ``None`` where there is no limit. What the kernel kills a trial for is this, not the host's memory.
    """
    memory: list[int] = []
    cpus: list[float] = []
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            memory += [int(text) for text in _up(base, group, "memory.max") if text != "max"]
            pairs = (text.split() for text in _up(base, group, "cpu.max"))
            cpus += [int(quota) / int(period) for quota, period in pairs if quota != "max"]
        if "memory" in controllers.split(","):
            limits = map(int, _up(base / "memory", group, "memory.limit_in_bytes"))
            memory += [limit for limit in limits if limit < _UNLIMITED_FROM]
        if "cpu" in controllers.split(","):
            quotas, periods = (_up(base / "cpu", group, f"cpu.cfs_{name}_us") for name in ("quota", "period"))
            cpus += [int(quota) / int(period) for quota, period in zip(quotas, periods, strict=True) if int(quota) > 0]
    return {"memory_limit_bytes": min(memory, default=None), "cpu_limit": min(cpus, default=None)}


def _up(base: Path, group: str, file: str) -> list[str]:
    """The contents of ``file`` in ``group`` and all the groups above it that exist.

    In a container the path may be the host's, and only its root is mounted: then only that one is found.
    """
    path = PurePosixPath("/", group.lstrip("/")).relative_to("/")
    files = (base / folder / file for folder in (path, *path.parents))
    return [each.read_text(encoding="utf-8").strip() for each in files if each.exists()]


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


def conda_environment() -> Facts | None:
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


def interpreter(guard: Guard) -> Facts:
    """Facts about this Python."""
    return guard.facts(
        "python",
        {
            "version": platform.python_version,
            "build": lambda: sys.version,
            "implementation": lambda: sys.implementation.name,
            "executable": lambda: sys.executable or None,
            "prefix": lambda: sys.prefix,
            "base_prefix": lambda: sys.base_prefix,
            # -O and PYTHONOPTIMIZE remove the assert statements that many reproducers rely on.
            "optimize": lambda: sys.flags.optimize,
            "free_threaded": lambda: bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        },
    )
