"""From construction to ready: what is refused, what is started, and what a start that fails leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import clean as clean
from levels_stage import descendants, run_next, run_sub
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.devices import names_devices
from support.processes import wait_until

from pytest_aorta.runtime import StartupError, Worker
from pytest_aorta.runtime import worker as worker_module
from pytest_aorta.runtime.resources.leases import Leases


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither processes that do not listen nor devices that are not free are waited for."""
    monkeypatch.setattr(worker_module, "CLOSE_GRACE", 0.2)
    monkeypatch.setattr(worker_module, "PATIENCE", 0.01)


_LEVEL, _LIMIT = "level must be 3 .a host. or more", "startup_timeout_s must be a number of seconds above 0"


@pytest.mark.statement(40)
@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, _LEVEL, [{"level": level} for level in (2, 0, -3)]),
        (TypeError, _LEVEL, [{"level": level} for level in ("3", 3.0, True, None)]),
        (ValueError, _LIMIT, [{"startup_timeout_s": number} for number in (0, -1, float("inf"), float("nan"))]),
        (TypeError, _LIMIT, [{"startup_timeout_s": number} for number in ("10", None)]),
        (ValueError, "belong to a host", [{"level": 4, "device_ids": [0]}]),
        (ValueError, "a device is named twice", [{"device_ids": [0, 0]}]),
        (ValueError, "device_ids must be numbers from 0", [{"device_ids": [-1]}]),
        (ValueError, "num_sub_workers must be a whole number", [{"num_sub_workers": -1}]),
        (ValueError, "grace must be a number of seconds from 0, not -1", [{"grace": -1}]),
        (ValueError, "ring_size must be a whole number from 1", [{"ring_size": 0}]),
        (ValueError, "ring_timeout must be .* from 0", [{"ring_timeout": -1}]),
        (TypeError, r"device_ids must be numbers from 0, not '0' \(str\)", [{"device_ids": ["0"]}]),
        (TypeError, r"device_ids must be a list of numbers from 0, not 2 \(int\)", [{"device_ids": 2}]),
        (TypeError, r"num_sub_workers must be a whole number from 0, not 1.0 \(float\)", [{"num_sub_workers": 1.0}]),
        (TypeError, r"heap_ring_size must be a whole number from 0, not True \(bool\)", [{"heap_ring_size": True}]),
        (TypeError, r"grace must be a number of seconds from 0, not None \(NoneType\)", [{"grace": None}]),
        (TypeError, r"prepare must be a function without arguments, not 3 \(int\)", [{"prepare": 3}]),
    ],
)
def test_wrong_arguments_are_told_at_once(error: type[Exception], message: str, arguments: list[Any]) -> None:
    for wrong in arguments:
        with pytest.raises(error, match=message):
            Worker(**{"level": 3, **wrong})


def test_so_are_those_of_methods() -> None:
    worker: Any = Worker(4)
    with pytest.raises(TypeError, match=r"orch_fn must be a function orch_fn\(orch, args, config\), not None"):
        worker.submit(None)
    with pytest.raises(TypeError, match=r"child must be a Worker, not 3 \(int\)"):
        worker.add_worker(3)
    with pytest.raises(TypeError, match=r"host must be an execnet specification such as 'popen'.*, not 3 \(int\)"):
        worker.add_worker(Worker(3), host=3)
    with pytest.raises(TypeError, match=r"workers must be a list of the ids of workers, not 0 \(int\)"):
        worker.register(print, workers=0)


@pytest.mark.statement(40)
def test_workers_are_put_together_before_they_start() -> None:
    parent, child = Worker(4), Worker(3, num_sub_workers=1)
    assert parent.add_worker(child) == 0
    assert parent.add_worker(Worker(3, num_sub_workers=1)) == 1

    with pytest.raises(RuntimeError, match="is another worker's"):
        Worker(4).add_worker(child)
    with pytest.raises(RuntimeError, match="started by the one above it"):
        child.init()
    with pytest.raises(ValueError, match="cannot be below"):
        parent.add_worker(parent)
    with pytest.raises(ValueError, match="cannot be below"):
        parent.add_worker(Worker(4))
    with pytest.raises(ValueError, match="level 3 has no workers below it"):
        Worker(3).add_worker(Worker(3))


@pytest.mark.statement(40)
def test_after_init_no_worker_can_be_added_and_a_child_belongs_to_its_parent() -> None:
    child = Worker(3, num_sub_workers=1)
    with Worker(4) as parent:
        parent.add_worker(child)
        parent.init()
        with pytest.raises(RuntimeError, match="add_worker comes before init"):
            parent.add_worker(Worker(3, num_sub_workers=1))
        with pytest.raises(RuntimeError, match="has been started"):
            Worker(4).add_worker(child)
        with pytest.raises(RuntimeError, match="register there"):
            child.register(levels_tasks.nothing)
        with pytest.raises(RuntimeError, match="started by the one above it"):
            child.run(lambda orch, args, config: None)
    child.close()


@pytest.mark.statement(40)
def test_a_closed_worker_stays_closed() -> None:
    worker = Worker(3, num_sub_workers=1)
    worker.init()
    worker.init()
    worker.close()
    worker.close()

    with pytest.raises(RuntimeError, match="init of a worker that is CLOSED"):
        worker.init()
    with pytest.raises(RuntimeError, match="CLOSED"):
        worker.run(lambda orch, args, config: None)

    unused = Worker(3)
    unused.close()
    with pytest.raises(RuntimeError, match="CLOSED"):
        unused.init()


@names_devices
@pytest.mark.statement(35)
def test_after_init_every_process_below_is_ready(tmp_path: Path) -> None:
    """They start at the same time: each waits for all others."""

    def prepare() -> None:
        (tmp_path / str(os.getpid())).touch()
        wait_until(lambda: len(list(tmp_path.iterdir())) == 7, "the others")

    with Worker(4, num_sub_workers=1, prepare=prepare) as top:
        for device in range(2):
            top.add_worker(Worker(3, device_ids=[device], num_sub_workers=2, prepare=prepare))
        top.init()

        pids = {int(file.name) for file in tmp_path.iterdir()}
        assert len(pids) == 1 + 2 * 3
        assert pids <= descendants()


def test_preparation_runs_where_the_tasks_do() -> None:
    with Worker(3, device_ids=[0], num_sub_workers=1, prepare=levels_tasks.prepare_by_hand) as worker:
        handle = worker.register(levels_tasks.is_prepared)
        die = worker.register(levels_tasks.die)
        assert run_sub(worker, handle).payload is True
        assert run_next(worker, handle).payload is True
        run_next(worker, die)
        assert run_next(worker, handle).payload is True
    assert "LEVELS_PREPARED" not in os.environ


@pytest.mark.statement(36)
@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (levels_tasks.bad_preparation, "LookupError: there is no such data set"),
        (levels_tasks.fatal_preparation, "its process died with exit code 9"),
    ],
)
def test_a_preparation_that_fails_is_told_with_its_cause(prepare: Any, message: str) -> None:
    worker = Worker(3, num_sub_workers=2, prepare=prepare)

    with pytest.raises(StartupError, match=f"sub_worker [01]: {message}"):
        worker.init()

    with pytest.raises(RuntimeError, match="FAILED"):
        worker.init()
    worker.close()


@pytest.mark.statement(36)
@pytest.mark.usefixtures("impatient")
def test_a_preparation_that_hangs_is_ended_at_the_deadline() -> None:
    worker = Worker(3, num_sub_workers=2, prepare=levels_tasks.endless_preparation, startup_timeout_s=0.5)

    with pytest.raises(StartupError, match=r"sub_worker [01]: not ready in time; it hangs, or startup_timeout_s is"):
        worker.init()


@pytest.mark.statement(36)
@pytest.mark.usefixtures("impatient")
def test_the_first_failure_ends_the_start_although_others_hang() -> None:
    top = Worker(4, startup_timeout_s=600)
    top.add_worker(Worker(3, num_sub_workers=1, prepare=levels_tasks.endless_preparation))
    top.add_worker(Worker(3, num_sub_workers=1, prepare=levels_tasks.bad_preparation))

    with pytest.raises(StartupError) as raised:
        top.init()

    message = str(raised.value).splitlines()[0]
    assert message.startswith("child_worker 1 level=3: StartupError: sub_worker 0: LookupError: there is no such data")
    assert "bad_preparation" in str(raised.value)


# Devices are leased: one worker at a time has them, whichever process it is in

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


@names_devices
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


@pytest.mark.slow
@names_devices
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


@names_devices
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
