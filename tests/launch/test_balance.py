"""Cells come to every host, slot and device equally often, in whatever order trials begin and end."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import grid

from pytest_aorta.launch.engine import JobPool
from pytest_aorta.launch.host.allocation import Allocator
from pytest_aorta.launch.host.local_host import Slot
from pytest_aorta.launch.job import TrialJob
from pytest_aorta.plan import ordered
from pytest_aorta.runtime.resources.devices import are_named_only, find_devices
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.spec import TrialSpec

#: A trial that is never cancelled.
JOB: Any = SimpleNamespace(cancelled=Future(), on_cancel=lambda callback: None)


def waiting_for(spec: TrialSpec) -> TrialJob:
    """A trial in a queue."""
    job = TrialJob(spec, Path())
    job.cell, job.round = (spec.workload.name, spec.cell), spec.trial_index
    return job


def slots_of(hosts: int, slots: int) -> list[Slot]:
    return [Slot(cast(Any, None), index, "", host) for host in range(hosts) for index in range(slots)]


def simulated(trials: tuple[TrialSpec, ...], slots: list[Slot], lasts: Any) -> list[tuple[TrialSpec, Slot]]:
    """Which slot takes which trial, where a trial on a slot lasts so long."""
    pool, waiting = JobPool(slots), [waiting_for(spec) for spec in trials]
    free = [(0.0, number) for number in range(len(slots))]
    taken = []
    while waiting:
        now, number = heapq.heappop(free)
        job = cast(TrialJob, pool.choose(waiting, slots[number]))
        waiting.remove(job)
        taken.append((job.spec, slots[number]))
        heapq.heappush(free, (now + lasts(job.spec, slots[number]), number))
    return taken


def worst(taken: list[tuple[TrialSpec, Slot]], place: Any) -> int:
    """The largest difference of the numbers of trials of two cells on one place."""
    found = Counter((place(slot), spec.cell) for spec, slot in taken)
    places, cells = ({key[index] for key in found} for index in (0, 1))
    return max(
        max(found[where, cell] for cell in cells) - min(found[where, cell] for cell in cells) for where in places
    )


def durations(kind: str, generator: random.Random) -> Any:
    """All equal; by chance; by cell, as where one hangs; by slot, as where a device is slow."""
    return {
        "equal": lambda spec, slot: 1.0,
        "chance": lambda spec, slot: generator.expovariate(1.0),
        "cell": lambda spec, slot: 1.0 + 3 * spec.mitigation_index + 0.1 * generator.random(),
        "slot": lambda spec, slot: 1.0 + slot.index + 0.1 * generator.random(),
    }[kind]


@pytest.mark.parametrize("kind", ["equal", "chance", "cell", "slot"])
@pytest.mark.parametrize(("hosts", "slots", "cells"), [(1, 2, 2), (1, 8, 3), (2, 1, 5), (2, 2, 8)])
def test_each_cell_comes_to_each_host_and_slot_equally_often(kind: str, hosts: int, slots: int, cells: int) -> None:
    for seed in range(5):
        lasts = durations(kind, random.Random(seed))
        taken = simulated(ordered(grid(1, 1, cells, 60), "interleaved"), slots_of(hosts, slots), lasts)

        # By chance, 60 trials on two slots would differ by 5 and more, on average, and by 60 where they fall into step.
        assert worst(taken, lambda slot: slot.number) <= 4
        assert worst(taken, lambda slot: (slot.number, slot.index)) <= 5


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 8), st.randoms(use_true_random=False))
def test_no_trial_is_passed_by_one_of_its_cell_or_by_more_than_a_round(
    cells: int, trials: int, slots: int, generator: random.Random
) -> None:
    plan = ordered(grid(1, 1, cells, trials), "interleaved")
    taken = [spec for spec, _ in simulated(plan, slots_of(1, slots), durations("chance", generator))]

    for cell in {spec.cell for spec in plan}:
        assert [spec.trial_index for spec in taken if spec.cell == cell] == [*range(trials)]
    assert all(sum(plan.index(other) > place for other in taken[: taken.index(spec)]) < cells
               for place, spec in enumerate(plan))  # fmt: skip


def test_what_is_grouped_stays_grouped_and_what_is_urgent_comes_first() -> None:
    plan = ordered(grid(1, 1, 3, 4), "grouped")
    assert [spec for spec, _ in simulated(plan, slots_of(1, 2), lambda spec, slot: 1.0)] == [*plan]

    slot, other = slots = slots_of(2, 1)
    pool = JobPool(slots)
    one, two = (waiting_for(cell[0]) for cell in grid(1, 1, 2, 1))
    assert pool.choose([one], slot) is one
    assert pool.choose([one, two], slot) is two
    assert pool.choose([one, two], other) is one
    one.urgent = True
    assert pool.choose([one, two], slot) is one
    one.urgent, one.cell = False, None  # the part of one node in a trial of several
    assert pool.choose([one, two], slot) is one
    assert pool.choose([], slot) is None


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not are_named_only(find_devices()):
        pytest.skip("the ids that are used here would be real")
    monkeypatch.setenv("PYTEST_AORTA_LEASES_DIR", str(tmp_path))


@pytest.mark.usefixtures("leases")
def test_of_more_devices_than_run_at_a_time_each_cell_gets_all_equally_often() -> None:
    cases: list[tuple[int, int, int]] = [(8, 2, 1), (8, 1, 1), (8, 3, 2), (4, 1, 2), (7, 2, 2)]
    for devices, slots, need in cases:
        allocator = Allocator(Resources(slots=slots, devices=tuple(range(devices))))
        parts, used = devices // need, Counter[tuple[str, tuple[int, ...]]]()
        generator = random.Random(0)
        running: dict[int, ExitStack] = {}
        for spec in ordered(grid(1, 1, 2, 12 * parts), "interleaved"):
            slot = generator.randrange(slots)
            if slot in running:
                running.pop(slot).close()
            running[slot] = ExitStack()
            found = running[slot].enter_context(allocator.allocate(JOB, slot, need, (spec.workload.name, spec.cell)))
            used[spec.cell, found.device_ids] += 1
            assert found.side_by_side.slot == slot
        for stack in running.values():
            stack.close()
        whole = [tuple(range(start, start + need)) for start in range(0, parts * need, need)]
        assert {part for _, part in used} == {*whole}
        assert max(used.values()) - min(used.values()) <= 4


@pytest.mark.usefixtures("leases")
def test_a_slot_keeps_its_device_where_there_is_one_for_each_and_takes_another_where_that_is_taken() -> None:
    workers = [Allocator(Resources(slots=2, devices=(3, 4, 5, 6), workers=2, worker=worker)) for worker in (0, 1)]
    for cell in ("a", "b", "a", "a"):
        with ExitStack() as stack:
            taken = [
                stack.enter_context(workers[worker].allocate(JOB, slot, 1, cell)) for worker, slot in ((1, 1), (0, 0))
            ]
            assert [each.device_ids for each in taken] == [(6,), (3,)]
            assert [each.side_by_side.slot for each in taken] == [3, 0]
    with workers[0].allocate(JOB, 1, 1, "a") as mine:
        other = Allocator(Resources(slots=4, devices=(3, 4, 5, 6)))
        with other.allocate(JOB, 1, 1, "a") as found:
            assert (mine.device_ids, found.device_ids) == ((4,), (5,))
