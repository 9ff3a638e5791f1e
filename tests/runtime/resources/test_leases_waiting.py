"""Requests that wait for devices: their order, their patience, and how a wait ends."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from support.lease_users import FOR_EVER, HANG, Processes, end, in_thread, is_refused, line_of, looks, take, waiting

from pytest_aorta.runtime.resources import leases as tickets
from pytest_aorta.runtime.resources.leases import LeaseCancelled, Leases


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def test_a_wait_can_be_cancelled(folder: Path) -> None:
    pool = Leases((0, 1), folder)
    with pool.acquire(1):
        with pytest.raises(LeaseCancelled, match="gave up waiting for 2 of the devices 0,1"):
            pool.acquire(2, cancelled=looks(3))
        assert not list(folder.glob("*.ticket"))
        with pytest.raises(LeaseCancelled):
            pool.acquire(1, cancelled=lambda: True)
        assert list(pool.holders()) == [0]


def test_an_error_of_cancelled_ends_the_wait(folder: Path) -> None:
    pool = Leases((0,), folder)

    def fails() -> bool:
        raise KeyboardInterrupt

    with pool.acquire(1):
        with pytest.raises(KeyboardInterrupt):
            pool.acquire(1, cancelled=fails)
        assert not list(folder.glob("*.ticket"))


def test_a_small_request_passes_a_patient_big_one(folder: Path) -> None:
    patient = Leases((0, 1), folder, patience=FOR_EVER)
    first = patient.acquire(1)
    with in_thread(lambda: take(patient, 2).release()):
        waiting(folder, 1)
        take(patient, 1).release()
        first.release()


def test_no_request_passes_a_big_one_that_has_lost_its_patience(folder: Path) -> None:
    order: list[str] = []
    patient = Leases((0, 1), folder, patience=FOR_EVER)
    first = patient.acquire(1)

    def ask(name: str, pool: Leases, count: int) -> None:
        with take(pool, count):
            order.append(name)

    with in_thread(lambda: ask("big", Leases((0, 1), folder, patience=0), 2)):
        waiting(folder, 1)
        assert is_refused(patient, 1)
        with in_thread(lambda: ask("small", patient, 1)):
            waiting(folder, 2)
            first.release()

    assert order == ["big", "small"]


def test_those_without_patience_are_served_in_the_order_of_their_asking(folder: Path) -> None:
    order: list[int] = []
    pool = Leases((0, 1), folder, patience=0)
    first = pool.acquire(1)

    def ask(number: int) -> None:
        with take(pool, 2):
            order.append(number)

    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(in_thread(partial(ask, number)))
            waiting(folder, number + 1)
        first.release()

    assert order == [0, 1, 2, 3]


def test_a_big_request_does_not_hold_up_requests_for_other_devices(folder: Path) -> None:
    pool = Leases((0, 1), folder, patience=0)
    first = pool.acquire(1)
    with in_thread(lambda: take(pool, 2).release()):
        waiting(folder, 1)
        assert Leases((2, 3), folder).acquire(2).devices == (2, 3)
        assert Leases((1, 4), folder).acquire(1).devices == (4,)
        assert is_refused(Leases((1, 2), folder), 1)
        first.release()


def test_a_waiter_that_no_longer_looks_reserves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_AWAY", 0.05)
    pool = Leases((0, 1), folder, patience=0)
    awake = threading.Event()

    def sleeps() -> bool:
        if not list(folder.glob("*.ticket")):
            return False  # before its first look
        return not awake.wait(HANG)

    first = pool.acquire(1)
    with in_thread(lambda: pool.acquire(2, cancelled=sleeps).release()):
        waiting(folder, 1)
        take(Leases((0, 1), folder, patience=FOR_EVER), 1).release()
        first.release()
        awake.set()


SMALL = """
pool = Leases((0, 1), folder, patience=3600)
say("ready")
while not (folder / "served").exists():
    pool.acquire(1).release()
"""


def test_a_stream_of_small_requests_does_not_starve_a_big_one(processes: Processes, folder: Path) -> None:
    """From threads that never pause and from another process; each of them is served again when the big one is done."""
    other = processes.start(SMALL)
    assert line_of(other) == "ready"
    served = threading.Event()
    turns = Counter[int]()

    def small(number: int) -> None:
        pool = Leases((0, 1), folder, patience=FOR_EVER)
        kept = take(pool, 1)
        while not served.is_set() or turns[number] == 0:
            # The next lease before the last is given back, as long as that is possible: no moment without one.
            with contextlib.suppress(LeaseCancelled):
                following = pool.acquire(1, cancelled=looks(2))
                kept.release()
                kept = following
                turns[number] += 1
                continue
            kept.release()
            kept = take(pool, 1)
            turns[number] += 1
        kept.release()

    with contextlib.ExitStack() as stack:
        for number in range(3):
            stack.enter_context(in_thread(partial(small, number)))
        for _ in range(5):
            take(Leases((0, 1), folder, patience=0.02), 2).release()
        served.set()
        (folder / "served").touch()
    end(other)
    assert sorted(turns) == [0, 1, 2]
