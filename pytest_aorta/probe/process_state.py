"""What differs from trial to trial: this process, and the state of the host around it.

Runs in every trial, after a fork: no import, no subprocess, few system calls.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

import psutil

from pytest_aorta.common.number_ranges import format_ranges

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "as": resource.RLIMIT_AS,
    "stack": resource.RLIMIT_STACK,
    "nproc": resource.RLIMIT_NPROC,
}


def process(guard: Guard) -> Facts:
    """Facts about this process and the load of its host; memory in bytes, load as the 1, 5 and 15 minute averages."""
    return guard.facts(
        "process",
        {
            "pid": os.getpid,
            "ppid": os.getppid,
            "uid": os.getuid,
            "cwd": os.getcwd,
            "cpu_affinity": _cpu_affinity,
            "memory_available_bytes": _memory_available,
            "load_average": os.getloadavg,
            "rlimits": _rlimits,
            "torch_threads": _torch_threads,
        },
    )


def _memory_available() -> int:
    """What the kernel estimates can be allocated without swapping."""
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    # The same number on other systems; on Linux psutil reads and parses far more than this line.
    return int(psutil.virtual_memory().available)


def _cpu_affinity() -> str | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return None
    return format_ranges(os.sched_getaffinity(0))


def _rlimits() -> dict[str, dict[str, int | None]]:
    """``soft`` and ``hard`` of each limit, in the kernel's units (bytes or a count); ``None`` is unlimited."""
    limits = {}
    for name, which in _LIMITS.items():
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
        limits[name] = {"soft": soft, "hard": hard}
    return limits


def _torch_threads() -> dict[str, int] | None:
    """Sizes of torch's pools; ``None`` when torch is not imported. Asking does not start the pools."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {"intraop": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}
