"""How a task ended, seen from the level above; ends that wait; a zygote that somebody has stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import levels_graphs
import levels_tasks
import psutil
import pytest
from levels_stage import Gates, run_next, run_sub
from levels_stage import clean as clean
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE

from pytest_aorta.runtime import Orchestrator, Outcome, Worker
from pytest_aorta.runtime.resources.devices import core_shares, threads_of


def close_stdout_and_return_twice(args: Any) -> str:
    sys.stdout.close()
    return "child" if os.fork() == 0 else "parent"


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


@pytest.mark.statement(41)
def test_leaving_a_worker_waits_for_what_it_has_accepted(gates: Gates) -> None:
    with Worker(3, num_sub_workers=1) as worker:
        gate = worker.register(levels_tasks.gate)
        handle = worker.submit(lambda orch, args, config: orch.submit_sub(gate, gates.at("a")))
        gates.wait_until_began("a")
        with pytest.raises(TimeoutError, match=r"have not ended within 0\.01 s"):
            worker.close(timeout=0.01)
        threading.Timer(0.2, gates.open).start()
    assert handle.done
    handle.wait()


def test_a_stopped_zygote_does_not_suspend_a_deadline(gates: Gates) -> None:
    others = set(psutil.Process().children())
    with Worker(3, num_sub_workers=1, grace=0.1) as worker:
        gate, nothing = worker.register(levels_tasks.gate), worker.register(levels_tasks.nothing)
        assert run_sub(worker, nothing).ok
        [zygote] = set(psutil.Process().children()) - others
        os.kill(zygote.pid, signal.SIGSTOP)
        found: list[Any] = []
        handle = worker.submit(
            lambda orch, args, config: found.append(orch.submit_sub(gate, gates.at("hang"), timeout=0.3))
        )
        assert found[0].wait(PATIENCE).outcome is Outcome.TIMEOUT
        assert handle.done
        assert run_sub(worker, nothing).ok


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


def test_a_fork_that_returns_without_a_stdout_takes_no_tasks() -> None:
    with Worker(3, num_sub_workers=1, grace=0.1) as worker:
        fork, pid = worker.register(close_stdout_and_return_twice), worker.register(levels_tasks.own_pid)
        before = run_sub(worker, pid).payload
        assert run_sub(worker, fork).payload == "parent"
        assert [run_sub(worker, pid).payload for _ in range(3)] == [before] * 3
