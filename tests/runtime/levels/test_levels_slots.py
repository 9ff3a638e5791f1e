"""Slots: deadlines, deaths, successors, quarantine, stops, unreadable messages, what is printed, threads and cores."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import psutil
import pytest
from levels_stage import Gates, Host, descendants, failure_of, run_next, run_one, run_sub, scalars
from levels_stage import clean as clean
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import PATIENCE, is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime import Orchestrator, Outcome, TaskError, TaskRef, Worker, endpoint
from pytest_aorta.runtime import worker as worker_module
from pytest_aorta.runtime.resources.devices import Devices, core_shares, threads_of


@pytest.fixture
def host() -> Iterator[Host]:
    with Worker(3, device_ids=[0], num_sub_workers=1, grace=0.1) as worker:
        yield Host(worker)


def test_a_task_that_takes_too_long_is_ended_and_its_slot_works_again(host: Host, gates: Gates) -> None:
    pid = run_next(host.worker, host.own_pid).payload

    record = run_one(lambda orch: orch.submit_next_level(host.gate, gates.at("hang"), timeout=0.1), host.worker)

    why = "slot 0: TimeoutError: not finished within 0.1 s"
    assert failure_of(record) == (Outcome.TIMEOUT, "TimeoutError", why)
    assert record.worker == "slot 0"
    assert run_next(host.worker, host.own_pid).payload not in (pid, None)
    wait_until_gone([pid])


def test_a_deadline_waits_for_nobody_and_says_where_the_task_hung(gates: Gates) -> None:
    with Worker(3, num_sub_workers=1, grace=2 * PATIENCE) as worker:  # is for those that are asked to end
        gate = worker.register(levels_tasks.gate_against_sigterm)
        record = run_one(lambda orch: orch.submit_sub(gate, gates.at("hang"), timeout=1), worker)
    assert record.outcome is Outcome.TIMEOUT
    assert record.failure is not None
    assert "in gate_against_sigterm" in record.failure.traceback


def test_the_next_task_is_not_sent_to_a_process_that_is_about_to_be_ended(host: Host) -> None:
    """Tasks that end at the very moment of their deadline: what follows them is not hit."""
    for _ in range(10):
        refs: list[TaskRef] = []

        def build(orch: Orchestrator, args: Any, config: Any, refs: list[TaskRef] = refs) -> None:
            refs.append(orch.submit_next_level(host.nothing, timeout=0.0005))
            refs.append(orch.submit_next_level(host.own_pid))

        host.worker.submit(build)
        assert refs[0].wait(PATIENCE).outcome in (Outcome.SUCCESS, Outcome.TIMEOUT)
        assert refs[1].wait(PATIENCE).ok


def test_deaths_cost_no_slot_and_a_callable_that_kills_is_quarantined_for_the_run(host: Host) -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for _ in range(3):  # a task that succeeds in between says that the callable is fit
            refs.append(orch.submit_next_level(host.die_at_times, scalars("die"), worker=0))
            refs.append(orch.submit_next_level(host.die_at_times, scalars("live"), worker=0))
        refs.extend(orch.submit_next_level(host.die, worker=0) for _ in range(5))
        refs.append(orch.submit_next_level(host.nothing, worker=0))
        refs.append(orch.submit_sub(host.nothing, after=refs[-1:]))

    host.worker.submit(build)
    records = [ref.wait(PATIENCE) for ref in refs]
    died, fine, skipped = Outcome.ENDPOINT_FAILURE, Outcome.SUCCESS, Outcome.SKIPPED
    assert [record.outcome for record in records] == [died, fine] * 3 + [died] * 3 + [skipped] * 2 + [fine] * 2
    assert failure_of(records[9])[2].startswith("quarantined: die killed 3 slots in a row; no more of its tasks start")
    assert run_next(host.worker, host.die).outcome is died  # another run begins anew
    assert run_next(host.worker, host.nothing).ok


def kill_and_await_successor(pid: int) -> None:
    before = descendants()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bool(descendants() - before), "its successor")


def test_kills_of_idle_processes_cost_nothing_and_clear_the_suspect(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        for _ in range(4):
            assert orch.submit_next_level(host.die).wait().outcome is Outcome.ENDPOINT_FAILURE
            pid = orch.submit_next_level(host.own_pid).wait().payload
            kill_and_await_successor(pid)
        assert all(orch.submit_next_level(host.nothing).wait().ok for _ in range(9))

    monkeypatch.setattr(endpoint, "BACK_OFF", 0.0)
    with pytest.raises(TaskError):
        host.worker.run(build)


def test_a_slot_whose_processes_die_more_often_than_it_may_is_out_of_service() -> None:
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        refs.extend(orch.submit_next_level(slots.die, worker=0) for _ in range(2))
        refs.append(orch.submit_next_level(slots.nothing, worker=0))
        refs.append(orch.submit_next_level_group(slots.nothing, [None], workers=[0]))
        refs.append(orch.submit_sub(slots.nothing))

    with Worker(3, device_ids=[0], num_sub_workers=1, grace=0.1, max_deaths=2) as worker:
        slots = Host(worker)
        worker.submit(build)
        records = [ref.wait(PATIENCE) for ref in refs]
        assert not run_next(worker, slots.nothing).ok
        worker.revive()
        assert run_next(worker, slots.nothing).ok

    assert [record.outcome for record in records] == [Outcome.ENDPOINT_FAILURE] * 4 + [Outcome.SUCCESS]
    why = (
        "slot 0: out of service: its process died with signal SIGKILL while it ran die; the last of 2 deaths in a row"
        " (Worker.revive() tries again)"
    )
    for record in records[2:-1]:
        assert failure_of(record)[2] == why
        assert record.started is None


def sickly() -> None:
    """Ends its process while a file says so, as all do in a storm."""
    if os.path.exists(os.environ["STORM"]):
        os._exit(1)


@pytest.mark.slow
def test_a_slot_comes_back_however_many_of_its_processes_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storm = tmp_path / "storm"
    monkeypatch.setenv("STORM", str(storm))
    monkeypatch.setattr(endpoint, "BACK_OFF", 0.001)
    monkeypatch.setattr(endpoint, "MOST_BACK_OFF", 0.001)
    refs: list[TaskRef] = []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        storm.touch()
        refs.append(orch.submit_sub(slots.die))
        refs.extend(orch.submit_sub(slots.nothing) for _ in range(20))

    with Worker(3, num_sub_workers=1, prepare=sickly, grace=0.1) as worker:
        slots = Host(worker)
        worker.submit(build)
        wait_until(lambda: re.search(r"3[0-9] starts in a row .* sub_worker 0: ", caplog.text), "starts that fail")
        assert not any(ref.done() for ref in refs[1:])
        storm.unlink()
        assert all(ref.wait(PATIENCE).ok for ref in refs[1:])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_slot_is_let_go_of_cores_that_it_has_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(endpoint, "LOOK", 0.05)
    monkeypatch.setattr(worker_module, "PINNED", 1)
    monkeypatch.setattr(worker_module, "core_shares", lambda slots: [(cores[0],)])
    with Worker(3, num_sub_workers=1) as worker:
        handle, nothing = worker.register(levels_tasks.threads_and_cores), worker.register(levels_tasks.nothing)
        own = run_sub(worker, handle).payload["cores"]
        assert own == cores[:1]
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        try:
            for process in busy:
                os.sched_setaffinity(process.pid, own)
            wait_until(lambda: run_sub(worker, handle).payload["cores"] == cores, "all cores")
        finally:
            for process in busy:
                process.kill()
                process.wait()
        assert run_sub(worker, nothing).ok


def test_what_a_task_prints_goes_where_its_submitter_prints(capfd: pytest.CaptureFixture[str]) -> None:
    with Worker(3, num_sub_workers=1) as worker:
        handle = worker.register(levels_tasks.say)
        assert run_sub(worker, handle, "in python", "to stderr", "past python").ok

    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["in python", "past python"]
    assert err == "to stderr\n"


# What a slot is and sees

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")


@pytest.fixture
def one_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """All slots have the same number of threads, however many cores there are."""
    for name in THREADS:
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("one_zygote")
def test_a_slot_is_one_process_and_a_worker_has_one_zygote_besides() -> None:
    before = descendants()
    with Worker(3, device_ids=range(3), num_sub_workers=3) as worker:
        worker.init()
        below = descendants() - before
        assert len(below) == 6 + 1
        assert max(len(descendants(pid)) for pid in below) == 6


@pytest.mark.parametrize("beside", [Devices("none", ()), Devices("nvidia", (0,))], ids=["no GPU", "a GPU"])
def test_a_slot_computes_with_as_many_threads_as_it_has_cores(monkeypatch: pytest.MonkeyPatch, beside: Devices) -> None:
    monkeypatch.setattr(worker_module, "find_devices", lambda: beside)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "77")  # what the user has set stays
    cores = len(os.sched_getaffinity(0))
    for slots in {1, cores}:
        with Worker(3, num_sub_workers=slots, pin=True) as worker:
            handle = worker.register(levels_tasks.threads_and_cores)
            record = run_one(lambda orch: orch.submit_sub_group(handle, [None] * slots), worker)  # noqa: B023
        found = [member.payload for member in record.members] or [record.payload]

        assert sorted(payload["cores"] for payload in found) == sorted(map(list, core_shares(slots)))
        for payload in found:
            count = str(threads_of(payload["cores"]))
            assert payload["threads"] == dict(zip(THREADS, (count, "77", count, count), strict=True))


def test_a_successor_has_the_variables_and_the_cores_of_its_predecessor() -> None:
    others = set(psutil.Process().children())
    with Worker(3, device_ids=[3, 5], grace=0.1) as worker:
        look, die = worker.register(levels_tasks.threads_and_cores), worker.register(levels_tasks.die)
        before = [run_next(worker, look, worker=slot).payload for slot in (0, 1)]
        assert [each["visible"] for each in before] == ["3", "5"]

        run_next(worker, die, worker=1)
        assert [run_next(worker, look, worker=slot).payload for slot in (0, 1)] == before

        [zygote] = set(psutil.Process().children()) - others
        zygote.kill()
        wait_until(lambda: [run_next(worker, look, worker=slot).payload for slot in (0, 1)] == before, "the successors")


#: Leaves a process of a session of its own behind, and prints its pid.
SLEEPER = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, str(os.getpid()).encode())
        os.close(1)
        time.sleep(600)
"""


def leave_daemons(args: Any) -> list[int]:
    """Sleepers of sessions of their own: one as it is, and one of which no variable tells whose it is."""
    pids = []
    environments: list[dict[str, str] | None] = [None, {}]
    for environ in environments:
        command = [sys.executable, "-c", SLEEPER]
        pids.append(int(subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True).stdout))
    return pids


@pytest.mark.usefixtures("one_zygote")
def test_the_death_of_a_slot_ends_what_it_has_left_and_nothing_of_others() -> None:
    with Worker(3, device_ids=[0, 1], grace=0.1) as worker:
        leave, die = worker.register(leave_daemons), worker.register(levels_tasks.die)
        pids = [run_next(worker, leave, worker=slot).payload for slot in (0, 1)]
        assert not any(is_gone(pid) for each in pids for pid in each)

        run_next(worker, die, worker=0)

        assert all(map(is_gone, pids[0]))  # at once: its successor finds the device free of them
        assert not any(map(is_gone, pids[1]))


# A process that is stopped, or says what cannot be read, holds up nothing but its own task

#: Bytes of a configuration that no socket takes at once.
LARGE = 4_000_000


def test_a_stopped_process_holds_up_nothing_and_is_replaced_at_its_tasks_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "CLOSE_GRACE", 0.2)
    refs: list[TaskRef] = []
    with Worker(3, device_ids=[0, 1], grace=0.1) as worker:
        host, length = Host(worker), worker.register(lambda args: len(args.config))

        def stop() -> int:
            pid = int(run_next(worker, host.own_pid, worker=0).payload)
            os.kill(pid, signal.SIGSTOP)
            return pid

        def build(orch: Orchestrator, args: Any, timeout: Any) -> None:
            refs[:] = [orch.submit_next_level(length, config="x" * LARGE, worker=0, timeout=timeout)]
            refs.extend(orch.submit_next_level(host.echo, scalars(number), worker=1) for number in range(20))

        pid = stop()
        worker.submit(build, None, 3.0)
        assert [ref.wait(PATIENCE).ok for ref in refs[1:]] == [True] * 20
        assert refs[0].record is None  # else this has shown nothing
        with pytest.raises(TimeoutError):
            refs[0].wait(0.01)
        assert refs[0].wait(PATIENCE).outcome is Outcome.TIMEOUT
        wait_until_gone([pid])

        successor = stop()
        worker.submit(build)
        assert [ref.wait(PATIENCE).ok for ref in refs[1:]] == [True] * 20
        os.kill(successor, signal.SIGCONT)  # what waits is sent when it goes on
        assert refs[0].wait(PATIENCE).payload == LARGE
        assert stop() == successor != pid
    assert is_gone(successor)


def send_raw(args: Any) -> None:
    """Write what follows on the channel to the worker, past all that is meant for it."""
    (found,) = (found for found in gc.get_objects() if type(found) is endpoint.MessageSocket)
    os.write(found.socket.fileno(), args.scalars[0])
    time.sleep(PATIENCE)


class Unreadable:
    """Can be pickled, but not read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("x",)


def test_a_message_that_cannot_be_read_is_the_failure_of_the_task_that_runs(capfd: pytest.CaptureFixture[str]) -> None:
    with Worker(3, num_sub_workers=1, grace=0.1) as worker:
        host, send = Host(worker), worker.register(send_raw)
        messages: list[tuple[bytes, str]] = [
            (b"nonsense" * 8, "cannot be read (ValueError: a message of "),
            ((3).to_bytes(4, "big") + b"abc", "cannot be read (UnpicklingError"),
            (endpoint._framed(pickle.dumps(3)), "cannot be read (TypeError"),
            (endpoint._framed(pickle.dumps(("nonsense", 1))), "cannot be read (ValueError"),
        ]
        for data, reason in messages:
            outcome, _, why = failure_of(run_sub(worker, send, data))
            assert outcome is Outcome.ENDPOINT_FAILURE
            assert reason in why
            assert run_sub(worker, host.echo, 1).ok
        outcome, _, why = failure_of(run_sub(worker, worker.register(lambda args: Unreadable())))
        assert outcome is Outcome.TASK_FAILURE
        assert why.startswith("sub_worker 0: its return value could not be read: ValueError")
    assert capfd.readouterr().err == ""


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
