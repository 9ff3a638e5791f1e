"""Callables: how they reach a process, who may use a handle, when and where one can be registered."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import textwrap
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

from pytest_aorta.runtime import Orchestrator, TaskRef, Worker
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


def test_functions_of_a_script_go_by_value(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from pytest_aorta.runtime import TaskArgs, Worker

        FACTOR = 7

        class Thing:
            factor = FACTOR

        def task(args):
            return args.scalars[0] * Thing.factor

        if __name__ == "__main__":
            with Worker(3, num_sub_workers=1) as w:
                handle = w.register(task)
                refs = []
                w.run(lambda orch, args, config: refs.append(orch.submit_sub(handle, TaskArgs().add_scalar(6))))
                print(refs[0].record.payload)
        """)
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr) == ("42\n", "")


def test_an_import_path_is_imported_where_it_runs(worker: Worker) -> None:
    assert use_once(worker, "levels_tasks:echo", 1) == {"scalars": [1], "config": None}

    for wrong, why in (("levels_tasks:nowhere", "AttributeError"), ("no_such_module:f", "ModuleNotFoundError")):
        handle = worker.register(wrong)
        record = run_sub(worker, handle)
        assert record.failure is not None
        assert re.match(rf"sub_worker [01]: {why}: ", record.failure.message)
        worker.unregister(handle)
    with pytest.raises(TypeError, match="a text must be 'module:qualname'"):
        worker.register("os.getpid")


@pytest.mark.parametrize("wrong", [None, 3, b"f", [levels_tasks.echo]])
def test_only_callables_can_be_registered(worker: Worker, wrong: Any) -> None:
    with pytest.raises(TypeError, match="is not a callable"):
        worker.register(wrong)


# Identity


def test_a_digest_is_that_of_what_was_registered() -> None:
    one, other = Worker(3, num_sub_workers=1), Worker(3, num_sub_workers=1)
    same = [worker.register(levels_tasks.echo) for worker in (one, one, other)]
    different = one.register(levels_tasks.boom)

    assert len({handle.digest for handle in same}) == 1
    assert different.digest != same[0].digest
    algorithm, _, digits = same[0].digest.partition(":")
    assert algorithm == "sha256"
    assert len(digits) == 64
    assert set(digits) <= set("0123456789abcdef")


@pytest.mark.statement(43)
def test_a_callable_that_is_registered_twice_lives_until_both_handles_are_dropped(worker: Worker) -> None:
    one, other = worker.register(levels_tasks.echo), worker.register(levels_tasks.echo)
    assert one != other
    assert one.digest == other.digest

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
    for thing in (levels_tasks.echo, "levels_tasks:echo", handle.digest, 0, None):
        with pytest.raises(TypeError, match=r"expected a handle from Worker.register"):
            run_sub(worker, thing)  # type: ignore[arg-type]

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
