"""Registering: who may run a callable, when it can be registered, and what happens when that goes wrong."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import Gates, run_one, run_sub, scalars
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from levels_stage import worker as worker
from support.processes import PATIENCE

from pytest_aorta.runtime import Orchestrator, TaskRef, Worker

# Who may run one


@pytest.mark.statement(42)
def test_a_callable_that_no_process_could_run_fails_before_anything_starts() -> None:
    before = threading.active_count()
    for idle in (Worker(3), Worker(4)):
        idle.register(levels_tasks.nothing)
        with pytest.raises(RuntimeError, match="there is no process that could run a callable"):
            idle.init()

    restricted = Worker(3, device_ids=[0, 1])
    restricted.register(levels_tasks.nothing, workers=[1, 2])
    with pytest.raises(RuntimeError, match=r"registered for workers \[1, 2\], but there are \[0, 1\]"):
        restricted.init()
    assert threading.active_count() == before


@pytest.mark.statement(42)
def test_after_init_it_fails_at_once() -> None:
    with Worker(3) as worker:
        worker.init()
        with pytest.raises(ValueError, match="there is no process that could run a callable"):
            worker.register(levels_tasks.nothing)
    with Worker(3, num_sub_workers=1) as worker:
        worker.init()
        with pytest.raises(ValueError, match=r"registered for workers \[0\], but there are \[\]"):
            worker.register(levels_tasks.nothing, workers=[0])
        with pytest.raises(ValueError, match="the id of a worker must be a whole number from 0, not -1"):
            worker.register(levels_tasks.nothing, workers=[-1])
        for wrong in (True, "0"):
            with pytest.raises(TypeError, match="the id of a worker must be a whole number from 0"):
                worker.register(levels_tasks.nothing, workers=[wrong])  # type: ignore[list-item]


# When


@pytest.mark.statement(43)
def test_what_cannot_be_pickled_takes_no_room(worker: Worker) -> None:
    lock = threading.Lock()
    kept = worker.register(levels_tasks.echo)
    before = dict(worker.callables.definitions)

    with pytest.raises(TypeError, match="cannot be sent to another process"):
        worker.register(lambda args: lock)

    assert worker.callables.definitions == before
    assert run_sub(worker, kept).ok
    worker.unregister(kept)


@pytest.mark.statement(43)
def test_a_callable_that_one_process_cannot_load_fails_its_tasks_there_alone(worker: Worker, tmp_path: Path) -> None:
    """The first process finds the module, and takes it away from the second one."""
    kept = worker.register(levels_tasks.echo)
    (tmp_path / "once.py").write_text("import os\nos.unlink(__file__)\n\ndef task(args):\n    return 'ran'\n")
    late = worker.register(_Loaded(f"{tmp_path}/once.py"))

    pair = run_one(lambda orch: orch.submit_sub_group(late, [None, None]), worker)

    assert {member.payload for member in pair.members} == {"ran", None}
    assert pair.failure is not None
    assert "FileNotFoundError" in pair.failure.message
    assert run_sub(worker, kept).ok
    worker.unregister(late)
    worker.unregister(kept)


class _Loaded:
    """Read from a file when it is unpickled."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, args: Any) -> Any:
        raise AssertionError("never loaded")

    def __reduce__(self) -> tuple[Any, ...]:
        return load_from, (self.file,)


def load_from(file: str) -> Any:
    return runpy.run_path(file)["task"]


def test_a_callable_can_be_registered_during_a_run(worker: Worker, gates: Gates) -> None:
    gate = worker.register(levels_tasks.gate)
    handle = worker.submit(lambda orch, args, config: orch.submit_sub(gate, gates.at("a")))
    gates.wait_until_began("a")

    echo = worker.register(levels_tasks.echo)
    second = worker.submit(lambda orch, args, config: orch.submit_sub(echo, scalars(1)))
    gates.open()
    handle.wait()
    second.wait()

    assert run_sub(worker, echo, 1).ok
    worker.unregister(echo)
    worker.unregister(gate)


def test_within_a_graph_a_callable_can_be_registered_and_used(worker: Worker) -> None:
    refs = []

    def build(orch: Any, args: Any, config: Any) -> None:
        handle = worker.register(lambda args: "within")
        refs.append((orch.submit_sub(handle), handle))

    worker.run(build)
    assert refs[0][0].record.payload == "within"
    worker.unregister(refs[0][1])


def test_a_process_that_dies_after_a_registration_has_a_successor_that_knows_it(worker: Worker) -> None:
    late, die = worker.register(lambda args: "late"), worker.register(levels_tasks.die)
    run_one(lambda orch: orch.submit_sub_group(die, [None, None]), worker)

    pair = run_one(lambda orch: orch.submit_sub_group(late, [None, None]), worker)

    assert pair.value == ["late", "late"]
    worker.unregister(late)
    worker.unregister(die)


def test_a_callable_that_is_dropped_during_a_submission_is_refused_there(worker: Worker) -> None:
    """Its handle was found valid already; a process below would not know the callable any more."""
    nothing, echo = worker.register(levels_tasks.nothing), worker.register(levels_tasks.echo)

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        def dropped() -> Iterator[TaskRef]:  # read after the handle was resolved
            worker.unregister(nothing)
            yield from ()

        with pytest.raises(ValueError, match="nothing was unregistered while a task of it was submitted"):
            orch.submit_sub(nothing, after=dropped())

    handle = worker.submit(build)
    handle.wait(PATIENCE)
    assert list(handle.records) == []
    assert run_sub(worker, echo).ok
    worker.unregister(echo)


def test_a_callable_that_tasks_wait_for_is_not_dropped(worker: Worker, gates: Gates) -> None:
    gate = worker.register(levels_tasks.gate)
    handle = worker.submit(lambda orch, args, config: [orch.submit_sub(gate, gates.at(str(i))) for i in range(4)])
    with pytest.raises(RuntimeError, match="gate cannot be unregistered: 4 of its tasks have not ended"):
        worker.unregister(gate)
    second = worker.register(levels_tasks.gate)
    worker.unregister(second)
    gates.open()
    handle.wait(PATIENCE)
    assert all(record.ok for record in handle.records)
    worker.unregister(gate)
    with pytest.raises(ValueError, match=r"is not .or no longer. one of this worker"):
        worker.unregister(gate)
