"""What the control groups allow this process, in either version of cgroups."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.guard import Facts

# Version 1 says "no limit" with the largest multiple of the page size.
_UNLIMITED_FROM = 1 << 60


def cgroup_limits(root: Path = Path("/")) -> Facts:
    """``memory_limit_bytes`` and ``cpu_limit`` (in CPUs): the tightest of this process's group and the groups above it.

    ``None`` where there is no limit. What the kernel kills a trial for is this, not the host's memory.
    """
    memory: list[int] = []
    cpus: list[float] = []
    for controllers, group in _groups(root / "proc/self/cgroup"):
        if not controllers:
            base = root / "sys/fs/cgroup"
            memory += [int(text) for text in _up(base, group, "memory.max") if text != "max"]
            pairs = (text.split() for text in _up(base, group, "cpu.max"))
            cpus += [int(quota) / int(period) for quota, period in pairs if quota != "max"]
        if "memory" in controllers:
            limits = map(int, _up(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"))
            memory += [limit for limit in limits if limit < _UNLIMITED_FROM]
        if "cpu" in controllers:
            base = root / "sys/fs/cgroup/cpu"
            quotas, periods = _up(base, group, "cpu.cfs_quota_us"), _up(base, group, "cpu.cfs_period_us")
            cpus += [int(quota) / int(period) for quota, period in zip(quotas, periods, strict=True) if int(quota) > 0]
    return {"memory_limit_bytes": min(memory, default=None), "cpu_limit": min(cpus, default=None)}


def _groups(file: Path) -> list[tuple[list[str], str]]:
    """(controllers, path) of every hierarchy this process is in; no controllers for version 2."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        _, controllers, group = line.split(":", 2)
        found.append((controllers.split(",") if controllers else [], group))
    return found


def _up(base: Path, group: str, file: str) -> list[str]:
    """The contents of ``file`` in ``group`` and all the groups above it that exist.

    In a container the path may be the host's, and only its root is mounted: then only that one is found.
    """
    path = PurePosixPath("/", group.lstrip("/")).relative_to("/")
    found = []
    for folder in (path, *path.parents):
        place = base / folder / file
        if place.exists():
            found.append(place.read_text(encoding="utf-8").strip())
    return found
