"""No task works on wrong data: on bytes of a failed writer, on memory that was let go, on what an alias hides."""

from __future__ import annotations

import re
from typing import Any

import levels_tensor_tasks
import pytest
import torch
import torch.utils.dlpack
from levels_stage import Gates
from levels_stage import gates as gates
from levels_tensor_tasks import share

from pytest_aorta.runtime import Orchestrator, Outcome, Tag, TaskArgs, TaskError, TaskRef, Worker


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


def test_memory_whose_scope_is_over_is_refused_and_not_recycled_while_it_is_held(
    worker: Worker, fill: Any, total: Any
) -> None:
    held: list[Any] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        with orch.scope():
            ref = orch.submit_sub(fill, TaskArgs().add_output([4]).add_scalar(3))
            view = ref.outputs[0][1:].numpy()
        prepared = ref.outputs[0]
        ref.wait()
        held.extend([prepared, view])
        for step in range(40):  # more than the ring has
            with orch.scope():
                orch.submit_sub(fill, TaskArgs().add_output([100]).add_scalar(step)).wait()
        with pytest.raises(ValueError, match="its scope has ended"):
            orch.submit_sub(total, TaskArgs().add(prepared))
        with pytest.raises(ValueError, match="its scope has ended"):
            orch.submit_sub(total, TaskArgs().add(torch.from_numpy(view)))

    worker.run(build)
    assert held[0].tolist() == [3] * 4
    assert held[1].tolist() == [3] * 3
    assert sum(worker._heap.in_use(ring) for ring in range(4)) == 1024
    held.clear()
    assert sum(worker._heap.in_use(ring) for ring in range(4)) == 0


def test_an_alias_of_a_shared_tensor_is_ordered_as_the_tensor_itself(
    worker: Worker, fill: Any, total: Any, gates: Gates
) -> None:
    late = worker.register(levels_tensor_tasks.fill_at_gate)
    t = share(torch.zeros(6))
    ends: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        own = orch.alloc((6,)).zero_()
        for name, tensor in (("t", t), ("own", own)):
            orch.submit_sub(
                late, TaskArgs().add(tensor, Tag.OUTPUT).add_scalar(2).add_scalar(str(gates.folder)).add_scalar(name)
            )
            for alias in (
                torch.from_numpy(tensor.numpy()),
                torch.utils.dlpack.from_dlpack(tensor[1:]),
                tensor.detach().numpy()[::2],
            ):
                ends.append(orch.submit_sub(total, TaskArgs().add(torch.as_tensor(alias))))
        alias = torch.utils.dlpack.from_dlpack(t[3:])
        ends.append(orch.submit_sub(fill, TaskArgs().add(alias, Tag.INOUT).add_scalar(7), after=list(ends)))
        gates.open()

    worker.run(build)
    assert [end.wait().payload for end in ends] == [12, 10, 6, 12, 10, 6, None]
    assert t.tolist() == [2, 2, 2, 7, 7, 7]
    worker.unregister(late)
