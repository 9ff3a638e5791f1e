"""Many small calls with few tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE

from pytest_aorta.runtime import MapRef, Outcome, TaskError, Worker


def negative(item: Any) -> Any:
    """Minus the item."""
    return -item


def fussy(item: int) -> int:
    """Not every item will do."""
    if item in (7, 13):
        raise ValueError(f"not {item}")
    if item == -1:
        os._exit(5)
    return item


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(3, num_sub_workers=2, grace=0.1) as worker:
        yield worker


def map_over(worker: Worker, function: Any, items: Any, **more: Any) -> MapRef:
    """The tasks of a run with one ``map``."""
    found: list[MapRef] = []
    handle = worker.register(function)
    try:
        worker.submit(lambda orch, args, config: found.append(orch.map(handle, items, **more)))
        for task in found[0].tasks:
            task.wait(PATIENCE)
    finally:
        worker.unregister(handle)
    return found[0]


@pytest.mark.parametrize(
    ("number", "chunksize"), [(0, None), (1, None), (7, None), (1000, None), (10, 1), (10, 3), (10, 99)]
)
def test_results_come_in_the_order_of_the_items(worker: Worker, number: int, chunksize: int | None) -> None:
    mapped = map_over(worker, negative, range(number), chunksize=chunksize)

    assert mapped.wait(PATIENCE) == [-item for item in range(number)]
    size = chunksize or max(1, -(-number // 8))  # four tasks for each of two workers
    assert len(mapped.tasks) == -(-number // size)


def test_items_are_any_objects_and_functions_may_be_closures(worker: Worker) -> None:
    offset = 0.5
    mapped = map_over(worker, lambda item: [item.real + offset, len(item.__class__.__name__)], (1j, 2 + 1j))
    assert mapped.wait(PATIENCE) == [[0.5, 7], [2.5, 7]]


def test_the_first_item_that_fails_is_named_and_the_other_chunks_are_not_lost(worker: Worker) -> None:
    mapped = map_over(worker, fussy, range(20), chunksize=5)

    with pytest.raises(TaskError, match=r"sub_worker \d: item 7: ValueError: not 7") as caught:
        mapped.wait(PATIENCE)
    failure = caught.value.record.failure
    assert failure is not None
    assert failure.type == "ValueError"
    assert "in fussy" in failure.traceback
    assert [task.wait().payload for task in mapped.tasks] == [[0, 1, 2, 3, 4], None, None, [15, 16, 17, 18, 19]]


def test_a_death_is_the_failure_of_a_chunk(worker: Worker) -> None:
    mapped = map_over(worker, fussy, [1, -1, 2], chunksize=1)
    outcomes = [task.wait().outcome for task in mapped.tasks]
    assert outcomes == [Outcome.SUCCESS, Outcome.ENDPOINT_FAILURE, Outcome.SUCCESS]


@pytest.mark.parametrize("chunksize", [0, -1, 1.5, "2", True])
def test_a_chunksize_that_makes_no_sense_is_refused(worker: Worker, chunksize: Any) -> None:
    with pytest.raises(ValueError, match="chunksize must be a whole number from 1, not"):
        map_over(worker, negative, [1], chunksize=chunksize)


def test_items_that_cannot_be_pickled_are_refused(worker: Worker) -> None:
    items: list[Any] = [1, (number for number in range(3)), 3]
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        map_over(worker, negative, items, chunksize=1)
