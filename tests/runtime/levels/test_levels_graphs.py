"""Building the graph of a run: what is taken, what is refused, what can be taken back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from levels_stage import Gates, Host, run_sub
from levels_stage import gates as gates
from levels_stage import host as host
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, wait_until

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, TaskArgs, TaskError, TaskRef
from pytest_aorta.runtime.dispatcher import TaskKind


def test_a_run_can_be_cancelled_before_and_while_it_runs(host: Host, gates: Gates) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        running = orch.submit_sub_group(host.gate, [gates.at("a"), gates.at("b")])
        orch.submit_sub(host.gate, gates.at("never"), after=[running])

    handle = host.worker.submit(build)
    gates.wait_until_began("a", "b")
    handle.cancel("no longer needed")
    assert not handle.done
    assert handle.records[0].outcome is Outcome.CANCELLED
    handle.cancel("really not", running=True)
    with pytest.raises(TaskError, match="no longer needed"):
        handle.wait(PATIENCE)

    assert sorted(gates.log()) == ["a began", "b began"]
    running, never = handle.records
    assert running.outcome is Outcome.CANCELLED
    assert running.failure is not None
    assert running.failure.message == "really not"
    assert never.failure is not None
    assert never.failure.message == "no longer needed"
    assert run_sub(host.worker, host.nothing).ok


def test_a_cancelled_task_takes_only_its_consumers_with_it(host: Host, gates: Gates) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_sub(host.gate, gates.at("a")))
        refs.append(orch.submit_sub(host.gate, gates.at("b"), after=[refs[0]]))
        refs.append(orch.submit_sub(host.gate, gates.at("c")))

    handle = host.worker.submit(build)
    gates.wait_until_began("a", "c")
    refs[0].cancel("changed my mind")
    gates.open("c")
    with pytest.raises(TaskError, match="changed my mind"):
        handle.wait(PATIENCE)

    outcomes = [record.outcome for record in handle.records]
    assert outcomes == [Outcome.CANCELLED, Outcome.SKIPPED, Outcome.SUCCESS]
    refs[2].cancel("too late")
    assert refs[2].wait().ok


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
def test_a_run_or_the_end_within_the_graph_of_another_is_refused(host: Host) -> None:
    with pytest.raises(RuntimeError, match="submit tasks through orch"):
        host.worker.run(lambda orch, args, config: host.worker.run(lambda orch, args, config: None))
    with pytest.raises(RuntimeError, match="close within a run"):
        host.worker.run(lambda orch, args, config: host.worker.close())

    assert run_sub(host.worker, host.nothing).ok


def test_scopes_lie_within_each_other_up_to_a_bound(host: Host) -> None:
    def nest(orch: Orchestrator, depth: int) -> None:
        orch.submit_sub(host.nothing)
        with orch.scope():
            nest(orch, depth + 1)

    with pytest.raises(RuntimeError, match="at most 64 scopes"):
        host.worker.run(lambda orch, args, config: nest(orch, 0))


@pytest.mark.statement(23)
def test_a_submission_that_raises_leaves_nothing_behind(host: Host) -> None:
    dispatcher = host.worker._dispatcher

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
    wait_until(lambda: not dispatcher.runs, "the end of the run")
    assert dispatcher.graph.live == 0
    assert all(endpoint.busy == 0 for endpoint in dispatcher.placement.pools[TaskKind.SUB].values())


WRONG: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda orch, h: orch.submit_sub(print), "expected a handle from Worker.register, not <built-in function"),
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
