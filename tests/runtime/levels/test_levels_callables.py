"""Callables: how they reach a process, who may use a handle, when and where one can be registered."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import levels_tasks
import pytest
from levels_stage import Gates, run_one, run_sub, use_once
from levels_stage import gates as gates
from levels_stage import no_torch as no_torch
from levels_stage import own_leases as own_leases
from levels_stage import worker as worker
from support.processes import PATIENCE

from pytest_aorta.runtime import Orchestrator, TaskError, TaskRef, Worker
from pytest_aorta.runtime.callables import MAX_CALLABLES, define

FACTOR = 3


def times_factor(args: Any) -> Any:
    return args.scalars[0] * FACTOR


class Multiplier:
    """A callable that has a state."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, args: Any) -> Any:
        return args.scalars[0] * self.factor

    def method(self, args: Any) -> Any:
        return args.scalars[0] + self.factor

    @staticmethod
    def double(args: Any) -> Any:
        return args.scalars[0] * 2


# How they get there


def test_what_can_be_imported_goes_by_its_name() -> None:
    assert b"echo" in define(levels_tasks.echo).data
    assert len(define(levels_tasks.echo).data) < 100
    assert define(Multiplier.double).name == "Multiplier.double"
    assert define("os.path:join").load() is os.path.join
    assert define(len).load() is len


def test_what_cannot_be_imported_goes_by_value(worker: Worker) -> None:
    offset = 5

    def local(args: Any) -> Any:
        return args.scalars[0] + offset

    assert use_once(worker, local, 1) == 6
    assert use_once(worker, lambda args: args.scalars[0] + offset + 1, 1) == 7
    assert use_once(worker, functools.partial(lambda factor, args: args.scalars[0] * factor, 4), 2) == 8
    assert use_once(worker, Multiplier(3), 3) == 9
    assert use_once(worker, Multiplier(3).method, 7) == 10
    assert use_once(worker, times_factor, 2) == 6
    assert use_once(worker, Multiplier.double, 2) == 4


def test_a_module_that_no_other_process_can_import_goes_by_value(worker: Worker, tmp_path: Path) -> None:
    """As ``pytest --import-mode=importlib`` makes them."""
    file = tmp_path / "hidden_module.py"
    file.write_text(
        "HALF = 2\n\ndef helper(n):\n    return n / HALF\n\ndef halve(args):\n    return helper(*args.scalars)\n"
    )
    spec = importlib.util.spec_from_file_location("hidden_module", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_module"] = module
    try:
        spec.loader.exec_module(module)
        assert use_once(worker, module.halve, 4) == 2.0
    finally:
        del sys.modules["hidden_module"]


def test_an_import_path_is_imported_where_it_runs(worker: Worker) -> None:
    assert use_once(worker, "levels_tasks:echo", 1) == {"scalars": [1], "config": None}

    for wrong, why in (("levels_tasks:nowhere", "AttributeError"), ("no_such_module:f", "ModuleNotFoundError")):
        handle = worker.register(wrong)
        record = run_sub(worker, handle)
        assert record.failure is not None
        assert re.match(rf"sub_worker [01]: {why}: ", record.failure.message)
        worker.unregister(handle)


# Identity


@pytest.mark.statement(43)
def test_a_callable_that_is_registered_twice_lives_until_both_handles_are_dropped(worker: Worker) -> None:
    one, other = worker.register(levels_tasks.echo), worker.register(levels_tasks.echo)
    assert one != other
    assert one.digest == other.digest == Worker(3).register(levels_tasks.echo).digest
    assert re.fullmatch("sha256:[0-9a-f]{64}", one.digest)

    worker.unregister(one)
    with pytest.raises(ValueError, match=r"is not .or no longer. one of this worker"):
        run_sub(worker, one)
    assert run_sub(worker, other).ok
    with pytest.raises(ValueError, match="no longer"):
        worker.unregister(one)

    worker.unregister(other)
    with pytest.raises(ValueError, match="no longer"):
        run_sub(worker, other)
    assert worker.callables.definitions == {}


def test_handles_cannot_be_made_up(worker: Worker) -> None:
    handle = worker.register(levels_tasks.echo)
    another = worker.register(levels_tasks.boom)
    with Worker(3, num_sub_workers=1) as stranger:
        foreign = stranger.register(levels_tasks.echo)
    wrong: list[Any] = [
        foreign,
        dataclasses.replace(handle, serial=10_000),
        dataclasses.replace(handle, owner="somebody"),
        dataclasses.replace(handle, digest="sha256:" + 64 * "0"),
        dataclasses.replace(handle, digest=another.digest),
    ]
    for forged in wrong:
        with pytest.raises(ValueError, match="the handle of echo is not"):
            run_sub(worker, forged)
    assert run_sub(worker, handle).ok
    worker.unregister(handle)
    worker.unregister(another)


def test_there_is_room_for_so_many_callables_and_no_more(worker: Worker) -> None:
    def numbered(number: int) -> Any:
        return lambda args: number

    handles = [worker.register(numbered(number)) for number in range(MAX_CALLABLES)]
    try:
        with pytest.raises(RuntimeError, match="at most 64 callables can be registered at a time"):
            worker.register(numbered(MAX_CALLABLES))
        again = worker.register(numbered(7))  # which is there
        assert run_sub(worker, again).payload == 7
        assert run_sub(worker, handles[-1]).payload == MAX_CALLABLES - 1
        worker.unregister(again)
        worker.unregister(handles.pop(0))
        handles.append(worker.register(numbered(MAX_CALLABLES)))
    finally:
        for handle in handles:
            worker.unregister(handle)


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
        handle = worker.register(levels_tasks.nothing)
        for submit in (
            lambda orch: orch.submit_next_level(handle),
            lambda orch: orch.submit_next_level(handle, worker=0),
            lambda orch: orch.submit_next_level_group(handle, [None], workers=[0]),
        ):
            with pytest.raises(ValueError, match=r"there are (0|no workers)|none"):
                worker.run(lambda orch, args, config, submit=submit: submit(orch))


# When


@pytest.mark.statement(43)
def test_what_cannot_be_registered_takes_no_room(worker: Worker) -> None:
    lock = threading.Lock()
    kept = worker.register(levels_tasks.echo)
    before = dict(worker.callables.definitions)
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (lambda args: lock, None, TypeError, "cannot be sent to another process"),
        *((thing, None, TypeError, "is not a callable") for thing in (None, 3, b"f", [levels_tasks.echo])),
        ("os.getpid", None, TypeError, "a text must be 'module:qualname'"),
        (levels_tasks.nothing, [0], ValueError, r"registered for workers \[0\], but there are \[\]"),
        (levels_tasks.nothing, [-1], ValueError, "the id of a worker must be a whole number from 0, not -1"),
        *((levels_tasks.nothing, [it], TypeError, "must be a whole number from 0") for it in (True, "0")),
    ]
    for target, workers, kind, why in wrong:
        with pytest.raises(kind, match=why):
            worker.register(target, workers=workers)

    assert worker.callables.definitions == before
    assert run_sub(worker, kept).ok
    worker.unregister(kept)


class Loaded:
    """Read from a file when it is unpickled."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, args: Any) -> Any:
        raise AssertionError("never loaded")

    def __reduce__(self) -> tuple[Any, ...]:
        return lambda file: runpy.run_path(file)["task"], (self.file,)


@pytest.mark.statement(43)
def test_a_callable_that_one_process_cannot_load_fails_its_tasks_there_alone(worker: Worker, tmp_path: Path) -> None:
    """The first process finds the module, and takes it away from the second one."""
    kept = worker.register(levels_tasks.echo)
    (tmp_path / "once.py").write_text("import os\nos.unlink(__file__)\n\ndef task(args):\n    return 'ran'\n")
    late = worker.register(Loaded(f"{tmp_path}/once.py"))

    pair = run_one(lambda orch: orch.submit_sub_group(late, [None, None]), worker)

    assert {member.payload for member in pair.members} == {"ran", None}
    assert pair.failure is not None
    assert "FileNotFoundError" in pair.failure.message
    assert run_sub(worker, kept).ok
    worker.unregister(late)
    worker.unregister(kept)


def test_a_callable_that_was_registered_within_a_graph_is_known_to_successors(worker: Worker) -> None:
    die = worker.register(levels_tasks.die)
    handles, refs = [die], []

    def build(orch: Orchestrator, args: Any, config: Any) -> None:
        handles.append(worker.register(lambda args: "within"))
        orch.submit_sub_group(die, [None, None]).wait()
        refs.append(orch.submit_sub_group(handles[1], [None, None]))

    with pytest.raises(TaskError, match="SIGKILL"):
        worker.run(build)
    assert refs[0].wait().value == ["within", "within"]
    for handle in handles:
        worker.unregister(handle)


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
    worker.unregister(worker.register(levels_tasks.gate))
    gates.open()
    handle.wait(PATIENCE)
    assert all(record.ok for record in handle.records)
    worker.unregister(gate)
