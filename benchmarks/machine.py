"""What a benchmark's numbers depend on."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def facts() -> dict[str, str]:
    """Facts about the machine and the versions, for people and for JSON."""
    return {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pytest", "pytest-aorta")},
    }


class BackgroundLoad:
    """Processor time that other processes use meanwhile; ratios suffer from it."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy, self._own = _busy(), _own()

    def share(self) -> float:
        """Part of all cores since the start that processes other than this one and its descendants used."""
        others = (_busy() - self._busy) - (_own() - self._own)
        return max(0.0, others / (time.monotonic() - self._start) / (os.cpu_count() or 1))


def _busy() -> float:
    """Seconds that all cores have worked, interrupts and stolen time included."""
    user, nice, system, _idle, _iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Seconds that this process and those of its descendants that have ended have worked."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
