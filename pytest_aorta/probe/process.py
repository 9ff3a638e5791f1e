"""What differs from trial to trial: this process, and the state of the host around it.

Runs in every trial, after a fork: no import, no subprocess, few system calls. Therefore not through psutil.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_aorta.common.texts import format_ranges
from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.host import clock_mhz, first_line, keyed_lines

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
    os.SCHED_OTHER: "other",
    os.SCHED_BATCH: "batch",
    os.SCHED_IDLE: "idle",
    os.SCHED_FIFO: "fifo",
    os.SCHED_RR: "rr",
}


def process(guard: Guard, clock: bool = False) -> Facts:
    """Facts about this process and the load of its host; memory in bytes, load as the 1, 5 and 15 minute averages.

    ``pressure`` is the share of the last ten seconds, in percent, in which tasks have waited for a CPU, or for memory
    (Linux's pressure stall information, ``Documentation/accounting/psi.rst``). ``clock`` asks for the processor's
    clock, too.
    """
    nothing: dict[str, str] = {}
    status = guard.fact("process.status", lambda: keyed_lines("/proc/self/status"), nothing)
    memory = guard.fact("process.memory", lambda: keyed_lines("/proc/meminfo"), nothing)
    return guard.facts(
        "process",
        {
            "pid": os.getpid,
            "ppid": os.getppid,
            "uid": os.getuid,
            "cwd": os.getcwd,
            "threads": lambda: int(status["Threads"]) if "Threads" in status else None,
            "cpu_affinity": lambda: format_ranges(os.sched_getaffinity(0)),
            "cpu_clock_mhz": lambda: clock_mhz() if clock else None,
            "nice": lambda: os.getpriority(os.PRIO_PROCESS, 0),
            "scheduler": _scheduler,
            "numa_policy": memory_policy,
            "numa_nodes_allowed": lambda: status.get("Mems_allowed_list"),
            "transparent_huge_pages": lambda: status["THP_enabled"] != "0" if "THP_enabled" in status else None,
            "huge_pages": lambda: int(memory["HugePages_Total"]) if "HugePages_Total" in memory else None,
            "memory_available_bytes": lambda: (
                int(memory["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in memory else None
            ),
            "load_average": os.getloadavg,
            "pressure": lambda: {what: _pressure(what) for what in ("cpu", "memory")},
            "rlimits": _rlimits,
            "torch_threads": _torch_threads,
        },
    )


def _scheduler() -> dict[str, str | int]:
    number = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    return {"policy": _POLICIES.get(number, str(number)), "priority": os.sched_getparam(0).sched_priority}


def memory_policy(maps: Path = Path("/proc/self/numa_maps")) -> str | None:
    """Where this process gets its memory from, as numactl has set it: ``default``, ``bind:0``, ``interleave:0-1``, ...

    ``None`` for a kernel without NUMA. Read from the first mapping, the program, which has no policy of its own. The
    kernel walks through the pages of every mapping that it gives a line for: no more than that line is read.
    """
    try:
        with open(maps, "rb", buffering=0) as file:
            columns = file.read(128).split(maxsplit=2)
    except FileNotFoundError:
        return None
    return columns[1].decode() if len(columns) > 1 else None


def _pressure(what: str) -> float | None:
    try:
        found = re.match(r"some avg10=([\d.]+)", first_line(Path(_PRESSURE, what)) or "")
    except OSError:  # as of a kernel that has the files and not the information
        return None
    return float(found[1]) if found else None


def _rlimits() -> dict[str, dict[str, int | None]]:
    # In the kernel's units (bytes or a count); None is unlimited.
    limits = {}
    for name, which in _LIMITS.items():
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
        limits[name] = {"soft": soft, "hard": hard}
    return limits


def _torch_threads() -> dict[str, int] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {"intraop": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}


@dataclass(frozen=True)
class Children:
    """The child processes of this one at a moment: page faults of all that have ended, and ids of the others."""

    faults: int
    running: frozenset[int]


def children_now() -> Children:
    """Those of this process. Forks begin without any."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    running: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                running += map(int, file.read().split())
        except FileNotFoundError:  # a thread that has ended, or a kernel without this file
            continue
    return Children(usage.ru_minflt + usage.ru_majflt, frozenset(running))


def had_children_since(before: Children) -> bool:
    """Whether a child has ended, or been started, since; every process has page faults."""
    now = children_now()
    return now.faults != before.faults or not now.running <= before.running
