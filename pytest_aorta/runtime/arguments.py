"""Checks of the arguments of ``Worker``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_aorta.runtime.endpoints.job_slot import Slot


def worker_ids(workers: Iterable[int]) -> frozenset[int]:
    """The ids that ``register`` was given; raises ``ValueError`` for any other object."""
    found = list(workers)
    for worker in found:
        if isinstance(worker, bool) or not isinstance(worker, int) or worker < 0:
            raise ValueError(f"{worker!r} is not the id of a worker")
    return frozenset(found)


def check_arguments(
    level: int, device_ids: Sequence[int], subs: int, slots: int | Sequence[Slot], ring: int, timeout: float
) -> None:
    """Raise ``ValueError`` for arguments that make no sense."""
    if not isinstance(level, int) or isinstance(level, bool) or level < 3:
        raise ValueError(f"level must be 3 (a host) or more, not {level!r}; slots (level 2) belong to a host")
    if not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ValueError(f"startup_timeout_s must be a number of seconds above 0, not {timeout!r}")
    if level != 3 and (device_ids or slots):
        raise ValueError(f"device_ids and slots belong to a host (level 3), not to level {level}")
    for number in device_ids:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"device_ids must be numbers from 0, not {number!r}")
    if len(set(device_ids)) != len(device_ids):
        raise ValueError(f"a device is named twice: {list(device_ids)}")
    for name, value in (("num_sub_workers", subs), ("heap_ring_size", ring)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
