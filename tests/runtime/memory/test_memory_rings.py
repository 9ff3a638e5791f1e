"""Slabs of the rings: where they lie, when they can be had again, and who waits for them."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from pytest_aorta.runtime.memory.rings import HeapRings, Slab
from support.processes import PATIENCE, wait_until

KIB = 1024


class Waiter:
    """A thread that allocates, and what came of it."""

    def __init__(self, rings: HeapRings, ring: int, nbytes: int) -> None:
        self._outcome: queue.Queue[Slab | BaseException] = queue.Queue()
        blocked = rings.waiting
        self._thread = threading.Thread(target=self._allocate, args=(rings, ring, nbytes), daemon=True)
        self._thread.start()
        wait_until(lambda: rings.waiting > blocked)

    def outcome(self) -> Slab | BaseException:
        return self._outcome.get(timeout=PATIENCE)

    def is_blocked(self) -> bool:
        return self._outcome.empty()

    def _allocate(self, rings: HeapRings, ring: int, nbytes: int) -> None:
        try:
            self._outcome.put(rings.allocate(ring, nbytes))
        except BaseException as error:
            self._outcome.put(error)


def test_slabs_are_aligned_and_follow_each_other() -> None:
    rings = HeapRings(8 * KIB)

    slabs = [rings.allocate(0, nbytes) for nbytes in (1, 1024, 1025, 0)]

    assert [(slab.offset, slab.nbytes) for slab in slabs] == [
        (0, 1),
        (KIB, 1024),
        (2 * KIB, 1025),
        (4 * KIB, 0),
    ]
    assert rings.in_use(0) == 5 * KIB


@pytest.mark.statement(34)
def test_a_full_ring_blocks_until_something_is_released() -> None:
    rings = HeapRings(4 * KIB, patience=PATIENCE)
    first = rings.allocate(0, 2 * KIB)
    rings.allocate(0, 2 * KIB)
    waiter = Waiter(rings, 0, KIB)
    assert waiter.is_blocked()

    rings.release(first)

    slab = waiter.outcome()
    assert isinstance(slab, Slab)
    assert slab.offset == 0
    assert rings.waiting == 0


@pytest.mark.statement(34)
def test_a_ring_that_stays_full_is_an_error_that_names_the_knob() -> None:
    rings = HeapRings(4 * KIB, patience=0.01)
    rings.allocate(2, 3 * KIB)

    with pytest.raises(RuntimeError, match=r"ring 2 is full.*2048 bytes.*1024 of 4096 are free.*heap_ring_size"):
        rings.allocate(2, 2 * KIB)

    assert rings.waiting == 0
    assert rings.in_use(2) == 3 * KIB


@pytest.mark.statement(34)
def test_rings_reclaim_independently() -> None:
    rings = HeapRings(4 * KIB, patience=0.0)
    outer, inner = rings.allocate(0, 4 * KIB), rings.allocate(1, 4 * KIB)
    assert rings.in_use(2) == 0

    rings.release(inner)

    assert rings.allocate(1, 4 * KIB).offset == 0
    with pytest.raises(RuntimeError, match="ring 0 is full"):
        rings.allocate(0, 1)
    rings.release(outer)
    assert rings.in_use(0) == 0


def test_more_than_a_ring_is_refused_at_once() -> None:
    rings = HeapRings(4 * KIB, patience=PATIENCE)
    rings.allocate(0, KIB)

    with pytest.raises(ValueError, match=r"4097 bytes are more than a whole ring of 4096.*heap_ring_size"):
        rings.allocate(0, 4 * KIB + 1)
    with pytest.raises(ValueError, match="-1"):
        rings.allocate(0, -1)


def test_what_is_released_early_waits_for_what_is_older() -> None:
    rings = HeapRings(4 * KIB, patience=0.0)
    first, second, third = (rings.allocate(0, KIB) for _ in range(3))

    rings.release(second)
    assert rings.in_use(0) == 3 * KIB
    rings.release(first)
    assert rings.in_use(0) == KIB
    rings.release(third)
    assert rings.in_use(0) == 0


def test_no_slab_straddles_the_end() -> None:
    rings = HeapRings(4 * KIB, patience=0.0)
    first, _second = rings.allocate(0, 2 * KIB), rings.allocate(0, KIB)
    rings.release(first)

    wrapped = rings.allocate(0, 2 * KIB)

    assert wrapped.offset == 0
    assert rings.in_use(0) == 4 * KIB


@pytest.mark.statement(33)
def test_an_empty_ring_has_room_for_its_whole_size_wherever_it_stood() -> None:
    rings = HeapRings(4 * KIB, patience=0.0)
    for _ in range(8):
        rings.release(rings.allocate(0, 3 * KIB))
        rings.release(rings.allocate(0, 4 * KIB))

    assert rings.in_use(0) == 0


def test_a_slab_is_released_once() -> None:
    rings = HeapRings(4 * KIB)
    old = rings.allocate(0, KIB)
    rings.release(old)
    new = rings.allocate(0, KIB)
    assert (old.offset, old.nbytes) == (new.offset, new.nbytes)

    with pytest.raises(ValueError, match="not allocated"):
        rings.release(old)

    assert rings.in_use(0) == KIB


def test_closing_wakes_those_who_wait() -> None:
    rings = HeapRings(4 * KIB, patience=PATIENCE)
    slab = rings.allocate(0, 4 * KIB)
    waiters = [Waiter(rings, 0, KIB) for _ in range(2)]

    rings.close()

    for waiter in waiters:
        error = waiter.outcome()
        assert isinstance(error, RuntimeError)
        assert "closed" in str(error)
    with pytest.raises(RuntimeError, match="closed"):
        rings.allocate(1, 1)
    rings.release(slab)
    assert rings.in_use(0) == 0


@pytest.mark.parametrize("ring", [-1, 4])
def test_an_unknown_ring_is_refused(ring: int) -> None:
    rings = HeapRings(4 * KIB)

    with pytest.raises(ValueError, match=f"no ring {ring}"):
        rings.allocate(ring, 1)


@pytest.mark.parametrize("wrong", [{"size_bytes": 1023}, {"rings": 0}, {"patience": -1}, {"patience": float("nan")}])
def test_impossible_rings_are_refused(wrong: dict[str, float]) -> None:
    everything: dict[str, Any] = {"size_bytes": 4 * KIB, **wrong}
    with pytest.raises(ValueError, match=r"heap_ring_size|patience"):
        HeapRings(**everything)


class RingsMachine(RuleBasedStateMachine):
    """Any order of allocations and releases."""

    slabs = Bundle("slabs")

    def __init__(self) -> None:
        super().__init__()
        self.rings = HeapRings(16 * 8, rings=2, align=8, patience=0.0)
        self.live: dict[int, list[Slab]] = {0: [], 1: []}

    @rule(target=slabs, ring=st.integers(0, 1), nbytes=st.integers(0, 16 * 8))
    def allocate(self, ring: int, nbytes: int) -> Slab | None:
        try:
            slab = self.rings.allocate(ring, nbytes)
        except RuntimeError:
            assert self.live[ring], "an empty ring is never full"
            return None
        self.live[ring].append(slab)
        return slab

    @rule(slab=consumes(slabs))
    def release(self, slab: Slab | None) -> None:
        if slab is not None:
            self.rings.release(slab)
            self.live[slab.ring].remove(slab)

    @invariant()
    def no_two_slabs_overlap(self) -> None:
        for slabs in self.live.values():
            end = 0
            for slab in sorted(slabs, key=lambda slab: slab.offset):
                assert end <= slab.offset
                assert slab.offset % 8 == 0
                end = slab.offset + max(slab.nbytes, 1)
            assert end <= 16 * 8

    @invariant()
    def what_is_in_use_is_accounted_for(self) -> None:
        for ring, slabs in self.live.items():
            least = sum(-(-max(slab.nbytes, 1) // 8) * 8 for slab in slabs)
            assert least <= self.rings.in_use(ring) <= (16 * 8 if slabs else 0)


TestAnyOrder = RingsMachine.TestCase
