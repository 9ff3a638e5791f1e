"""Checks of what users pass: a ``TypeError`` names the expected type, a ``ValueError`` what would be valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_aorta.runtime.endpoints.job_slot import Slot


def given(value: object) -> str:
    """A wrong value for a message: what it is, and of which type."""
    try:
        text = repr(value)
    except Exception:
        text = "an object"
    return f"{text if len(text) <= 80 else f'{text[:80]}...'} ({type(value).__name__})"


def expect(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise ``TypeError`` for a value of another type; bools are no numbers."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in (kinds, *_members(kinds))):
        raise TypeError(f"{name} must be {wanted}, not {given(value)}")


def _members(kinds: type | tuple[type, ...]) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


def whole_number(name: str, value: object, least: int = 0) -> None:
    """Raise ``TypeError`` for what is no int, ``ValueError`` for one below ``least``."""
    expect(name, value, int, f"a whole number from {least}")
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")


def seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless it is a finite number of seconds above 0; with ``zero``, 0 is allowed as well."""
    bound = "from" if zero else "above"
    wanted = f"a number of seconds {bound} 0"
    expect(name, value, (int, float), wanted)
    assert isinstance(value, int | float)
    if not 0 <= value < float("inf") or not (zero or value):
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


def check_timeout(timeout: object) -> None:
    """For waits: ``None``, or a number of seconds; a negative one has passed already."""
    if timeout is not None:
        expect("timeout", timeout, (int, float), "a number of seconds or None")


def check_function(name: str, value: object, signature: str) -> None:
    """Raise ``TypeError`` for what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function {signature}, not {given(value)}")


def listed(name: str, value: object, wanted: str) -> list[Any]:
    """The entries of an iterable; raises ``TypeError`` for a single object."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be {wanted}, not {given(value)}")
    return list(value)


def worker_ids(workers: Iterable[int]) -> frozenset[int]:
    """The ids that ``register`` was given; raises ``TypeError`` or ``ValueError`` for any other object."""
    found = listed("workers", workers, "a list of the ids of workers")
    for worker in found:
        whole_number("the id of a worker", worker)
    return frozenset(found)


def check_arguments(
    level: int,
    device_ids: Sequence[int],
    subs: int,
    slots: int | Sequence[Slot],
    ring: int,
    timeout: float,
    grace: float = 1.0,
    prepare: Callable[[], object] | None = None,
) -> None:
    """Raise ``TypeError`` or ``ValueError`` for arguments of ``Worker`` that make no sense."""
    expect("level", level, int, "3 (a host) or more")
    if level < 3:
        raise ValueError(f"level must be 3 (a host) or more, not {level!r}; slots (level 2) belong to a host")
    seconds("startup_timeout_s", timeout)
    seconds("grace", grace, zero=True)
    numbers = listed("device_ids", device_ids, "a list of numbers from 0")
    if level != 3 and (numbers or slots):
        raise ValueError(f"device_ids and slots belong to a host (level 3), not to level {level}")
    for number in numbers:
        expect("device_ids", number, int, "numbers from 0")
        if number < 0:
            raise ValueError(f"device_ids must be numbers from 0, not {number!r}")
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"a device is named twice: {numbers}")
    for name, value in (("num_sub_workers", subs), ("heap_ring_size", ring)):
        whole_number(name, value)
    if isinstance(slots, int):
        whole_number("slots", slots)
    else:
        for slot in listed("slots", slots, "a whole number, or a list of Slot"):
            expect("slots", slot, Slot, "a whole number, or a list of Slot")
    if prepare is not None and not isinstance(prepare, str):
        check_function("prepare", prepare, "without arguments")
