"""Runs: records of tasks, what a failure does to the rest, waiting, order, cancelling."""

from __future__ import annotations

import gc
import pickle
import re
import threading
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import levels_tasks
import pytest
from levels_stage import Gates, Host, run_sub, scalars
from levels_stage import gates as gates
from levels_stage import host as host
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE

from pytest_aorta.runtime import Orchestrator, Outcome, TaskError, TaskRef, Worker
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
    assert record.seconds == record.ended - record.started


def test_a_failure_has_type_message_and_traceback(host: Host) -> None:
    record = run_sub(host.worker, host.boom, "why")

    assert record.outcome is Outcome.TASK_FAILURE
    assert record.failure is not None
    assert record.failure.type == "ValueError"
    assert record.failure.message == f"{record.worker}: ValueError: why"
    assert "levels_tasks.py" in record.failure.traceback
    assert "raise ValueError" in record.failure.traceback
    assert "slot.py" not in record.failure.traceback
    assert record.payload is None


def test_the_cause_of_a_task_error_is_the_remote_traceback(host: Host) -> None:
    with pytest.raises(TaskError) as caught:
        host.worker.run(lambda orch, args, config: orch.submit_sub(host.boom, scalars("why")))

    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        shown = "".join(traceback.format_exception(error))
        assert re.search(r'File ".*levels_tasks.py", line \d+, in boom\n *raise ValueError', shown)
        assert "The above exception was the direct cause of the following exception:" in shown
        assert shown.endswith("ValueError: why\n")


def test_after_takes_tasks_of_this_worker_and_nothing_else(host: Host) -> None:
    with Worker(3, num_sub_workers=1) as other:
        foreign: list[TaskRef] = []
        theirs = other.register(levels_tasks.nothing)
        other.run(lambda orch, args, config: foreign.append(orch.submit_sub(theirs)))

        for wrong in (foreign[0], host.nothing, 0, "task"):

            def build(orch: Orchestrator, args: Any, config: Any, wrong: Any = wrong) -> None:
                orch.submit_sub(host.nothing, after=[wrong])

            kind = ValueError if wrong is foreign[0] else TypeError
            with pytest.raises(kind, match=r"is not a task of this worker|must be a list of tasks"):
                host.worker.run(build)


@pytest.mark.statement(17)
def test_run_raises_once_with_type_and_message_and_the_next_run_is_clean(host: Host) -> None:
    def bad(orch: Orchestrator, args: Any, config: Any) -> None:
        for text in ("first", "second"):
            orch.submit_sub(host.boom, scalars(text)).wait(PATIENCE)

    with pytest.raises(TaskError, match=r"sub_worker \d: ValueError: first") as raised:
        host.worker.run(bad)
    assert raised.value.record.failure is not None
    assert raised.value.record.failure.type == "ValueError"

    host.worker.run(lambda orch, args, config: orch.submit_sub(host.nothing))


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
def test_a_second_run_is_built_but_starts_only_after_the_first(host: Host, gates: Gates) -> None:
    first = host.worker.submit(lambda orch, args, config: orch.submit_sub(host.gate, gates.at("first")))
    refs: list[TaskRef] = []
    second = host.worker.submit(lambda orch, args, config: refs.append(orch.submit_sub(host.gate, gates.at("second"))))

    gates.wait_until_began("first")  # one of two SUB workers is idle
    assert refs[0].state is State.READY
    assert not second.done
    gates.open()
    second.wait()

    assert first.done
    assert gates.log() == ["first began", "first ended", "second began", "second ended"]


@pytest.mark.statement(31)
def test_a_third_run_is_not_built_before_one_has_ended(host: Host, gates: Gates) -> None:
    asked, built = threading.Event(), threading.Event()

    def third() -> None:
        for name in ("first", "second"):
            host.worker.submit(lambda orch, args, config, name=name: orch.submit_sub(host.gate, gates.at(name)))
        asked.set()
        host.worker.run(lambda orch, args, config: built.set())

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(third)
        asked.wait(PATIENCE)
        gates.wait_until_began("first")
        assert not built.wait(0.05)
        gates.open("first")
        assert built.wait(PATIENCE)
        gates.open()
        running.result(PATIENCE)


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
