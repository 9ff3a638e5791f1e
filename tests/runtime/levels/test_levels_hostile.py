"""Tasks that do their worst: it is their own failure, at most, and the worker goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import descendants, failure_of, run_one, run_sub, scalars
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime import Outcome, TaskRecord, Worker
from pytest_aorta.runtime.records import MAX_MESSAGE


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(3, num_sub_workers=1, grace=0.1) as worker:
        yield worker


def do(worker: Worker, task: Any, *values: Any) -> TaskRecord:
    """The record of one task; after it, the worker still works."""
    handle, echo = worker.register(task), worker.register(levels_tasks.echo)
    record = run_one(lambda orch: orch.submit_sub(handle, scalars(*values)), worker)
    assert run_sub(worker, echo, "after").payload == {"scalars": ["after"], "config": None}
    worker.unregister(handle)
    worker.unregister(echo)
    return record


@pytest.mark.statement(38)
@pytest.mark.parametrize(
    ("task", "values", "kind", "message"),
    [
        (levels_tasks.leave_with, (0,), "SystemExit", "SystemExit: 0"),
        (levels_tasks.leave_with, (3,), "SystemExit", "SystemExit: 3"),
        (levels_tasks.raise_interrupt, (), "KeyboardInterrupt", "KeyboardInterrupt: "),
        (levels_tasks.raise_mute, (), "Mute", "Mute: <Mute.__str__ raised RuntimeError>"),
        (levels_tasks.raise_fatal, (), "Fatal", "Fatal: <Fatal.__str__ raised SystemExit>"),
        (levels_tasks.end_with, (0,), "ProcessDied", "its process died with exit code 0"),
        (levels_tasks.end_with, (5,), "ProcessDied", "its process died with exit code 5"),
        (levels_tasks.die, (), "ProcessDied", "its process died with signal SIGKILL"),
        (levels_tasks.crash, (), "ProcessDied", "its process died with signal SIGSEGV"),
        (
            levels_tasks.close_everything_and_hang,
            (),
            "ProcessDied",
            "its process has closed its channel, and died with signal SIGKILL",
        ),
    ],
)
def test_the_end_of_a_task_is_told_as_it_was(
    worker: Worker, task: Any, values: tuple[int, ...], kind: str, message: str
) -> None:
    outcome = Outcome.ENDPOINT_FAILURE if kind == "ProcessDied" else Outcome.TASK_FAILURE
    assert failure_of(do(worker, task, *values)) == (outcome, kind, f"sub_worker 0: {message}")


def test_grandchildren_of_a_task_that_succeeds_stay_as_long_as_the_worker(tmp_path: Path) -> None:
    with Worker(3, num_sub_workers=1) as worker:
        pid = do(worker, levels_tasks.fork_and_leave).payload
        assert not is_gone(pid)
    wait_until_gone([pid])


def test_forks_of_a_task_end_with_it_also_those_that_return(worker: Worker) -> None:
    before = descendants()
    assert do(worker, levels_tasks.return_twice).payload == "parent"
    assert do(worker, levels_tasks.fork_and_exit).payload == 7
    wait_until(lambda: len(descendants()) <= len(before), "the end of the forks")


def test_tasks_may_use_processes_and_threads_of_their_own(worker: Worker) -> None:
    assert do(worker, levels_tasks.use_multiprocessing).payload == [1, 2, 3]
    assert do(worker, levels_tasks.use_threads).payload == [3, 2, 1]


@pytest.mark.parametrize(
    ("give", "kind", "why"),
    [
        (lambda: "x" * 50_000_000, "ValueError", "has 50000"),
        (lambda: [b"x" * 2**20, b"y" * 2**20], "ValueError", "has 2097"),
        (levels_tasks.Liar, "TypeError", "cannot be pickled: OSError: look away"),
        (threading.Lock, "TypeError", "cannot be pickled: TypeError: cannot pickle '_thread.lock' object"),
    ],
    ids=["huge", "many bytes", "liar", "lock"],
)
def test_what_cannot_be_returned_is_a_failure_that_says_what_can(
    worker: Worker, give: Any, kind: str, why: str
) -> None:
    outcome, found, message = failure_of(do(worker, lambda args: give()))
    assert (outcome, found) == (Outcome.TASK_FAILURE, kind)
    assert message.startswith(f"sub_worker 0: {kind}: the return value {why}")
    assert "write other results to a tensor in shared memory (Tag.OUTPUT), or to a file" in message


def test_what_can_be_told_is(worker: Worker) -> None:
    assert do(worker, lambda args: "x" * 500_000).payload == "x" * 500_000
    assert do(worker, lambda args: "\udc80").payload == "\udc80"
    assert do(worker, lambda args: lambda number: number + 1).payload(3) == 4


def test_a_record_is_bounded_however_much_is_said(worker: Worker) -> None:
    record = do(worker, levels_tasks.raise_huge)

    assert record.failure is not None
    assert record.failure.type == "ValueError"
    assert len(record.failure.message) <= MAX_MESSAGE
    assert len(record.failure.traceback) <= 2**15 + 100
