"""Memory that the runtime owns: it comes back, it runs out, and it is kept while a task needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import levels_stage
import levels_tensor_tasks
import pytest
import torch
from levels_stage import Gates
from levels_stage import gates as gates
from levels_tensor_tasks import share
from support.processes import wait_until

from pytest_aorta.runtime import Orchestrator, Tag, TaskArgs, TaskError, Worker

#: Bytes of a ring, and of a tensor that takes a quarter of it.
RING, QUARTER = 4 * 4096, 1024


class Host(levels_stage.Host):
    """A worker with a SUB worker and small rings."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, levels_tensor_tasks)
        worker.init()

    def in_use(self) -> list[int]:
        return [self.worker._heap.in_use(ring) for ring in range(4)]

    def wait_until_free(self) -> None:
        wait_until(lambda: self.in_use() == [0] * 4, "the return of all memory")
        assert self.worker._dispatcher.graph.live == 0


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


def at(gates: Gates, name: str, tensor: torch.Tensor) -> TaskArgs:
    args = TaskArgs().add(tensor, Tag.OUTPUT).add_scalar(1)
    return args.add_scalar(str(gates.folder)).add_scalar(name)


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
def test_memory_that_no_task_uses_is_free_at_the_end_of_its_scope(host: Host) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.alloc((3,))
        with orch.scope():
            orch.alloc((3,))
            assert host.in_use() == [QUARTER, QUARTER, 0, 0]
        assert host.in_use() == [QUARTER, 0, 0, 0]

    host.worker.run(build)


@pytest.mark.statement(33)
def test_four_scopes_within_each_other_drain(host: Host, gates: Gates) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        with ExitStack() as scopes:
            for depth in range(6):
                tensor = orch.alloc((1,), torch.int64)
                orch.submit_sub(host.fill_at_gate, at(gates, str(depth), tensor))
                scopes.enter_context(orch.scope())
        assert host.in_use() == [QUARTER, QUARTER, QUARTER, 3 * QUARTER]  # leaving does not wait

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


@pytest.mark.statement(34)
def test_more_than_a_ring_fails_at_once(host: Host) -> None:
    for shape in ((RING + 1,), (2, RING)):
        with pytest.raises(ValueError, match="are more than a whole ring of 16384; raise heap_ring_size"):
            host.worker.run(lambda orch, args, config, shape=shape: orch.alloc(shape, torch.uint8))


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
                orch.submit_sub(add, into)

    add = host.worker.register(levels_tensor_tasks.add)
    handle = host.worker.submit(build)
    gates.open()
    handle.wait()
    assert results.tolist() == [2, 3, 4]
    host.worker.unregister(add)


@pytest.mark.statement(47)
def test_a_submission_allocates_the_outputs_that_have_a_shape_only(shared_host: Host) -> None:
    host = shared_host
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
    host.wait_until_free()


@pytest.mark.statement(47)
def test_they_are_taken_from_the_ring_of_their_scope_and_return_to_it(shared_host: Host) -> None:
    host = shared_host

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        with orch.scope():
            for _ in range(40):  # ten times as much as the ring has
                with orch.scope():
                    ref = orch.submit_sub(host.fill, TaskArgs().add_output([QUARTER]).add_scalar(1))
                ref.wait()
            assert host.in_use()[0] == 0

    host.worker.run(build)
    host.wait_until_free()


@pytest.mark.statement(47)
@pytest.mark.statement(23)
def test_a_submission_that_raises_gives_its_memory_back(shared_host: Host) -> None:
    host = shared_host
    x = share(torch.zeros(4))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for wrong in (
            TaskArgs().add(torch.zeros(4)).add_output([4]).add(x[:2], Tag.OUTPUT).add(x, Tag.OUTPUT),
            TaskArgs().add_output([4]).add_output([RING]),
        ):
            with pytest.raises(ValueError, match=r"write the same bytes|more than a whole ring"):
                orch.submit_sub(host.fill, wrong)
            host.wait_until_free()

    host.worker.run(build)
    with pytest.raises(TypeError, match=r"a size of the shape must be a whole number from 0, not 1\.5"):
        TaskArgs().add_output([1.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a size of the shape must be a whole number from 0, not -1"):
        TaskArgs().add_output([-1])


@pytest.mark.statement(48)
@pytest.mark.parametrize("size", [4, 2**19])  # with the message, and in a file
def test_an_input_in_private_memory_is_copied_when_it_is_submitted(shared_host: Host, gates: Gates, size: int) -> None:
    host = shared_host
    x, out = torch.ones(size), share(torch.zeros(1))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        gate = TaskArgs().add(out, Tag.OUTPUT).add_scalar(1).add_scalar(str(gates.folder)).add_scalar("a")
        first = orch.submit_sub(host.fill_at_gate, gate)
        gates.wait_until_began("a")
        later = orch.submit_sub(host.total, TaskArgs().add(x).add(x[1:]), after=[first])
        x.fill_(100)
        gates.open()
        assert later.wait().payload == 2 * size - 1
        assert orch.submit_sub(host.total, TaskArgs().add(x)).wait().payload == 100 * size

    host.worker.run(build)
    host.wait_until_free()
