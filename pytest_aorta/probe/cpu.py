"""Processors: sockets, cores, caches, clock."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.kernel_files import first_line, keyed_lines

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts

# Some kernels (before 5.18) sleep while they measure a clock; a trial does not wait for that.
_CHEAP_SEC = 0.001
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


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
    limits = [mhz for policy in policies if (mhz := _mhz(policy / "scaling_max_freq")) is not None]
    fastest = [mhz for policy in policies if (mhz := _mhz(policy / "cpuinfo_max_freq")) is not None]
    drivers = {first_line(policy / "scaling_driver") for policy in policies}
    nominal = keyed_lines(root / "proc/cpuinfo").get("cpu MHz")
    return {
        "driver": next(iter(drivers - {None}), None),
        "governors": sorted(name for name in governors if name is not None),
        "max_mhz": max(fastest, default=None),
        "limit_mhz": min(limits, default=None),
        "boost": _boost(base),
        "nominal_mhz": float(nominal) if nominal else None,
    }


def _boost(base: Path) -> bool | None:
    boost, no_turbo = first_line(base / "cpufreq/boost"), first_line(base / "intel_pstate/no_turbo")
    if boost is not None:
        return boost == "1"
    return no_turbo == "0" if no_turbo is not None else None


def clock_mhz(root: Path = Path("/")) -> float | None:
    """The present clock of the first processor that this process may run on; ``None`` where it is not shown."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    return _mhz(root / f"sys/devices/system/cpu/cpu{min(cpus)}/cpufreq/scaling_cur_freq")


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
