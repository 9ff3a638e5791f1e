"""Workers of workers."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import psutil
import pytest
from levels_stage import Gates, Host, descendants, failure_of, run_next, run_one, run_sub, scalars
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, wait_until, wait_until_gone

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, SlotArgs, TaskError, TaskRef, Worker
from pytest_aorta.runtime.resources.devices import core_shares, threads_of

# Graphs that a worker of level 3 builds when one of level 4 tells it to


class Through:
    """Runs one task on a SUB worker, with the same arguments."""

    def __init__(self, handle: CallableHandle, timeout: float | None = None, *, ref: bool = False) -> None:
        self.handle = handle
        self.timeout = timeout
        self.ref = ref

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
        ref = orch.submit_sub(self.handle, scalars(*args.scalars), timeout=self.timeout)
        return [ref] if self.ref else {"config": config, "scalars": list(args.scalars)}


def where_it_is(orch: Orchestrator, args: SlotArgs, config: Any) -> int:
    return os.getpid()


def broken(orch: Orchestrator, args: SlotArgs, config: Any) -> None:
    raise LookupError("while it was built")


def endless(orch: Orchestrator, args: SlotArgs, config: Any) -> None:
    levels_tasks.note(args.scalars[0], f"building {args.scalars[1]}")
    threading.Event().wait(levels_tasks.PATIENCE)


class Waiting:
    """Waits for a task that waits, and then submits another one."""

    def __init__(self, gate: CallableHandle) -> None:
        self.gate = gate

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> None:
        levels_tasks.note(args.scalars[0], f"building {args.scalars[1]}")
        orch.submit_sub(self.gate, scalars(*args.scalars)).wait()
        orch.submit_sub(self.gate, scalars(*args.scalars))


class Several:
    """Tasks of one callable after one of another, in a queue that is longer than there are workers."""

    def __init__(self, first: CallableHandle, then: CallableHandle) -> None:
        self.first = first
        self.then = then

    def __call__(self, orch: Orchestrator, args: SlotArgs, config: Any) -> Any:
        before = orch.submit_sub(self.first, scalars(*args.scalars))
        return [orch.submit_sub(self.then, after=[before]) for _ in range(3)]


class Pod(Host):
    """Level 4 with two hosts of two SUB workers each, and a SUB worker of its own."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        for _ in range(2):
            worker.add_worker(Worker(3, num_sub_workers=2, grace=0.1))
        self.where = worker.register(where_it_is)


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with Worker(4, num_sub_workers=1, grace=0.1) as top:
        pod = Pod(top)
        top.init()
        yield pod


def test_a_task_of_level_4_is_a_run_of_level_3(pod: Pod) -> None:
    through, chained = (pod.worker.register(Through(pod.echo, ref=ref)) for ref in (False, True))

    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_next_level(through, scalars(1, "b", {3}), {"c": 2}, worker=1))
        refs.append(orch.submit_next_level(chained, scalars(7)))
        refs.append(orch.submit_next_level(through, scalars(refs[1]), [refs[1]]))

    pod.worker.run(build)
    first, chain, last = (ref.wait() for ref in refs)
    assert first.worker == "child_worker 1 level=3"
    assert first.payload == {"config": {"c": 2}, "scalars": [1, "b", {3}]}
    assert chain.payload == [{"scalars": [7], "config": None}]
    assert last.payload == {"config": [chain.payload], "scalars": [chain.payload]}
    pod.worker.unregister(through)
    pod.worker.unregister(chained)


@pytest.mark.statement(20)
@pytest.mark.statement(38)
def test_the_failure_of_a_sub_task_is_seen_above_with_both_places(pod: Pod, gates: Gates) -> None:
    late = gates.at("late")
    pid = run_next(pod.worker, pod.where, worker=0).payload
    for task, args, below, above, outcome, why in (
        (pod.boom, scalars("deep"), None, None, Outcome.TASK_FAILURE, "sub_worker [01]: ValueError: deep"),
        (pod.die, None, None, None, Outcome.ENDPOINT_FAILURE, "sub_worker [01]: its process died with signal SIGKILL"),
        (pod.gate, late, 0.5, None, Outcome.TIMEOUT, "sub_worker [01]: TimeoutError: not finished within 0.5 s"),
        (pod.gate, late, None, 0.3, Outcome.TIMEOUT, "TimeoutError: not finished within 0.3 s"),
    ):
        through = pod.worker.register(Through(task, below))
        record = run_one(
            lambda orch: orch.submit_next_level(through, args, worker=0, timeout=above),  # noqa: B023
            pod.worker,
        )
        assert record.outcome is outcome
        assert record.failure is not None
        assert re.fullmatch(f"child_worker 0 level=3: {why}", record.failure.message)
        assert ("levels_tasks.py" in record.failure.traceback) == (task is pod.boom or below is not None)
        pod.worker.unregister(through)
    assert run_next(pod.worker, pod.where, worker=0).payload == pid


@pytest.mark.statement(19)
def test_a_graph_that_cannot_be_built_below_is_a_failure_above(pod: Pod) -> None:
    handle = pod.worker.register(broken)
    with pytest.raises(TaskError, match=r"^child_worker 1 level=3: LookupError: while it was built$"):
        pod.worker.run(lambda orch, args, config: orch.submit_next_level(handle, worker=1))
    pod.worker.unregister(handle)


@pytest.mark.statement(24)
@pytest.mark.statement(45)
def test_hosts_work_at_the_same_time(pod: Pod, gates: Gates) -> None:
    through = pod.worker.register(Through(pod.gate))

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for name, worker in (("a", 0), ("b", 1)):
            orch.submit_next_level(through, gates.at(name), worker=worker)

    handle = pod.worker.submit(build)
    gates.wait_until_began("a", "b")
    gates.open()
    handle.wait()
    pod.worker.unregister(through)


@pytest.mark.slow
@pytest.mark.parametrize("graph", [endless, Waiting])
def test_a_task_whose_builder_waits_is_ended_and_its_host_goes_on(gates: Gates, graph: Any) -> None:
    with Worker(4, grace=0.05) as top:
        top.add_worker(Worker(3, num_sub_workers=1, grace=0.05))
        gate = top.register(levels_tasks.gate)
        waiting = top.register(graph(gate) if graph is Waiting else graph)
        where, through = top.register(where_it_is), top.register(Through(gate))
        pid = run_next(top, where).payload

        # A builder that waits for tasks goes on when these have ended; one that waits for anything else is ended.
        assert run_next(top, waiting, *gates.at("a").scalars, timeout=0.3).outcome is Outcome.TIMEOUT
        cancelled = run_one(lambda orch: _cancelled(orch.submit_next_level(waiting, gates.at("b")), gates), top)

        assert cancelled.outcome is Outcome.CANCELLED
        assert (run_next(top, where).payload == pid) == (graph is Waiting)
        gates.open("c")
        assert run_next(top, through, *gates.at("c").scalars).ok


def _cancelled(ref: TaskRef, gates: Gates) -> TaskRef:
    gates.wait_until_noted("building b")
    ref.cancel()
    return ref


@pytest.mark.statement(37)
@pytest.mark.statement(38)
def test_a_worker_below_that_dies_is_its_tasks_failure_and_is_replaced(gates: Gates, tmp_path: Path) -> None:
    """Although its first successor cannot start."""
    licence, refused = tmp_path / "licence", tmp_path / "refused"
    licence.touch()

    def prepare() -> None:
        if not licence.exists() and not refused.exists():
            refused.touch()
            raise RuntimeError("no licence")

    with Worker(4, grace=0.1) as top:
        top.add_worker(Worker(3, num_sub_workers=1, prepare=prepare, grace=0.1))
        where, through = top.register(where_it_is), top.register(Through(top.register(levels_tasks.gate)))
        pid = run_next(top, where).payload
        refs: list[TaskRef] = []
        top.submit(lambda orch, args, config: refs.append(orch.submit_next_level(through, gates.at("a"))))
        gates.wait_until_began("a")
        below = descendants(pid)
        licence.unlink()
        os.kill(pid, signal.SIGKILL)

        why = "child_worker 0 level=3: its process died with signal SIGKILL"
        assert failure_of(refs[0].wait(PATIENCE)) == (Outcome.ENDPOINT_FAILURE, "ProcessDied", why)
        wait_until_gone([pid, *below])
        wait_until(refused.exists, "the successor that cannot start")
        wait_until(lambda: run_next(top, where).ok, "the one that can")
        assert run_next(top, where).payload not in (pid, os.getpid())
        echo = top.register(Through(top.register(levels_tasks.echo)))
        assert run_next(top, echo, "again").ok


@pytest.mark.statement(46)
def test_submissions_within_each_other_do_not_wait_for_each_others_rings(gates: Gates) -> None:
    gates.open()
    with Worker(4, ring_size=1) as top:
        top.add_worker(Worker(3, num_sub_workers=1, ring_size=1))
        several = top.register(Several(top.register(levels_tasks.gate), top.register(levels_tasks.own_pid)))

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            for _ in range(3):
                with orch.scope():
                    orch.submit_next_level(several, gates.at("a"))
                    with orch.scope():
                        orch.submit_next_level(several, gates.at("b"))

        handle = top.submit(build)
        handle.wait(PATIENCE)
        assert [record.ok for record in handle.records] == [True] * 6


@pytest.mark.statement(43)
def test_a_callable_registered_late_reaches_every_level(pod: Pod) -> None:
    late = pod.worker.register(lambda args: args.scalars[0] + 1)
    through = pod.worker.register(Through(late))
    for worker in (0, 1):
        assert run_next(pod.worker, through, 1, worker=worker).ok
    assert run_sub(pod.worker, late, 1).payload == 2

    pod.worker.unregister(late)
    with pytest.raises(TaskError, match=r"is not .or no longer. one of this worker"):
        pod.worker.run(lambda orch, args, config: orch.submit_next_level(through, scalars(1), worker=0))
    pod.worker.unregister(through)


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


def environment_below(orch: Orchestrator, args: Any, config: Any) -> list[Any]:
    """Variables of threads in the process of a worker, and in that of a slot below it; or the next level's answer."""
    if isinstance(config, list):
        deeper, slot = config
        return [orch.submit_next_level(deeper, config=slot).result()]
    return [os.environ.get("OMP_NUM_THREADS"), orch.submit_sub(config).result()["threads"]["OMP_NUM_THREADS"]]


def test_a_tree_of_workers_starts_one_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    others = set(psutil.Process().children(recursive=True))
    with Worker(5, grace=0.1) as top:
        middle = Worker(4, grace=0.1)
        middle.add_worker(Worker(3, num_sub_workers=2, grace=0.1))
        top.add_worker(middle)
        below, slot = top.register(environment_below), top.register(levels_tasks.threads_and_cores)
        found: list[Any] = []

        def build(orch: Orchestrator, args: Any, config: Any) -> None:
            found.append(orch.submit_next_level(below, config=[below, slot]).result())

        top.run(build)
        started = set(psutil.Process().children(recursive=True)) - others
        commands = {tuple(process.cmdline()) for process in started}

    assert len(commands) == 1
    assert found == [[[None, str(threads_of(core_shares(2)[0]))]]]


def test_a_worker_in_a_task_starts_no_interpreter_where_its_process_can_be_forked() -> None:
    with Worker(3, num_sub_workers=1, grace=0.1) as worker:
        found = run_sub(worker, worker.register(levels_tasks.interpreters_of_workers)).payload
    assert found == {"alone": 1, "beside a thread": 2}
