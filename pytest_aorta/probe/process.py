"""What differs from trial to trial: this process, and the state of the host around it.

Runs in every trial, after a fork: no import, no subprocess, few system calls.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from pytest_aorta.common.number_ranges import format_ranges
from pytest_aorta.probe.host import clock_mhz, keyed_lines, memory_policy, memory_state

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts, Guard


# What differs from trial to trial: this process, and the state of the host around it.
#
# Runs in every trial, after a fork: no import, no subprocess, few system calls.


_PRESSURE = "/proc/pressure"

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "core": resource.RLIMIT_CORE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "as": resource.RLIMIT_AS,
    "stack": resource.RLIMIT_STACK,
    "nproc": resource.RLIMIT_NPROC,
}


_POLICIES = {
    getattr(os, f"SCHED_{name.upper()}"): name
    for name in ("other", "batch", "idle", "fifo", "rr")
    if hasattr(os, f"SCHED_{name.upper()}")
}


def process(guard: Guard, clock: bool = False) -> Facts:
    """Facts about this process and the load of its host; memory in bytes, load as the 1, 5 and 15 minute averages.

    ``pressure`` is the share of the last ten seconds, in percent, in which tasks have waited for a CPU, or for memory
    (Linux's pressure stall information, ``Documentation/accounting/psi.rst``).
    ``clock`` asks for the processor's clock, too. ``transparent_huge_pages`` is not the setting of the machine, but
    whether this process may have them (``prctl(PR_SET_THP_DISABLE)``).
    """
    nothing: dict[str, str] = {}
    unknown: Facts = {"available_bytes": None, "huge_pages": None}
    memory = guard.fact("process.memory", memory_state, unknown)
    status: dict[str, str] = guard.fact("process.status", _status, nothing)
    return guard.facts(
        "process",
        {
            "pid": os.getpid,
            "ppid": os.getppid,
            "uid": os.getuid,
            "cwd": os.getcwd,
            "threads": lambda: _number(status.get("Threads")),
            "cpu_affinity": _cpu_affinity,
            "cpu_clock_mhz": lambda: clock_mhz() if clock else None,
            "nice": lambda: os.getpriority(os.PRIO_PROCESS, 0),
            "scheduler": _scheduler,
            "numa_policy": memory_policy,
            "numa_nodes_allowed": lambda: status.get("Mems_allowed_list"),
            "transparent_huge_pages": lambda: _flag(status.get("THP_enabled")),
            "huge_pages": lambda: memory["huge_pages"],
            "memory_available_bytes": lambda: _memory_available(memory),
            "load_average": os.getloadavg,
            "pressure": lambda: {what: _pressure(what) for what in ("cpu", "memory")},
            "rlimits": _rlimits,
            "torch_threads": _torch_threads,
        },
    )


def _status() -> dict[str, str]:
    return keyed_lines("/proc/self/status")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def _flag(text: str | None) -> bool | None:
    return text != "0" if text is not None else None


def _memory_available(memory: Facts) -> int:
    # The same number on systems without /proc; on Linux psutil reads and parses the file once more.
    known: int | None = memory["available_bytes"]
    return known if known is not None else int(psutil.virtual_memory().available)


def _scheduler() -> dict[str, str | int | None] | None:
    """``policy`` by name (a kernel's newer ones by number), and the ``priority`` that real-time policies have."""
    if not hasattr(os, "sched_getscheduler"):  # macOS
        return None
    number = os.sched_getscheduler(0) & ~getattr(os, "SCHED_RESET_ON_FORK", 0)
    return {"policy": _POLICIES.get(number, str(number)), "priority": os.sched_getparam(0).sched_priority}


def _cpu_affinity() -> str | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return None
    return format_ranges(os.sched_getaffinity(0))


def _pressure(what: str) -> float | None:
    """``None`` where the kernel does not count it: before Linux 4.20, or with ``psi=0``."""
    try:
        descriptor = os.open(f"{_PRESSURE}/{what}", os.O_RDONLY)
    except OSError:
        return None
    try:
        found = re.match(rb"some avg10=([\d.]+)", os.read(descriptor, 256))
    except OSError:  # as of a kernel that has the files and not the information
        return None
    finally:
        os.close(descriptor)
    return float(found[1]) if found else None


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


@dataclass(frozen=True)
class Children:
    """The child processes of this one at a moment.

    Attributes:
        ended: page faults of all that have ended and were waited for: every process has some.
        running: ids of the others.
    """

    ended: int
    running: frozenset[int]


def children_now() -> Children:
    """Those of this process. Forks begin without any."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Children(usage.ru_minflt + usage.ru_majflt, frozenset(_running()))


def had_children_since(before: Children) -> bool:
    """Whether a child has ended, or been started, since."""
    now = children_now()
    return now.ended != before.ended or not now.running <= before.running


def _running() -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir("/proc/self/task")
    except FileNotFoundError:  # not Linux
        return found
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:  # a thread that has ended, or a kernel without this file
            continue
    return found
