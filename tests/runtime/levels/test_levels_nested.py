"""Workers of workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import levels_graphs
import levels_tasks
import pytest
from levels_graphs import Through
from levels_stage import Gates, descendants, run_next, run_one, run_sub, scalars
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE

from pytest_aorta.runtime import Orchestrator, Outcome, TaskError, TaskRef, Worker


class Pod:
    """Level 4 with two hosts of two SUB workers each, and a SUB worker of its own."""

    def __init__(self, top: Worker) -> None:
        self.top = top
        for _ in range(2):
            top.add_worker(Worker(3, num_sub_workers=2, grace=0.1))
        self.echo = top.register(levels_tasks.echo)
        self.boom = top.register(levels_tasks.boom)
        self.gate = top.register(levels_tasks.gate)
        self.where = top.register(levels_graphs.where)


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with Worker(4, num_sub_workers=1, grace=0.1) as top:
        pod = Pod(top)
        top.init()
        yield pod


@pytest.mark.statement(35)
def test_the_whole_tree_is_there_after_init(pod: Pod) -> None:
    pids = [run_next(pod.top, pod.where, worker=worker).payload for worker in (0, 1)]

    assert len({*pids, os.getpid()}) == 3
    for pid in pids:
        assert len(descendants(pid)) >= 2


def test_a_task_of_level_4_is_a_run_of_level_3(pod: Pod) -> None:
    through = pod.top.register(Through(pod.echo))

    record = run_one(lambda orch: orch.submit_next_level(through, scalars(1, "b"), {"c": 2}, worker=1), pod.top)

    assert record.ok
    assert record.worker == "child_worker 1 level=3"
    assert record.payload == {"config": {"c": 2}, "scalars": [1, "b"]}
    pod.top.unregister(through)


def test_what_a_graph_returns_is_refused_or_arrives(pod: Pod) -> None:
    unsendable, mixed, chained = (
        pod.top.register(function)
        for function in (levels_graphs.unsendable, levels_graphs.mixed, Through(pod.echo, ref=True))
    )
    refused = run_next(pod.top, unsendable)
    assert refused.outcome is Outcome.TASK_FAILURE
    assert refused.failure is not None
    assert refused.failure.message.startswith(
        "child_worker 0 level=3: TypeError: the return value cannot be pickled: TypeError: cannot pickle"
    )
    assert run_next(pod.top, mixed).payload == {"bytes": b"\xff", "number": -(2**40)}
    assert run_next(pod.top, chained, 7).payload == [{"scalars": [7], "config": None}]
    for handle in (unsendable, mixed, chained):
        pod.top.unregister(handle)


@pytest.mark.statement(20)
def test_the_failure_of_a_sub_task_is_seen_above_with_both_places(pod: Pod) -> None:
    through = pod.top.register(Through(pod.boom))

    with pytest.raises(TaskError, match=r"^child_worker 0 level=3: sub_worker [01]: ValueError: deep$") as raised:
        pod.top.run(lambda orch, args, config: orch.submit_next_level(through, scalars("deep"), worker=0))

    failure = raised.value.record.failure
    assert failure is not None
    assert failure.type == "ValueError"
    assert "levels_tasks.py" in failure.traceback
    assert run_next(pod.top, pod.where, worker=0).ok
    pod.top.unregister(through)


@pytest.mark.statement(19)
def test_a_graph_that_cannot_be_built_below_is_a_failure_above(pod: Pod) -> None:
    broken = pod.top.register(levels_graphs.broken)
    with pytest.raises(TaskError, match=r"^child_worker 1 level=3: LookupError: while it was built$"):
        pod.top.run(lambda orch, args, config: orch.submit_next_level(broken, worker=1))
    pod.top.unregister(broken)


@pytest.mark.statement(24)
@pytest.mark.statement(45)
def test_hosts_work_at_the_same_time(pod: Pod, gates: Gates) -> None:
    through = pod.top.register(Through(pod.gate))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for name, worker in (("a", 0), ("b", 1)):
            orch.submit_next_level(through, gates.at(name), worker=worker)

    handle = pod.top.submit(build)
    gates.wait_until_began("a", "b")
    gates.open()
    handle.wait()
    pod.top.unregister(through)


def test_a_group_of_hosts_starts_as_one(pod: Pod, gates: Gates) -> None:
    through = pod.top.register(Through(pod.gate))
    refs: list[TaskRef] = []
    args = [gates.at("a"), gates.at("b")]
    handle = pod.top.submit(
        lambda orch, _, config: refs.append(orch.submit_next_level_group(through, args, "shared", workers=[1, 0]))
    )
    gates.wait_until_began("a", "b")
    gates.open()
    handle.wait()

    assert [(member.worker, member.payload["config"]) for member in refs[0].wait().members] == [
        ("child_worker 1 level=3", "shared"),
        ("child_worker 0 level=3", "shared"),
    ]
    pod.top.unregister(through)


def test_a_deadline_above_ends_what_runs_below_and_the_host_lives_on(pod: Pod, gates: Gates) -> None:
    through = pod.top.register(Through(pod.gate))
    pid = run_next(pod.top, pod.where, worker=0).payload

    record = run_one(lambda orch: orch.submit_next_level(through, gates.at("a"), worker=0, timeout=0.3), pod.top)

    assert record.outcome is Outcome.TIMEOUT
    assert record.failure is not None
    assert record.failure.message == "child_worker 0 level=3: TimeoutError: not finished within 0.3 s"
    assert run_next(pod.top, pod.where, worker=0).payload == pid
    pod.top.unregister(through)


@pytest.mark.parametrize("graph", [levels_graphs.endless, levels_graphs.Waiting])
def test_a_task_whose_builder_waits_is_ended_and_its_host_goes_on(gates: Gates, graph: Any) -> None:
    with Worker(4, grace=0.05) as top:
        top.add_worker(Worker(3, num_sub_workers=1, grace=0.05))
        gate = top.register(levels_tasks.gate)
        waiting = top.register(graph(gate) if graph is levels_graphs.Waiting else graph)
        where, through = top.register(levels_graphs.where), top.register(Through(gate))
        pid = run_next(top, where).payload

        # A builder that waits for tasks goes on when these have ended; one that waits for anything else is ended.
        assert run_next(top, waiting, *gates.at("a").scalars, timeout=0.3).outcome is Outcome.TIMEOUT
        cancelled = run_one(lambda orch: _cancelled(orch.submit_next_level(waiting, gates.at("b")), gates), top)

        assert cancelled.outcome is Outcome.CANCELLED
        assert (run_next(top, where).payload == pid) == (graph is levels_graphs.Waiting)
        gates.open("c")
        assert run_next(top, through, *gates.at("c").scalars).ok


def _cancelled(ref: TaskRef, gates: Gates) -> TaskRef:
    gates.wait_until_noted("building b")
    ref.cancel()
    return ref


@pytest.mark.statement(38)
def test_a_host_that_dies_is_its_tasks_failure_and_is_replaced(gates: Gates) -> None:
    with Worker(4, grace=0.1) as top:
        top.add_worker(Worker(3, num_sub_workers=1))
        die, where, gate = (
            top.register(levels_graphs.die),
            top.register(levels_graphs.where),
            top.register(levels_tasks.gate),
        )
        with pytest.raises(TaskError, match=r"^child_worker 0 level=3: its process died with signal SIGKILL$"):
            top.run(lambda orch, args, config: orch.submit_next_level(die))
        pid = run_next(top, where).payload

        through = top.register(Through(gate))
        refs: list[TaskRef] = []
        top.submit(lambda orch, args, config: refs.append(orch.submit_next_level(through, gates.at("a"))))
        gates.wait_until_began("a")
        os.kill(pid, signal.SIGKILL)

        assert refs[0].wait(PATIENCE).outcome is Outcome.ENDPOINT_FAILURE
        assert run_next(top, where).ok
        echo = top.register(Through(top.register(levels_tasks.echo)))
        assert run_next(top, echo, "again").ok


@pytest.mark.statement(43)
def test_a_callable_registered_late_reaches_every_level(pod: Pod) -> None:
    late = pod.top.register(lambda args: args.scalars[0] + 1)
    through = pod.top.register(Through(late))
    for worker in (0, 1):
        assert run_next(pod.top, through, 1, worker=worker).ok
    assert run_sub(pod.top, late, 1).payload == 2

    pod.top.unregister(late)
    with pytest.raises(TaskError, match=r"is not .or no longer. one of this worker"):
        pod.top.run(lambda orch, args, config: orch.submit_next_level(through, scalars(1), worker=0))
    pod.top.unregister(through)


@pytest.mark.statement(43)
def test_what_a_host_has_registered_itself_survives_that_it_is_dropped_above() -> None:
    top, child = Worker(4), Worker(3, num_sub_workers=1)
    own = child.register(levels_tasks.echo)
    top.add_worker(child)
    theirs, through = top.register(levels_tasks.echo), top.register(Through(own))
    assert own.digest == theirs.digest
    with top:
        assert run_next(top, through, 1).ok
        top.unregister(theirs)
        assert run_next(top, through, 1).ok


@pytest.mark.statement(20)
@pytest.mark.statement(38)
def test_what_has_happened_one_level_down_is_what_has_happened(gates: Gates) -> None:
    with Worker(4, grace=0.1) as top:
        top.add_worker(Worker(3, num_sub_workers=1, grace=0.1))
        tasks = {name: top.register(getattr(levels_tasks, name)) for name in ("die", "boom", "gate", "nothing")}

        def below(name: str, **more: Any) -> Any:
            return top.register(levels_graphs.Through(tasks[name], **more))

        crashed = run_next(top, below("die"))
        raised = run_next(top, below("boom"))
        late = run_next(top, below("gate", timeout=0.1), str(gates.folder), "late")
        assert run_next(top, below("nothing")).ok

    ends = [record.outcome for record in (crashed, raised, late)]
    assert ends == [Outcome.ENDPOINT_FAILURE, Outcome.TASK_FAILURE, Outcome.TIMEOUT]
    assert crashed.failure is not None
    assert crashed.failure.message == "child_worker 0 level=3: sub_worker 0: its process died with signal SIGKILL"
