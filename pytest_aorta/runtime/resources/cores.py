"""Shares of this host's CPU cores, for slots that have no GPU of their own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import chain, pairwise
from pathlib import Path

from pytest_aorta.common.texts import parse_ranges


def core_shares(slots: int, available: Collection[int] | None = None, root: Path = Path("/")) -> list[tuple[int, ...]]:
    """One set of CPUs (as the kernel numbers them, ascending) for each of ``slots`` slots.

    Shares are disjoint, next to each other, and as equal as they can be; the first ones get what is left over. The
    hyper-threads of a core stay together while there are as many cores as slots; beyond, they are dealt out one by
    one; with more slots than even these, slots take turns in sharing one, and shares are *not* disjoint.
    """
    cpus = sorted(os.sched_getaffinity(0) if available is None else set(available))
    if slots < 1:
        raise ValueError(f"the number of slots must be at least 1, not {slots}")
    if not cpus:
        raise ValueError("there is no CPU to be shared")
    units = _cores(cpus, root)
    if len(units) < slots:
        units = [(cpu,) for core in units for cpu in core]
    if len(units) < slots:
        return [units[slot % len(units)] for slot in range(slots)]
    size, more = divmod(len(units), slots)
    starts = [slot * size + min(slot, more) for slot in range(slots + 1)]
    return [tuple(sorted(cpu for unit in units[start:end] for cpu in unit)) for start, end in pairwise(starts)]


def equal_shares(
    shares: int, available: Collection[int] | None = None, root: Path = Path("/")
) -> list[tuple[int, ...]] | None:
    """As ``core_shares``, but of equally many physical cores; what is left over is in none.

    ``None`` with fewer cores than shares.
    """
    cpus = sorted(os.sched_getaffinity(0) if available is None else set(available))
    cores = _cores(cpus, root)
    size = len(cores) // shares
    if size == 0:
        return None
    return [
        tuple(sorted(cpu for core in cores[share * size : (share + 1) * size] for cpu in core))
        for share in range(shares)
    ]


def threads_of(share: Collection[int], root: Path = Path("/")) -> int:
    """How many computing threads suit a share: its physical cores, at least 1.

    Two threads on one core's hyper-threads only take turns at its arithmetic units.
    """
    return max(1, len(_cores(sorted(share), root)))


def _cores(cpus: Iterable[int], root: Path) -> list[tuple[int, ...]]:
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in cpus:
        cores.setdefault(_siblings(cpu, root), []).append(cpu)
    return [tuple(core) for core in cores.values()]


def _siblings(cpu: int, root: Path) -> frozenset[int]:
    file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return frozenset(chain(*parse_ranges(file.read_text(encoding="ascii"))))
    except (OSError, ValueError):  # a container, or a kernel, without this information
        return frozenset((cpu,))
