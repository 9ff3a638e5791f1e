"""The machine, what is wrapped around this process, and its interpreter: the same for all trials of a cell."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import re
import subprocess
import sys
import sysconfig
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

#: Each is found out by itself, so that none takes another with it.
_GUARDED = (
    *("kernel_command_line", "os_release", "libc", "cpu_cores", "cpu_frequency", "numa_nodes", "numa_balancing"),
    *("transparent_huge_pages", "memory_total_bytes", "swap_total_bytes"),
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
    """The machine; of ``cpu_frequency``, virtual machines have nothing.

    ``governors`` are those in use, ``max_mhz`` is of the fastest processor, ``limit_mhz`` the lowest limit that is set
    for any, ``boost`` whether it may clock higher than its nominal frequency.
    """
    name, release, version, machine = os.uname()[1:]
    found: Facts = {
        "hostname": name,
        "kernel": release,
        "kernel_version": version,
        "machine": machine,
        "cpu_model": None,
        "cpu_simd": [],
        "cpu_count": os.cpu_count(),
        **dict.fromkeys(_GUARDED),
    }
    with guard.probe("host.cpu_model"):
        cpu = keyed_lines(root / "proc/cpuinfo")
        flags = (cpu.get("flags") or cpu.get("Features") or "").split()
        found["cpu_model"] = cpu.get("model name") or cpu.get("Model") or cpu.get("cpu") or cpu.get("uarch")
        found["cpu_simd"] = list(filter(flags.__contains__, _SIMD))
    with guard.probe("host.kernel_command_line"):
        if (line := first_line(root / "proc/cmdline")) is not None:
            found["kernel_command_line"] = redacted_command_line(line)
    with guard.probe("host.os_release"), contextlib.suppress(FileNotFoundError):
        release_of = platform.freedesktop_os_release()
        found["os_release"] = {}
        for key in ("ID", "VERSION_ID", "PRETTY_NAME"):
            if key in release_of:
                found["os_release"][key.lower()] = release_of[key]
    with guard.probe("host.libc"):
        found["libc"] = " ".join(platform.libc_ver()).strip() or None
    with guard.probe("host.cpu_cores"):
        found["cpu_cores"] = psutil.cpu_count(logical=False)
    with guard.probe("host.cpu_frequency"):
        base = root / "sys/devices/system/cpu"
        governors: set[str | None] = set()
        limits: list[float | None] = []
        fastest: list[float | None] = []
        for policy in base.glob("cpufreq/policy[0-9]*"):
            governors.add(first_line(policy / "scaling_governor"))
            limits.append(mhz(policy / "scaling_max_freq"))
            fastest.append(mhz(policy / "cpuinfo_max_freq"))
        boost, no_turbo = first_line(base / "cpufreq/boost"), first_line(base / "intel_pstate/no_turbo")
        found["cpu_frequency"] = {
            "governors": sorted(filter(None, governors)),
            "max_mhz": max(filter(None, fastest), default=None),
            "limit_mhz": min(filter(None, limits), default=None),
            "boost": boost == "1" if boost is not None else no_turbo == "0" if no_turbo is not None else None,
        }
    with guard.probe("host.numa_nodes"):
        found["numa_nodes"] = len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None
    with guard.probe("host.numa_balancing"):
        if (line := first_line(root / "proc/sys/kernel/numa_balancing")) is not None:
            found["numa_balancing"] = line != "0"
    with guard.probe("host.transparent_huge_pages"):
        folder = root / "sys/kernel/mm/transparent_hugepage"
        if folder.is_dir():
            pages: Facts = {}
            for name in ("enabled", "defrag"):
                chosen = re.search(r"\[([\w+-]+)\]", read_text(folder / name))  # of "always [madvise] never"
                pages[name] = chosen[1] if chosen else None
            found["transparent_huge_pages"] = pages
    with guard.probe("host.memory_total_bytes"):
        found["memory_total_bytes"] = psutil.virtual_memory().total
    with guard.probe("host.swap_total_bytes"):
        found["swap_total_bytes"] = psutil.swap_memory().total
    return found


def mhz(file: str | Path) -> float | None:
    khz = first_line(file)
    return int(khz) / 1000 if khz is not None and khz.isdigit() else None


# What is wrapped around this process


def runtime_context(guard: Guard) -> Facts:
    """Facts about container, control group and environment; ``None`` for each that is not there."""
    found: Facts = dict.fromkeys(("container", "cgroup", "venv", "conda"))
    with guard.probe("runtime_context.container"):
        found["container"] = container()
    with guard.probe("runtime_context.cgroup"):
        found["cgroup"] = cgroup_limits()
    with guard.probe("runtime_context.venv"):
        if sys.prefix != sys.base_prefix:  # not VIRTUAL_ENV, which may be another shell's
            settings = keyed_lines(Path(sys.prefix, "pyvenv.cfg"), "=")
            found["venv"] = {
                "path": sys.prefix,
                "base_prefix": sys.base_prefix,
                "system_site_packages": settings.get("include-system-site-packages", "").lower() == "true",
            }
    with guard.probe("runtime_context.conda"):
        if Path(sys.base_prefix, "conda-meta").is_dir():
            found["conda"] = {"path": sys.base_prefix, "name": Path(sys.base_prefix).name}
    return found


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
