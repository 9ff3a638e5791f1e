"""Runs: building their graphs, records of tasks, what a failure does to the rest, waiting, order, rings, cancelling."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import re
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import wait as futures_wait
from typing import Any

import levels_tasks
import pytest
import torch
from levels_stage import Gates, Host, failure_of, run_sub, scalars
from levels_stage import gates as gates
from levels_stage import host as host
from levels_stage import no_torch as no_torch
from levels_tensor_tasks import share
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import (
    CallableHandle,
    Orchestrator,
    Outcome,
    RunHandle,
    Tag,
    TaskArgs,
    TaskError,
    TaskRef,
    Worker,
)
from pytest_aorta.runtime.graph import State


def test_a_record_says_all_that_is_known_of_a_task(host: Host) -> None:
    record = run_sub(host.worker, host.echo, 7, 1.5, True, "seven")

    assert record.ok
    assert record.outcome is Outcome.SUCCESS
    assert record.payload == {"scalars": [7, 1.5, True, "seven"], "config": None}
    assert record.failure is None
    assert record.worker in ("sub_worker 0", "sub_worker 1")
    assert record.label == "echo"
    assert record.started is not None
    assert record.ended is not None
    assert record.submitted <= record.started <= record.ended


@pytest.mark.statement(17)
def test_run_raises_once_with_type_and_message_and_the_next_run_is_clean(host: Host) -> None:
    def bad(orch: Orchestrator, args: Any, config: Any) -> None:
        for text in ("first", "second"):
            orch.submit_sub(host.boom, scalars(text)).wait(PATIENCE)

    with pytest.raises(TaskError, match=r"sub_worker \d: ValueError: first") as raised:
        host.worker.run(bad)
    record = raised.value.record
    assert record.payload is None
    assert failure_of(record) == (Outcome.TASK_FAILURE, "ValueError", f"{record.worker}: ValueError: first")
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        shown = "".join(traceback.format_exception(error))
        assert re.search(r'File ".*levels_tasks.py", line \d+, in boom\n *raise ValueError', shown)
        assert "The above exception was the direct cause of the following exception:" in shown
        assert "leaf.py" not in shown.partition("The above")[0]
        assert shown.endswith("ValueError: first\n")

    host.worker.run(lambda orch, args, config: orch.submit_sub(host.nothing))


def test_after_takes_tasks_of_this_worker_and_no_others(host: Host) -> None:
    with Worker(3, num_sub_workers=1) as other:
        foreign: list[TaskRef] = []
        theirs = other.register(levels_tasks.nothing)
        other.run(lambda orch, args, config: foreign.append(orch.submit_sub(theirs)))
        with pytest.raises(ValueError, match="is not a task of this worker"):
            host.worker.run(lambda orch, args, config: orch.submit_sub(host.nothing, after=foreign))


@pytest.mark.statement(18)
def test_with_fail_fast_a_submission_after_a_failure_raises_it_again(host: Host) -> None:
    reached = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        orch.submit_sub(host.boom, scalars("original")).wait(PATIENCE)
        reached.append("before")
        orch.submit_sub(host.nothing)
        reached.append("after")

    with pytest.raises(TaskError, match="ValueError: original"):
        host.worker.submit(build, fail_fast=True)
    assert reached == ["before"]

    host.worker.run(lambda orch, args, config: orch.submit_sub(host.nothing), fail_fast=True)


@pytest.mark.statement(19)
def test_an_exception_of_the_graph_is_raised_by_submit_as_it_is(host: Host, gates: Gates) -> None:
    class OfTheGraph(Exception):
        pass

    refs = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_sub_group(host.gate, [gates.at("a"), gates.at("b")]))
        refs.append(orch.submit_sub(host.gate, gates.at("never"), after=refs))
        raise OfTheGraph("half way")

    with pytest.raises(OfTheGraph, match="half way"):
        host.worker.submit(build)

    never = refs[1].wait(PATIENCE)
    assert never.outcome is Outcome.CANCELLED
    assert refs[0].record is None  # what runs, runs on
    gates.open()
    assert refs[0].wait(PATIENCE).ok
    assert not gates.began("never")
    host.worker.run(lambda orch, args, config: orch.submit_sub(host.nothing))


@pytest.mark.statement(30)
def test_submit_returns_before_completion_and_wait_can_be_repeated(host: Host, gates: Gates) -> None:
    handle = host.worker.submit(lambda orch, args, config: orch.submit_sub(host.gate_then_boom, gates.at("a")))

    assert not handle.done
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
        handle.wait(0.01)
    assert handle.records == []

    gates.open()
    for _ in range(3):
        with pytest.raises(TaskError, match="ValueError: a"):
            handle.wait()
    assert handle.done


@pytest.mark.statement(31)
def test_with_block_a_third_run_is_built_once_one_of_two_has_ended(host: Host, gates: Gates) -> None:
    refs: list[TaskRef] = []
    asked, built = threading.Event(), threading.Event()

    def submit_all() -> None:
        for name in ("first", "second"):
            args = gates.at(name)
            host.worker.submit(
                lambda orch, _, config, args=args: refs.append(orch.submit_sub(host.gate, args)), block=True
            )
        asked.set()
        host.worker.submit(lambda orch, args, config: built.set(), block=True)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(submit_all)
        asked.wait(PATIENCE)
        gates.wait_until_began("first", "second")
        assert not built.wait(0.05)
        gates.open("first")
        assert built.wait(PATIENCE)
        assert not refs[1].done()
        gates.open()
        running.result(PATIENCE)
    refs[1].wait(PATIENCE)


@pytest.mark.statement(32)
def test_what_a_run_was_given_lives_until_it_has_ended_and_no_longer(host: Host, gates: Gates) -> None:
    class Thing:
        pass

    thing, config = Thing(), Thing()
    watched: list[weakref.ref[Any]] = [weakref.ref(thing), weakref.ref(config)]

    class Build:
        def __call__(self, orch: Orchestrator, args: Thing, config: Thing) -> None:
            task = gates.at("a")
            watched.append(weakref.ref(task))
            orch.submit_sub(host.gate, task)

    build = Build()
    watched.append(weakref.ref(build))
    handle = host.worker.submit(build, thing, config)
    del thing, config, build
    gc.collect()

    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    assert not handle.done
    kept = [watch() is not None for watch in watched]
    assert kept == [True, True, True, False]  # of the arguments of its task there is a copy
    gates.open()
    handle.wait()
    gc.collect()
    assert [watch() for watch in watched] == [None] * 4


# Several runs, and their ends as futures


def test_runs_share_the_slots_and_the_earlier_one_comes_first_unless_another_has_priority(
    host: Host, gates: Gates
) -> None:
    def submit(*names: str, priority: int = 0) -> RunHandle:
        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            for name in names:
                orch.submit_sub(host.gate, gates.at(name))

        return host.worker.submit(build, priority=priority)

    handles = [submit("a")]
    host.worker.run(lambda orch, args, config: None)  # an empty one waits for nothing
    handles.append(submit("b"))  # on the idle slot
    gates.wait_until_began("a", "b")
    handles += [submit("c", "d"), submit("e"), submit("first", priority=1)]
    gates.open("b")
    for name, following in (("first", "c"), ("c", "d"), ("d", "e")):
        gates.wait_until_began(name)
        assert not gates.began(following)
        gates.open(name)
    gates.open()
    for handle in handles:
        handle.wait(PATIENCE)


def test_tasks_of_two_runs_on_the_same_memory_keep_their_order_but_share_no_failure(host: Host, gates: Gates) -> None:
    shared, apart = share(torch.zeros(4)), share(torch.zeros(4))

    def submit(*tasks: tuple[str, CallableHandle, Tag, torch.Tensor]) -> list[TaskRef]:
        refs: list[TaskRef] = []

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            refs.extend(orch.submit_sub(handle, gates.at(name).add(t, tag)) for name, handle, tag, t in tasks)

        host.worker.submit(build)
        return refs

    writer, reader = submit(
        ("writes", host.gate_then_boom, Tag.OUTPUT, shared), ("reads", host.gate, Tag.INPUT, shared[2:])
    )
    after_all, beside = submit(("after", host.gate, Tag.OUTPUT, shared), ("beside", host.gate, Tag.OUTPUT, apart))
    gates.wait_until_began("writes", "beside")
    gates.open("beside")
    beside.wait(PATIENCE)
    assert after_all.state is State.PENDING
    gates.open()
    assert after_all.result(PATIENCE) == "after"
    assert (writer.wait().outcome, reader.wait().outcome) == (Outcome.TASK_FAILURE, Outcome.SKIPPED)


def test_references_and_runs_are_futures(host: Host, gates: Gates) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.extend(orch.submit_sub(host.gate, gates.at(name)) for name in "abc")
        refs.append(orch.submit_sub(host.boom, scalars("no")))

    handle = host.worker.submit(build)
    called: list[Any] = []
    gates.wait_until_began("a", "b")
    for ref in refs:
        ref.add_done_callback(called.append)
    handle.add_done_callback(called.append)
    with pytest.raises(TimeoutError):
        handle.future().result(0.01)
    gates.open("b")
    assert next(as_completed(refs, PATIENCE)) is refs[1]
    assert refs[2].cancel()
    refs[2].wait(PATIENCE)
    gates.open()
    done, left = futures_wait(refs, PATIENCE)
    assert (done, left) == (set(refs), set())
    assert not refs[0].cancel()
    assert [ref.cancelled() for ref in refs] == [False, False, True, False]
    assert isinstance(refs[3].exception(), ValueError)
    assert refs[0].exception() is None
    wait_until(lambda: len(called) == 5, "all callbacks")
    assert called[-1] is handle


def test_references_and_runs_can_be_awaited(host: Host, gates: Gates) -> None:
    refs: list[Any] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.extend(orch.submit_sub(host.echo, scalars(number)) for number in range(3))
        refs.append(orch.map(host.own_number, range(5)))
        refs.append(orch.submit_sub(host.gate, gates.at("endless")))

    async def main() -> None:
        handle = host.worker.submit(build)
        *echoes, mapped = await asyncio.gather(*refs[:-1])
        assert [echo["scalars"] for echo in echoes] == [[0], [1], [2]]
        assert mapped == [0, 1, 2, 3, 4]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(refs[-1], 0.05)
        assert refs[-1].wait(PATIENCE).outcome is Outcome.CANCELLED
        with pytest.raises(TaskError):
            await handle
        await host.worker.submit(lambda orch, args, config: orch.submit_sub(host.nothing))

    asyncio.run(main())


# Building


def test_what_has_another_name_upstream_has_that_one_as_well(host: Host) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        assert host.worker.get_orchestrator() is orch
        with orch.scope() as scope:
            ref = scope.submit_sub(host.nothing, TaskArgs().add_tensor(torch.zeros(2)))
        assert ref.slot_id == ref.id

    handle = host.worker.submit(build)
    handle.result(PATIENCE)
    with pytest.raises(RuntimeError, match="an orchestrator belongs to a run"):
        host.worker.get_orchestrator()


def test_runs_and_tasks_can_be_cancelled_before_and_while_they_run(host: Host, gates: Gates) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_sub(host.gate, gates.at("a")))
        refs.append(orch.submit_sub(host.gate, gates.at("never"), after=refs))
        refs.append(orch.submit_sub(host.gate, gates.at("b")))
        refs.append(orch.submit_sub(host.gate, gates.at("later"), after=[refs[2]]))

    handle = host.worker.submit(build)
    gates.wait_until_began("a", "b")
    refs[0].cancel("changed my mind")  # and only its consumers go with it
    assert [failure_of(ref.wait(PATIENCE))[0] for ref in refs[:2]] == [Outcome.CANCELLED, Outcome.SKIPPED]
    handle.cancel("no longer needed")
    assert not handle.done
    assert failure_of(refs[3].wait(PATIENCE)) == (Outcome.CANCELLED, "Cancelled", "no longer needed")
    handle.cancel("really not", running=True)
    with pytest.raises(TaskError, match="changed my mind"):
        handle.wait(PATIENCE)

    assert failure_of(refs[2].wait()) == (Outcome.CANCELLED, "Cancelled", "really not")
    assert sorted(gates.log()) == ["a began", "b began"]
    done: list[TaskRef] = []
    host.worker.run(lambda orch, args, config: done.append(orch.submit_sub(host.nothing)))
    done[0].cancel("too late")
    assert done[0].wait().ok


def test_tasks_are_submitted_while_the_graph_is_built_not_later(host: Host) -> None:
    kept: list[Any] = []
    host.worker.run(lambda *given: kept.extend(given), TaskArgs, {"a": 1})

    orch = kept[0]
    assert kept[1:] == [TaskArgs, {"a": 1}]
    with pytest.raises(RuntimeError, match="the run is closed"):
        orch.submit_sub(host.nothing)
    with pytest.raises(RuntimeError, match="the run is closed"), orch.scope():
        pass


@pytest.mark.statement(40)
def test_runs_within_a_graph_its_end_and_too_many_scopes_are_refused(host: Host) -> None:
    with pytest.raises(RuntimeError, match="submit tasks through orch"):
        host.worker.run(lambda orch, args, config: host.worker.run(lambda orch, args, config: None))
    with pytest.raises(RuntimeError, match="close within a run"):
        host.worker.run(lambda orch, args, config: host.worker.close())

    def nest(orch: Orchestrator, args: Any, config: Any) -> None:
        with orch.scope():
            nest(orch, args, config)

    with pytest.raises(RuntimeError, match="at most 64 scopes"):
        host.worker.run(nest)

    assert run_sub(host.worker, host.nothing).ok


@pytest.mark.statement(23)
def test_a_submission_that_raises_leaves_nothing_behind(host: Host) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refused: list[Callable[[], object]] = [
            lambda: orch.submit_sub_group(host.nothing, []),
            lambda: orch.submit_sub_group(host.nothing, [None] * 3),
            lambda: orch.submit_next_level(host.nothing),
            *(lambda timeout=it: orch.submit_sub(host.nothing, timeout=timeout) for it in (0, -1, math.inf, math.nan)),
            lambda: orch.submit_sub(CallableHandle("sha256:", "nobody", 0, "forged")),
        ]
        for wrong in refused:
            with pytest.raises(ValueError):
                wrong()

    handle = host.worker.submit(build)
    handle.wait(PATIENCE)

    assert handle.records == []
    assert handle.done
    assert host.worker.unfinished == 0
    assert run_sub(host.worker, host.nothing).ok


WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (
        lambda orch, h: orch.submit_sub(print),
        "expected a CallableHandle returned by Worker.register, not <built-in function",
    ),
    (lambda orch, h: orch.submit_sub(h, [1]), r"must be TaskArgs or None, not \[1\] \(list\); build them with Task"),
    (lambda orch, h: orch.submit_sub(h, torch.zeros(2)), r"must be TaskArgs or None, not tensor.* \(Tensor\)"),
    (lambda orch, h: orch.submit_sub(h, after=orch.submit_sub(h)), r"after must be a list of tasks.* \(TaskRef\)"),
    (lambda orch, h: orch.submit_sub(h, after=[3]), r"after must be a list of tasks.*, not 3 \(int\)"),
    (lambda orch, h: orch.submit_sub(h, timeout="3"), r"timeout must be a number of seconds above 0, not '3' \(str\)"),
    (lambda orch, h: orch.submit_sub_group(h, TaskArgs()), r"args_list must be a list of TaskArgs, one per member"),
    (lambda orch, h: orch.submit_next_level_group(h, [None], workers=0), r"workers must be a list of ids, not 0"),
    (lambda orch, h: orch.alloc(3), r"shape must be a list of whole numbers, not 3 \(int\)"),
    (lambda orch, h: orch.alloc([2.5]), r"a size of the shape must be a whole number from 0, not 2.5 \(float\)"),
    (lambda orch, h: orch.alloc([2], "float32"), r"dtype must be a torch.dtype or None, not 'float32' \(str\)"),
    (lambda orch, h: orch.submit_sub(h).wait("3"), r"timeout must be a number of seconds or None, not '3' \(str\)"),
]


def test_arguments_of_a_wrong_type_name_the_right_one(host: Host) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for submit, message in WRONG:
            with pytest.raises(TypeError, match=message):
                submit(orch, host.nothing)

    host.worker.run(build)


# The ring of a run: a fixed number of slots for tasks that have not ended


@pytest.mark.statement(46)
def test_a_submission_to_a_full_ring_waits_until_a_task_has_ended(gates: Gates) -> None:
    refs: list[TaskRef] = []
    with Worker(3, num_sub_workers=1, ring_size=3) as worker:
        gate = worker.register(levels_tasks.gate)

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            refs.extend(orch.submit_sub(gate, gates.at(name)) for name in "abcd")

        building = threading.Thread(target=worker.run, args=(build,))
        worker.init()
        building.start()
        gates.wait_until_began("a")
        wait_until(lambda: len(refs) == 3, "a submission that waits")
        assert worker.unfinished == 3
        gates.open("a")
        gates.wait_until_began("b")
        gates.open()
        building.join(PATIENCE)
    assert [ref.wait().payload for ref in refs] == ["a", "b", "c", "d"]


@pytest.mark.statement(46)
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_it_raises_where_that_is_asked_for_and_leaves_nothing(gates: Gates, timeout: float) -> None:
    with Worker(3, num_sub_workers=1, ring_size=2, ring_timeout=timeout) as worker:
        gate = worker.register(levels_tasks.gate)

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            refs = [orch.submit_sub(gate, gates.at(name)) for name in "ab"]
            with pytest.raises(RuntimeError, match=r"the ring is full: 2 tasks of this run have not .* ring_size"):
                orch.submit_sub(gate, gates.at("c"))
            gates.open()
            assert all(ref.wait(PATIENCE).ok for ref in refs)
            assert orch.submit_sub(gate, gates.at("d")).wait(PATIENCE).ok

        handle = worker.submit(build)
        handle.wait()
        assert [record.payload for record in handle.records] == ["a", "b", "d"]
        assert worker.unfinished == 0


@pytest.mark.statement(46)
def test_a_submission_that_waits_ends_with_its_run(gates: Gates) -> None:
    refused: list[str] = []
    with Worker(3, num_sub_workers=1, ring_size=1) as worker:
        gate = worker.register(levels_tasks.gate)

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            orch.submit_sub(gate, gates.at("a"))
            try:
                orch.submit_sub(gate, gates.at("b"))
            except RuntimeError as error:
                refused.append(str(error))

        worker.init()
        runs: list[RunHandle] = []
        building = threading.Thread(target=worker.submit, args=(build,), kwargs={"_opened": runs.append})
        building.start()
        gates.wait_until_began("a")
        runs[0].cancel("enough")
        building.join(PATIENCE)
        assert refused == ["the run is cancelled: enough"]
        assert not runs[0].done  # its first task goes on
        gates.open()
