"""From construction to ready: what is refused, what is started, and what a start that fails leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import clean as clean
from levels_stage import descendants, run_next, run_sub
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from support.processes import wait_until

from pytest_aorta.runtime import StartupError, Worker
from pytest_aorta.runtime import worker as worker_module


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do not listen are not waited for."""
    monkeypatch.setattr(worker_module, "CLOSE_GRACE", 0.2)


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
        with pytest.raises(RuntimeError, match="add_worker after init"):
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
