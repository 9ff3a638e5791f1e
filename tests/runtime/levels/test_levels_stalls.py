"""A process that is stopped, or says what cannot be read, holds up nothing but its own task."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import levels_tasks
import psutil
import pytest
from levels_stage import Gates, run_next, run_sub, scalars
from levels_stage import clean as clean
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from support.processes import PATIENCE, is_gone, wait_until_gone

from pytest_aorta.runtime import CallableHandle, Orchestrator, Outcome, TaskRef, Worker, endpoint

#: Bytes of a configuration that no socket takes at once.
LARGE = 4_000_000


def length_of_config(args: Any) -> int:
    return len(args.config)


def send_raw(args: Any) -> None:
    """Write what follows on the channel to the worker, past all that is meant for it."""
    (found,) = (found for found in gc.get_objects() if type(found) is endpoint.MessageSocket)
    os.write(found._connection.fileno(), bytes.fromhex(args.scalars[0]))
    time.sleep(args.scalars[1])


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(3, device_ids=[0, 1], grace=0.1) as worker:
        yield worker


def pid_of(worker: Worker, slot: int) -> int:
    """Of the process of a slot, which is idle."""
    return int(run_next(worker, worker.register(levels_tasks.own_pid), worker=slot).payload)


def submit_large(worker: Worker, length: CallableHandle, **more: Any) -> TaskRef:
    """A task of slot 0 that its socket does not take at once."""
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_next_level(length, config="x" * LARGE, worker=0, **more))

    worker.submit(build)
    return refs[0]


def test_a_stopped_process_holds_up_nothing_and_is_replaced_at_its_tasks_deadline(worker: Worker) -> None:
    length, echo = worker.register(length_of_config), worker.register(levels_tasks.echo)
    pid = pid_of(worker, 0)
    os.kill(pid, signal.SIGSTOP)
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.append(orch.submit_next_level(length, config="x" * LARGE, worker=0, timeout=1.0))
        refs.extend(orch.submit_next_level(echo, scalars(number), worker=1) for number in range(20))

    worker.submit(build)
    assert [ref.wait(PATIENCE).ok for ref in refs[1:]] == [True] * 20
    assert refs[0].record is None  # else this has shown nothing
    with pytest.raises(TimeoutError):
        refs[0].wait(0.01)

    assert refs[0].wait(PATIENCE).outcome is Outcome.TIMEOUT
    wait_until_gone([pid])
    assert pid_of(worker, 0) != pid


def test_what_waits_is_sent_when_the_process_goes_on(worker: Worker) -> None:
    length = worker.register(length_of_config)
    pid = pid_of(worker, 0)
    os.kill(pid, signal.SIGSTOP)
    ref = submit_large(worker, length)
    assert ref.record is None
    os.kill(pid, signal.SIGCONT)

    assert ref.wait(PATIENCE).payload == LARGE


def test_a_worker_with_a_stopped_process_closes() -> None:
    with Worker(3, device_ids=[0], grace=0.1) as worker:
        length = worker.register(length_of_config)
        pid = pid_of(worker, 0)
        os.kill(pid, signal.SIGSTOP)
        ref = submit_large(worker, length, timeout=0.5)
        ref.wait(PATIENCE)
    assert is_gone(pid)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nonsense" * 8, "cannot be read (ValueError: a message of "),
        ((3).to_bytes(4, "big") + b"abc", "cannot be read (UnpicklingError"),
        (endpoint.framed(3), "cannot be read (TypeError"),  # type: ignore[arg-type]
        (endpoint.framed(("nonsense", 1)), "cannot be read (ValueError"),
    ],
    ids=["length", "pickle", "number", "unknown"],
)
def test_a_message_that_cannot_be_read_is_the_failure_of_the_task_that_runs(
    data: bytes, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Worker(3, num_sub_workers=1, grace=0.1) as worker:
        send = worker.register(send_raw)
        record = run_sub(worker, send, data.hex(), PATIENCE)

        assert record.outcome is Outcome.ENDPOINT_FAILURE
        assert record.failure is not None
        assert reason in record.failure.message
        assert run_sub(worker, worker.register(levels_tasks.echo), 1).ok
    assert capfd.readouterr().err == ""


class Unreadable:
    """Can be pickled, but not read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("x",)


def test_a_result_that_cannot_be_read_is_the_failure_of_its_task() -> None:
    with Worker(3, num_sub_workers=1) as worker:
        record = run_sub(worker, worker.register(lambda args: Unreadable()))

        assert record.outcome is Outcome.TASK_FAILURE
        assert record.failure is not None
        assert record.failure.message.startswith("sub_worker 0: its return value could not be read: ValueError")


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
