"""Tensors between processes: what is written is seen, and seen only when it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import levels_tensor_tasks
import pytest
import torch
from levels_stage import Gates, Host, open_files, run_one
from levels_stage import gates as gates
from levels_tensor_tasks import share
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import Orchestrator, Tag, TaskArgs, TaskError, TaskRef, Worker
from pytest_aorta.runtime.graph import State


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Worker(3, num_sub_workers=2, grace=0.1) as worker:
        yield Host(worker, levels_tensor_tasks)


@pytest.fixture(scope="module")
def pod() -> Iterator[Host]:
    with Worker(4, grace=0.1) as top:
        top.add_worker(Worker(3, num_sub_workers=2))
        yield Host(top, levels_tensor_tasks)


def shared(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return share(torch.zeros(*shape, dtype=dtype))


def test_what_a_task_writes_is_seen_by_the_next_one_and_here(host: Host) -> None:
    a, b, c = shared(4), shared(4), shared(4)

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_sub(host.fill, TaskArgs().add(a, Tag.OUTPUT).add_scalar(2))
        orch.submit_sub(host.fill, TaskArgs().add(b, Tag.OUTPUT).add_scalar(3))
        orch.submit_sub(host.add, TaskArgs().add(a).add(b).add(c, Tag.OUTPUT))
        orch.submit_sub(host.increment, TaskArgs().add(c, Tag.INOUT))

    host.worker.run(build)

    assert (a.tolist(), b.tolist(), c.tolist()) == ([2] * 4, [3] * 4, [6] * 4)


def test_a_reader_waits_for_its_writers_and_for_no_other_task(host: Host, gates: Gates) -> None:
    x, y = shared(2, 4), shared(4)
    refs: dict[str, TaskRef] = {}

    def at(name: str, value: int) -> TaskArgs:
        return TaskArgs().add_scalar(value).add_scalar(str(gates.folder)).add_scalar(name)

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs["writer"] = orch.submit_sub(host.fill_at_gate, at("a", 1).add(x[0], Tag.OUTPUT))
        refs["other row"] = orch.submit_sub(host.total, TaskArgs().add(x[1]))
        refs["other memory"] = orch.submit_sub(host.total, TaskArgs().add(y))
        refs["same row"] = orch.submit_sub(host.total, TaskArgs().add(x[0]))
        refs["all rows"] = orch.submit_sub(host.total, TaskArgs().add(x))
        refs["no dependency"] = orch.submit_sub(host.total, TaskArgs().add(x, Tag.NO_DEP))

    handle = host.worker.submit(build)
    for name in ("other row", "other memory", "no dependency"):
        assert refs[name].wait(PATIENCE).payload == 0
    assert refs["same row"].state is refs["all rows"].state is State.PENDING
    gates.open()
    handle.wait()

    assert refs["same row"].wait().payload == refs["all rows"].wait().payload == 4


def test_views_arrive_as_they_are(host: Host) -> None:
    base = share(torch.arange(12, dtype=torch.int64).reshape(3, 4))
    views = [base, base[1:, ::2], base.t(), base[2, 3], base[:0], base.expand(2, 3, 4)[1]]
    args = TaskArgs()
    for view in views:
        args.add(view)

    seen = run_one(lambda orch: orch.submit_sub(host.look, args), host.worker).payload

    assert seen == [[view.tolist(), "torch.int64", list(view.stride())] for view in views]


def test_copies_of_memory_that_is_not_shared_live_as_long_as_their_task(host: Host) -> None:
    x = torch.ones(10)
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.extend(orch.submit_sub(host.open_files, TaskArgs().add(x).add(x[:2])) for _ in range(40))

    ours = open_files()
    host.worker.run(build)
    theirs = [ref.wait().payload for ref in refs]
    assert max(theirs) <= min(theirs) + 4
    assert open_files() <= ours + 8


def test_a_small_tensor_can_be_returned(host: Host) -> None:
    record = run_one(lambda orch: orch.submit_sub(host.give_tensor), host.worker)
    assert torch.equal(record.payload, torch.ones(3))
    assert run_one(lambda orch: orch.submit_sub(host.give_item), host.worker).payload == {"loss": 1.0}


def test_memory_of_earlier_runs_is_let_go(host: Host) -> None:
    def round_trip() -> int:
        x = shared(1000)
        args = TaskArgs().add(x, Tag.INOUT)
        assert run_one(lambda orch: orch.submit_sub(host.increment, args), host.worker).ok
        pair = run_one(lambda orch: orch.submit_sub_group(host.open_files, [None, None]), host.worker)
        return sum(member.payload for member in pair.members)

    first, ours = round_trip(), open_files()
    assert {round_trip() for _ in range(20)} <= set(range(first + 3))
    assert open_files() <= ours + 2


def test_two_runs_at_once_do_not_take_each_others_memory_away(host: Host) -> None:
    """The memory of a run is let go while tasks of the next one are being sent."""
    tensors = [shared(1) for _ in range(50)]
    handles = []
    for tensor in tensors:
        args = TaskArgs().add(tensor, Tag.INOUT)
        handles.append(host.worker.submit(lambda orch, _, config, args=args: orch.submit_sub(host.increment, args)))
    for handle in handles:
        handle.wait()
    assert {tensor.item() for tensor in tensors} == {1.0}


def test_a_successor_sees_the_same_memory(host: Host) -> None:
    x = shared(2)
    die = host.worker.register("levels_tasks:die")
    args = TaskArgs().add(x, Tag.INOUT)

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        orch.submit_sub(host.increment, args)
        orch.submit_sub_group(die, [None, None])
        orch.submit_sub(host.increment, args)

    with pytest.raises(TaskError, match="SIGKILL"):
        host.worker.run(build)
    assert x.tolist() == [2, 2]
    host.worker.unregister(die)


@pytest.mark.statement(44)
def test_memory_of_level_4_is_that_of_a_sub_task_two_levels_below(pod: Host) -> None:
    x = shared(2, 3)
    through = pod.worker.register(levels_tensor_tasks.Through(pod.fill))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_next_level(through, TaskArgs().add(x[1], Tag.OUTPUT).add_scalar(7))

    pod.worker.run(build)
    assert x.tolist() == [[0, 0, 0], [7, 7, 7]]
    pod.worker.unregister(through)


@pytest.mark.statement(44)
def test_dependencies_above_hold_for_what_is_done_below(pod: Host) -> None:
    x, y = shared(3), shared(3)
    fill = pod.worker.register(levels_tensor_tasks.Through(pod.fill))
    between = pod.worker.register(levels_tensor_tasks.Between(pod.fill, pod.add))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_next_level(fill, TaskArgs().add(x, Tag.OUTPUT).add_scalar(5))
        orch.submit_next_level(between, TaskArgs().add(x).add(y, Tag.OUTPUT).add_scalar(0.5))

    for _ in range(3):
        x.zero_()
        y.zero_()
        pod.worker.run(build)
        assert (x.tolist(), y.tolist()) == ([5] * 3, [5.5] * 3)
    wait_until(lambda: pod.worker._dispatcher.graph.live == 0, "the end of all nodes")
