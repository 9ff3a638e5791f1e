"""Tensors of every kind between processes: what is written is seen; a bad one harms no other task."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import levels_tensor_tasks
import pytest
import torch
from levels_stage import Gates, Host, open_files, run_one
from levels_stage import gates as gates
from levels_tensor_tasks import as_bytes, share
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import (
    HazardWarning,
    Orchestrator,
    Outcome,
    SlotArgs,
    Tag,
    TaskArgs,
    TaskError,
    TaskRef,
    Worker,
)
from pytest_aorta.runtime.graph import State
from pytest_aorta.runtime.tensors import descriptor_of

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Worker(3, num_sub_workers=2, grace=0.1) as worker:
        yield Host(worker, levels_tensor_tasks)


def shared(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return share(torch.zeros(*shape, dtype=dtype))


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


def test_copies_of_memory_that_is_not_shared_live_as_long_as_their_task(host: Host) -> None:
    x = torch.ones(10)
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.extend(orch.submit_sub(host.open_files, TaskArgs().add(x).add(x[:2])) for _ in range(40))

    run_one(lambda orch: orch.submit_sub(host.open_files), host.worker)  # whose processes start now
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
    """Each is a process of its own, whose crash ends nothing else."""
    x = shared(2)
    address = x.data_ptr()
    die = host.worker.register("levels_tasks:die")
    args = TaskArgs().add(x, Tag.INOUT)

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        orch.submit_sub(host.increment, args).result()
        assert orch.submit_sub(host.process).result() != os.getpid()
        orch.submit_sub_group(die, [None, None]).wait()
        orch.submit_sub(host.increment, args).result()
        assert x.data_ptr() == address  # written in place: nothing was sent back

    with pytest.raises(TaskError, match="SIGKILL"):
        host.worker.run(build)
    assert x.tolist() == [2, 2]
    host.worker.unregister(die)


@pytest.mark.statement(44)
def test_memory_of_level_4_is_that_of_a_sub_task_two_levels_below() -> None:
    x, y = shared(2, 3), shared(3)
    with Worker(4, grace=0.1) as top:
        top.add_worker(Worker(3, num_sub_workers=2))
        pod = Host(top, levels_tensor_tasks)
        fill = top.register(levels_tensor_tasks.Through(pod.fill))
        between = top.register(levels_tensor_tasks.Between(pod.fill, pod.add))

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            orch.submit_next_level(fill, TaskArgs().add(x[1], Tag.OUTPUT).add_scalar(5))
            orch.submit_next_level(between, TaskArgs().add(x[1]).add(y, Tag.OUTPUT).add_scalar(0.5))

        for _ in range(3):
            x.zero_()
            y.zero_()
            top.run(build)
            assert (x.tolist(), y.tolist()) == ([[0] * 3, [5] * 3], [5.5] * 3)
        wait_until(lambda: top.unfinished == 0, "the end of all nodes")


# Tensors of every kind, against a call in this process

#: Everything from here on is passed as INPUT, INOUT and OUTPUT, except where a write would be refused.
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.complex64,
    torch.complex32,
    torch.uint16,
    torch.int64,
]


def kinds() -> list[torch.Tensor]:
    """Tensors of many kinds in shared memory, with the same content every time."""
    memory = share(torch.arange(64, dtype=torch.int64).to(torch.uint8))
    found = [share(torch.zeros(0)), torch.zeros(0, 3), share(torch.zeros(2, 2))[1:1], share(torch.tensor(3.0))]
    for dtype in DTYPES:
        items = 64 // dtype.itemsize
        whole = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, (items // 2, 2), (2, 1))
        found += [whole, whole[1:, 0], whole.t(), whole[1, 1]]
    leaf = share(torch.ones(3)).requires_grad_()
    return [*found, leaf, torch.nn.Parameter(share(torch.ones(2, 2))), share(torch.ones(4)).view(2, 2)]


Submit = Callable[[Orchestrator, TaskArgs], TaskRef]


@pytest.fixture(
    scope="module",
    params=["slots", pytest.param("other host", marks=pytest.mark.slow)],
)
def inverter(request: pytest.FixtureRequest) -> Iterator[tuple[Worker, Submit]]:
    """Submits a task that inverts all bits of its tensors, of the first as many as its scalar says."""
    if request.param == "slots":
        with Worker(3, num_sub_workers=1) as worker:
            sub = worker.register(levels_tensor_tasks.invert)
            yield worker, lambda orch, args: orch.submit_sub(sub, args)
        return
    with Worker(4) as worker:
        worker.add_worker(Worker(3, num_sub_workers=1), host="popen")
        onward = worker.register(levels_tensor_tasks.Onward(worker.register(levels_tensor_tasks.invert)))
        yield worker, lambda orch, args: orch.submit_next_level(onward, args)


@pytest.mark.parametrize("tag", [Tag.INPUT, Tag.INOUT, Tag.OUTPUT, Tag.OUTPUT_EXISTING])
def test_every_kind_is_what_it_would_be_in_this_process(inverter: tuple[Worker, Submit], tag: Tag) -> None:
    worker, submit = inverter
    ours, theirs = kinds(), kinds()
    seen, expected = [], []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for mine, other in zip(ours, theirs, strict=True):
            args = TaskArgs().add(mine, tag).add_scalar(int(tag.writes))
            seen.append(submit(orch, args).wait())
            expected.append(levels_tensor_tasks.invert(SlotArgs((other,), (int(tag.writes),))))

    worker.run(build)

    assert [record.failure for record in seen] == [None] * len(ours)
    for mine, other in zip(ours, theirs, strict=True):
        assert as_bytes(mine).tolist() == as_bytes(other).tolist()
    assert [record.payload for record in seen] == expected


def test_private_memory_and_views_of_one_memory_are_read_as_they_are(inverter: tuple[Worker, Submit]) -> None:
    worker, submit = inverter
    base = torch.arange(24.0).reshape(4, 6)
    tensors = [base, base[1:], base[:, 2], base[0, 0], base.t(), base[:1].expand(3, 6), torch.zeros(0), base[::2, ::3]]
    tensors.append(base.to(torch.uint8)[:, 2])  # of single bytes, a flat view needs no copy
    args = TaskArgs().add_scalar(0)
    for tensor in [*tensors, *(share(tensor.clone()) for tensor in tensors)]:
        args.add(tensor)

    record = run_one(lambda orch: submit(orch, args), worker)

    assert record.payload == 2 * [as_bytes(tensor).tolist() for tensor in tensors]


def test_what_cannot_be_sent_fails_alone() -> None:
    """The tasks before and after it run, on the process that was there before."""
    broken, good = share(torch.zeros(4)), share(torch.zeros(4))
    refs: list[TaskRef] = []

    with Worker(3, num_sub_workers=1) as worker:
        invert, pid = worker.register(levels_tensor_tasks.invert), worker.register(levels_tensor_tasks.process)
        worker.init()
        with closed_file(broken):

            def build(orch: Orchestrator, _: Any, config: Any) -> None:
                for _ in range(5):
                    refs.append(orch.submit_sub(pid))
                    for tensor in (broken, torch.zeros(0), good):
                        refs.append(orch.submit_sub(invert, TaskArgs().add(tensor, Tag.INOUT).add_scalar(1)))

            worker.submit(build)
            found = [ref.wait() for ref in refs]

    assert len({record.payload for record in found[::4]}) == 1
    assert [record.ok for record in found] == [True, False, True, True] + 4 * [True, False, True, True]
    assert found[1].failure is not None
    assert found[1].failure.message == (
        "sub_worker 0: RuntimeError: shared memory of 16 bytes cannot be handed over: its file is closed"
    )


@contextlib.contextmanager
def closed_file(tensor: torch.Tensor) -> Iterator[None]:
    """Within, the file of shared memory is closed; afterwards torch has something to close again."""
    fd, _ = descriptor_of(tensor.untyped_storage())
    kept = os.dup(fd)
    os.close(fd)
    try:
        yield
    finally:
        os.dup2(kept, fd)
        os.close(kept)


# What a worker with ``check=True`` warns of, and the trace of a run


@pytest.fixture(scope="module")
def checking() -> Iterator[Worker]:
    with Worker(3, num_sub_workers=2, grace=0.1, check=True) as worker:
        yield worker


def test_writes_that_nothing_orders_are_warned_of(checking: Worker, gates: Gates) -> None:
    write, total = checking.register(levels_tensor_tasks.fill_at_gate), checking.register(levels_tensor_tasks.total)
    set_all = checking.register(levels_tensor_tasks.fill)
    v, x, y, z = (share(torch.zeros(8)) for _ in range(4))

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        def written(tensor: torch.Tensor, tag: Tag, *after: Any) -> Any:
            args = TaskArgs().add_scalar(2).add(tensor, tag)
            return orch.submit_sub(set_all, args, after=after)

        first = TaskArgs().add(x, Tag.OUTPUT).add_scalar(1).add_scalar(str(gates.folder)).add_scalar("a")
        orch.submit_sub(write, first)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader = orch.submit_sub(total, TaskArgs().add(x[:4]))
            written(x[4:], Tag.INOUT)
            written(x[:4], Tag.INOUT, reader)
            written(y, Tag.OUTPUT)
            orch.submit_sub(total, TaskArgs().add(z, Tag.NO_DEP), after=[reader])
            written(z, Tag.OUTPUT)
            orch.submit_sub(total, TaskArgs().add(v), after=[reader])
        with pytest.warns(HazardWarning, match=r"fill \(task \d+\) writes bytes that total \(task \d+\) re") as found:
            written(v[:2], Tag.OUTPUT)
        assert found[0].filename == __file__
        gates.open()

    checking.run(build)
    for handle in (write, total, set_all):
        checking.unregister(handle)


def test_a_write_through_an_input_is_warned_of(checking: Worker) -> None:
    set_all = checking.register(levels_tensor_tasks.fill)
    x = share(torch.zeros(8))

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        nothing = orch.submit_sub(set_all, TaskArgs().add(x).add_scalar(0))
        orch.submit_sub(set_all, TaskArgs().add(x[2:]).add_scalar(5), after=[nothing])

    handle = checking.submit(build)
    with pytest.warns(HazardWarning, match=r"tensor 0 of fill \(task \d+\), an INPUT, has changed") as found:
        handle.wait()
    assert len(found) == 1
    checking.unregister(set_all)


def test_a_trace_shows_when_and_where_each_task_ran(checking: Worker, tmp_path: Path) -> None:
    boom, total = (
        checking.register(levels_tensor_tasks.fill_half_and_boom),
        checking.register(levels_tensor_tasks.total),
    )
    x = share(torch.zeros(2))

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        both = orch.submit_sub_group(total, [TaskArgs().add(x), None])
        orch.submit_sub(boom, TaskArgs().add(x, Tag.INOUT), after=[both])
        orch.submit_sub(total, TaskArgs().add(x))  # never starts

    handle = checking.submit(build)
    with pytest.raises(TaskError):
        handle.wait()
    handle.trace(tmp_path / "run.json")

    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    ran = [(event["name"], rows[event["tid"]], event["args"]["outcome"]) for event in events if event["ph"] == "X"]
    assert sorted(rows.values()) == ["sub_worker 0", "sub_worker 1"]
    assert [(name, outcome) for name, _, outcome in ran] == [
        ("total", "success"),
        ("total", "success"),
        ("fill_half_and_boom", "task_failure"),
    ]
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["args"]["waited_ms"] >= 0
    checking.unregister(boom)
    checking.unregister(total)


@pytest.mark.parametrize("size", [2**power + extra for power in (10, 14, 15, 18, 20) for extra in (-1, 1)])
def test_messages_of_every_size_arrive_whole_in_both_directions(host: Host, size: int) -> None:
    private, values = torch.arange(size, dtype=torch.uint8), bytes(range(256)) * (size // 256)
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        for number in range(3):  # the pages of the one before are used again
            refs.append(orch.submit_sub(host.give_back, TaskArgs().add(private[number:]), values[number:]))

    host.worker.run(build)
    for number, ref in enumerate(refs):
        tensor, config = ref.result()
        assert torch.equal(tensor, private[number : number + 2**18])
        assert config == values[number : number + 2**18]


def test_large_values_arrive_after_a_task_that_has_closed_and_opened_files(host: Host) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, _: Any, config: Any) -> None:
        refs.append(orch.submit_sub(host.open_other_files, None, "x" * 2**17))
        refs.append(orch.submit_sub(host.give_back, TaskArgs(), "y" * 2**17))

    handle = host.worker.submit(build)
    with contextlib.suppress(TaskError):
        handle.wait()
    assert refs[0].wait().payload == [b"mine"] * 3  # nothing was written there
    assert refs[1].wait().ok or refs[1].wait().outcome is Outcome.ENDPOINT_FAILURE
