"""Memory that the runtime owns: it comes back, it runs out, and it is kept while a task needs it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import levels_stage
import levels_tensor_tasks
import pytest
import torch
import torch.utils.dlpack
from levels_stage import Gates
from levels_stage import gates as gates
from levels_tensor_tasks import share
from support.processes import wait_until

from pytest_aorta.runtime import Orchestrator, Outcome, Tag, TaskArgs, TaskError, TaskRef, Worker

#: Bytes of a ring, and of a tensor that takes a quarter of it.
RING, QUARTER = 4 * 4096, 1024


class Host(levels_stage.Host):
    """A worker with a SUB worker and small rings."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, levels_tensor_tasks)
        worker.init()

    def in_use(self) -> list[int]:
        return list(self.worker.memory_in_use)

    def wait_until_free(self) -> None:
        wait_until(lambda: self.in_use() == [0] * 4, "the return of all memory")
        assert self.worker.unfinished == 0


@pytest.fixture(scope="module")
def shared_host() -> Iterator[Host]:
    with Worker(3, num_sub_workers=1, heap_ring_size=RING, grace=0.1) as worker:
        yield Host(worker)


@pytest.fixture
def host(shared_host: Host) -> Iterator[Host]:
    """Everything is free before and after."""
    shared_host.wait_until_free()
    yield shared_host
    shared_host.wait_until_free()


def at(gates: Gates, name: str, tensor: torch.Tensor, value: int = 1) -> TaskArgs:
    args = TaskArgs().add(tensor, Tag.OUTPUT).add_scalar(value)
    return args.add_scalar(str(gates.folder)).add_scalar(name)


@pytest.mark.slow
@pytest.mark.statement(33)
def test_eight_runs_that_allocate_leave_nothing(host: Host) -> None:
    for number in range(8):
        sums: list[Any] = []

        def build(orch: Orchestrator, args: Any, config: Any, number: int = number, sums: list[Any] = sums) -> None:
            tensors = [orch.alloc((QUARTER // 4,)) for _ in range(4)]
            for tensor in tensors:
                orch.submit_sub(host.fill, TaskArgs().add(tensor, Tag.OUTPUT).add_scalar(number))
            sums.append(orch.submit_sub(host.total, TaskArgs().add(tensors[0]).add(tensors[3])))

        handle = host.worker.submit(build)
        handle.wait()
        assert sums[0].wait().payload == number * 2 * QUARTER // 4
        assert len(handle.records) == 5  # memory is no task
        host.wait_until_free()


@pytest.mark.statement(33)
def test_memory_is_free_when_its_scope_and_its_tasks_have_ended(host: Host, gates: Gates) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.alloc((3,))
        with orch.scope():
            orch.alloc((3,))
            assert host.in_use() == [QUARTER, QUARTER, 0, 0]
        assert host.in_use() == [QUARTER, 0, 0, 0]
        with ExitStack() as scopes:
            for depth in range(6):
                tensor = orch.alloc((1,), torch.int64)
                orch.submit_sub(host.fill_at_gate, at(gates, str(depth), tensor))
                scopes.enter_context(orch.scope())
        assert host.in_use() == [2 * QUARTER, QUARTER, QUARTER, 3 * QUARTER]  # leaving does not wait

    handle = host.worker.submit(build)
    gates.open()
    handle.wait()


@pytest.mark.statement(34)
def test_a_full_ring_makes_the_builder_wait_until_there_is_room(host: Host, gates: Gates) -> None:
    built = threading.Event()

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for number in range(5):
            with orch.scope():
                tensor = orch.alloc((RING // 4,), torch.uint8)
                orch.submit_sub(host.fill_at_gate, at(gates, str(number), tensor))
        built.set()

    thread = threading.Thread(target=host.worker.run, args=(build,))
    thread.start()
    wait_until(lambda: host.in_use() == [0, RING, 0, 0], "a ring that is full; the others are not concerned")
    assert not built.wait(0.05)
    gates.open()
    thread.join()

    assert built.is_set()


@pytest.mark.statement(34)
@pytest.mark.statement(23)
def test_a_ring_that_stays_full_is_an_error_that_names_the_knob(
    host: Host, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.worker._heap, "_patience", 0.05)

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        tensor = orch.alloc((RING,), torch.uint8)
        orch.submit_sub(host.fill_at_gate, at(gates, "a", tensor))
        with orch.scope():
            orch.alloc((1,))  # of another ring
        orch.alloc((1,))

    with pytest.raises(RuntimeError, match=r"ring 0 is full: waited 0\.05 s.*raise heap_ring_size"):
        host.worker.submit(build)
    gates.open()


@pytest.mark.statement(23)
def test_a_graph_that_raises_gives_its_memory_back(host: Host, gates: Gates) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        first, second = orch.alloc((4,)), orch.alloc((4,))
        orch.submit_sub(host.fill_at_gate, at(gates, "a", first))
        orch.submit_sub(host.fill, TaskArgs().add(first).add(second, Tag.OUTPUT).add_scalar(1))
        with orch.scope():
            orch.alloc((4,))
            raise LookupError("half way")

    with pytest.raises(LookupError):
        host.worker.submit(build)
    gates.wait_until_began("a")
    assert host.in_use()[0] > 0  # what runs keeps what it was given
    gates.open()


def test_memory_is_kept_for_a_task_that_has_not_run_when_its_scope_ends(host: Host, gates: Gates) -> None:
    """No other task gets it, so that what it finds there is what was written for it."""
    results = share(torch.zeros(3))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_sub(host.fill_at_gate, at(gates, "first", orch.alloc((1,))))
        for number in range(3):
            with orch.scope():
                tensor = orch.alloc((1,))
                orch.submit_sub(host.fill, TaskArgs().add(tensor, Tag.OUTPUT).add_scalar(number + 1))
                orch.submit_sub(host.increment, TaskArgs().add(tensor, Tag.INOUT))
                into = TaskArgs().add(tensor).add(results[number : number + 1], Tag.OUTPUT)
                orch.submit_sub(host.add, into)

    handle = host.worker.submit(build)
    gates.open()
    handle.wait()
    assert results.tolist() == [2, 3, 4]


@pytest.mark.statement(47)
def test_a_submission_allocates_the_outputs_that_have_a_shape_only(host: Host) -> None:
    seen: list[Any] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        filled = orch.submit_sub(host.fill, TaskArgs().add_output([2, 3]).add_scalar(7))
        [out] = filled.outputs
        seen.extend([out.shape, out.dtype])
        orch.submit_sub(host.increment, TaskArgs().add(out, Tag.INOUT))
        total = orch.submit_sub(host.total, TaskArgs().add(out))
        pair = TaskArgs().add_output([1], torch.int64)
        seen.append(len(orch.submit_sub_group(host.fill_half_and_boom, [pair]).outputs))
        seen.append(total.wait().payload)

    with pytest.raises(TaskError):
        host.worker.run(build)
    assert seen == [(2, 3), torch.float32, 1, 48.0]


@pytest.mark.statement(23)
@pytest.mark.statement(34)
@pytest.mark.statement(47)
def test_a_submission_that_raises_gives_its_memory_back(host: Host) -> None:
    x = share(torch.zeros(4))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for wrong in (
            TaskArgs().add(torch.zeros(4)).add_output([4]).add(x[:2], Tag.OUTPUT).add(x, Tag.OUTPUT),
            TaskArgs().add_output([4]).add_output([RING]),
        ):
            with pytest.raises(ValueError, match=r"write the same bytes|more than a whole ring"):
                orch.submit_sub(host.fill, wrong)
            host.wait_until_free()
        for shape in ((RING + 1,), (2, RING)):
            with pytest.raises(ValueError, match="are more than a whole ring of 16384; raise heap_ring_size"):
                orch.alloc(shape, torch.uint8)

    host.worker.run(build)
    with pytest.raises(TypeError, match=r"a size of the shape must be a whole number from 0, not 1\.5"):
        TaskArgs().add_output([1.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a size of the shape must be a whole number from 0, not -1"):
        TaskArgs().add_output([-1])


@pytest.mark.statement(48)
@pytest.mark.parametrize("size", [4, 2**19])  # with the message, and in a file
def test_an_input_in_private_memory_is_copied_when_it_is_submitted(host: Host, gates: Gates, size: int) -> None:
    x, out = torch.ones(size), share(torch.zeros(1))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        first = orch.submit_sub(host.fill_at_gate, at(gates, "a", out))
        gates.wait_until_began("a")
        later = orch.submit_sub(host.total, TaskArgs().add(x).add(x[1:]), after=[first])
        x.fill_(100)
        gates.open()
        assert later.wait().payload == 2 * size - 1
        assert orch.submit_sub(host.total, TaskArgs().add(x)).wait().payload == 100 * size

    host.worker.run(build)


# No task works on wrong data: bytes of a failed writer, memory that was let go, what an alias hides


@pytest.mark.statement(12)
@pytest.mark.statement(13)
def test_bytes_of_a_failed_writer_are_not_read_until_they_are_overwritten(host: Host) -> None:
    ours = share(torch.full((4,), -1.0))
    ends: list[Any] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for tensor in (orch.alloc((4,)), ours):
            tensor.fill_(-1)
            with orch.scope():
                orch.submit_sub(host.fill_half_and_boom, TaskArgs().add(tensor, Tag.OUTPUT)).wait()

            def read(tensor: torch.Tensor) -> Any:
                record = orch.submit_sub(host.total, TaskArgs().add(tensor)).wait()
                message = re.sub(r"\d+", "N", record.failure.message) if record.failure else ""
                return record.payload if record.ok else (record.outcome, message)

            ends.append(read(tensor))
            orch.submit_sub(host.fill, TaskArgs().add(tensor[:2], Tag.OUTPUT).add_scalar(5)).wait()
            ends.append(read(tensor[:2]))
            ends.append(read(tensor[1:]))
            orch.submit_sub(host.fill, TaskArgs().add(tensor[2:], Tag.OUTPUT).add_scalar(5)).wait()
            ends.append(read(tensor))

    with pytest.raises(TaskError, match="half way"):
        host.worker.run(build)

    first = (Outcome.SKIPPED, "fill_half_and_boom (task N) failed: sub_worker N: ValueError: half way")
    assert ends == [first, 10.0, first, 20.0] * 2


def test_new_memory_is_not_marked_by_what_failed_in_the_memory_before_it(host: Host) -> None:
    """The same bytes of the ring, used by one allocation after another."""

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for _step in range(4):
            with orch.scope():
                square = orch.alloc((40, 40))
                orch.submit_sub(host.fill_half_and_boom, TaskArgs().add(square[:, :7], Tag.OUTPUT)).wait()
                del square
            with orch.scope():
                assert orch.submit_sub(host.total, TaskArgs().add(orch.alloc((10, 4)).zero_())).wait().ok

    with pytest.raises(TaskError):
        host.worker.run(build)


def test_memory_whose_scope_is_over_is_refused_and_not_recycled_while_it_is_held(host: Host) -> None:
    held: list[Any] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        with orch.scope():
            ref = orch.submit_sub(host.fill, TaskArgs().add_output([4]).add_scalar(3))
            view = ref.outputs[0][1:].numpy()
        prepared = ref.outputs[0]
        ref.wait()
        held.extend([prepared, view])
        for step in range(40):  # more than the ring has
            with orch.scope():
                orch.submit_sub(host.fill, TaskArgs().add_output([100]).add_scalar(step)).wait()
        with pytest.raises(ValueError, match="its scope has ended"):
            orch.submit_sub(host.total, TaskArgs().add(prepared))
        with pytest.raises(ValueError, match="its scope has ended"):
            orch.submit_sub(host.total, TaskArgs().add(torch.from_numpy(view)))

    host.worker.run(build)
    assert held[0].tolist() == [3] * 4
    assert held[1].tolist() == [3] * 3
    assert sum(host.in_use()) == 1024
    held.clear()
    assert sum(host.in_use()) == 0


def test_a_ring_that_is_full_of_outputs_names_the_references_that_keep_them(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for step in range(20):
            with orch.scope():
                refs.append(orch.submit_sub(host.fill, TaskArgs().add_output([QUARTER]).add_scalar(step)))
                refs[-1].wait()

    monkeypatch.setattr(host.worker._heap, "_patience", 0.0)
    which = (
        r"beyond their scope keep 16384 \(4 are the outputs of references: <TaskRef \d+ fill: success>, .*, \.\.\.\)"
    )
    with pytest.raises(RuntimeError, match=which):
        host.worker.run(build)
    refs.clear()


def test_an_alias_of_a_shared_tensor_is_ordered_as_the_tensor_itself(host: Host, gates: Gates) -> None:
    t = share(torch.zeros(6))
    ends: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        own = orch.alloc((6,)).zero_()
        for name, tensor in (("t", t), ("own", own)):
            orch.submit_sub(host.fill_at_gate, at(gates, name, tensor, 2))
            for alias in (
                torch.from_numpy(tensor.numpy()),
                torch.utils.dlpack.from_dlpack(tensor[1:]),
                tensor.detach().numpy()[::2],
            ):
                ends.append(orch.submit_sub(host.total, TaskArgs().add(torch.as_tensor(alias))))
        alias = torch.utils.dlpack.from_dlpack(t[3:])
        ends.append(orch.submit_sub(host.fill, TaskArgs().add(alias, Tag.INOUT).add_scalar(7), after=list(ends)))
        gates.open()

    host.worker.run(build)
    assert [end.wait().payload for end in ends] == [12, 10, 6, 12, 10, 6, None]
    assert t.tolist() == [2, 2, 2, 7, 7, 7]
