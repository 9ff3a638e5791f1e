"""Devices of workers are leased: one worker at a time has them, whichever process it is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import levels_tasks
import pytest
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from levels_stage import run_next
from support.processes import wait_until

from pytest_aorta.runtime import StartupError, Worker
from pytest_aorta.runtime import worker as worker_module
from pytest_aorta.runtime.resources.leases import Leases

#: A program whose worker has device 5, until its input ends.
HOLDER = """
import sys
from pytest_aorta.runtime import Worker
with Worker(3, device_ids=[5]) as worker:
    worker.init()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are not free are not waited for."""
    monkeypatch.setattr(worker_module, "PATIENCE", 0.01)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def starts(*devices: int) -> bool:
    """Whether a worker can have these devices now."""
    try:
        with Worker(3, device_ids=devices) as worker:
            worker.init()
    except StartupError:
        return False
    return True


@pytest.mark.statement(49)
def test_a_device_of_another_process_is_refused_with_its_holder(impatient: None, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(StartupError) as refused:
        Worker(3, device_ids=[4, 5]).init()
    assert str(refused.value) == (
        f"device_ids 4-5 are not free: device 5 by pid {holder.pid} (-c); a device belongs to one worker at a time"
    )
    assert starts(4)
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: starts(4, 5), "the end of its slots")


@pytest.mark.statement(49)
def test_two_workers_of_one_process_do_not_share_a_device(impatient: None) -> None:
    with Worker(3, device_ids=[1, 2]) as first:
        first.init()
        assert not starts(2, 3)
        assert starts(3)
        top = Worker(4)
        top.add_worker(Worker(3, device_ids=[2]))
        with pytest.raises(StartupError, match=rf"device_ids 2 are not free: device 2 by pid {os.getpid()} "):
            top.init()
    assert starts(2, 3)


@pytest.mark.statement(49)
def test_a_start_that_fails_gives_its_devices_back() -> None:
    with pytest.raises(StartupError):
        Worker(3, device_ids=[1], prepare=levels_tasks.bad_preparation).init()
    assert starts(1)


@pytest.mark.statement(49)
def test_a_slot_keeps_its_device_until_it_has_ended(impatient: None) -> None:
    with Worker(3, device_ids=[1, 2]) as worker:
        handle = worker.register(_worker_on_device)
        assert [run_next(worker, handle, 1, worker=slot).payload for slot in (0, 1)] == ["started", "refused"]
        locks = worker.register(_locks)
        assert run_next(worker, locks, worker=1).payload == ["device-2.lock"]
        lease = worker._processes._lease
        assert lease is not None
        lease.release()  # as if only this process had died
        assert sorted(Leases([1, 2]).holders()) == [1, 2]
    wait_until(lambda: not Leases([1, 2]).holders(), "the end of the slots")


def _worker_on_device(args: Any) -> str:
    """A slot that starts a worker on its own device has it already."""
    worker_module.PATIENCE = 0.01
    return "started" if starts(args.scalars[0]) else "refused"


def _locks(args: Any) -> list[str]:
    open_files = [os.readlink(entry) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry)]
    return [os.path.basename(file) for file in open_files if file.endswith(".lock")]
