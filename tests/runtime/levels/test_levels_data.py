"""No task works on wrong data: on bytes of a failed writer, on memory that was let go, on what an alias hides."""

from __future__ import annotations

import re
from typing import Any

import levels_tensor_tasks
import pytest
import torch
from levels_tensor_tasks import share

from pytest_aorta.runtime import Orchestrator, Outcome, Tag, TaskArgs, TaskError, Worker


@pytest.fixture(scope="module")
def worker() -> Any:
    with Worker(3, num_sub_workers=2, grace=0.1, heap_ring_size=16 * 1024) as worker:
        yield worker


@pytest.fixture(scope="module")
def fill(worker: Worker) -> Any:
    return worker.register(levels_tensor_tasks.fill)


@pytest.fixture(scope="module")
def total(worker: Worker) -> Any:
    return worker.register(levels_tensor_tasks.total)


@pytest.fixture(scope="module")
def boom(worker: Worker) -> Any:
    return worker.register(levels_tensor_tasks.fill_half_and_boom)


def filled(tensor: torch.Tensor, value: float) -> TaskArgs:
    return TaskArgs().add(tensor, Tag.OUTPUT).add_scalar(value)


@pytest.mark.statement(12)
@pytest.mark.statement(13)
def test_bytes_of_a_failed_writer_are_not_read_until_they_are_overwritten(
    worker: Worker, fill: Any, total: Any, boom: Any
) -> None:
    ours = share(torch.full((4,), -1.0))
    ends: list[Any] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for tensor in (orch.alloc((4,)), ours):
            tensor.fill_(-1)
            with orch.scope():
                orch.submit_sub(boom, TaskArgs().add(tensor, Tag.OUTPUT)).wait()

            def read(tensor: torch.Tensor) -> Any:
                record = orch.submit_sub(total, TaskArgs().add(tensor)).wait()
                message = re.sub(r"\d+", "N", record.failure.message) if record.failure else ""
                return record.payload if record.ok else (record.outcome, message)

            ends.append(read(tensor))
            orch.submit_sub(fill, filled(tensor[:2], 5)).wait()
            ends.append(read(tensor[:2]))
            ends.append(read(tensor[1:]))
            orch.submit_sub(fill, filled(tensor[2:], 5)).wait()
            ends.append(read(tensor))

    with pytest.raises(TaskError, match="half way"):
        worker.run(build)

    first = (Outcome.SKIPPED, "fill_half_and_boom (task N) failed: sub_worker N: ValueError: half way")
    assert ends == [first, 10.0, first, 20.0] * 2
    assert len(worker._dispatcher.graph.writers) == 0


def test_new_memory_is_not_marked_by_what_failed_in_the_memory_before_it(worker: Worker, total: Any, boom: Any) -> None:
    """The same bytes of the ring, used by one allocation after another."""

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for _step in range(4):
            with orch.scope():
                square = orch.alloc((40, 40))
                orch.submit_sub(boom, TaskArgs().add(square[:, :7], Tag.OUTPUT)).wait()
                del square
            with orch.scope():
                assert orch.submit_sub(total, TaskArgs().add(orch.alloc((10, 4)).zero_())).wait().ok

    with pytest.raises(TaskError):
        worker.run(build)
