"""A trial's life in its own process, reported as events, whatever the workload raises or returns."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pytest_aorta import WorkloadResult
from pytest_aorta.trials import lifecycle
from pytest_aorta.trials.lifecycle import Lifecycle, failure_of, report_progress_to
from pytest_aorta.trials.records import to_json
from pytest_aorta.trials.steps import read_steps


def nothing(self: Any) -> None: ...


def passes(self: Any) -> WorkloadResult:
    return WorkloadResult(True)


def raising(error: BaseException) -> Any:
    def method(self: Any) -> None:
        raise error

    return method


def workload(**methods: Any) -> type[Any]:
    """A workload class with these methods in place of ones that do nothing and pass."""
    given = {"__init__": lambda self, config: None, "setup": nothing, "run": passes, "cleanup": nothing, **methods}
    return type("Sample", (), given)


def live(cls: type[Any], config: Any = None) -> list[Any]:
    events: list[Any] = []
    Lifecycle(cls, config, events.append).run_all()
    return events


def story(events: list[Any]) -> list[str]:
    """``setup ok``, ``run failed``, ... for every phase that has ended."""
    ends = [event for event in events if event["type"] == "end"]
    return [f"{event['phase']} {'failed' if event.get('failure') else 'ok'}" for event in ends]


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_an_exception_is_told_with_its_code_even_if_it_cannot_be_shown() -> None:
    cases: list[tuple[BaseException, int | None, str]] = [
        (SystemExit(), 0, "sys.exit(None)"),
        (SystemExit(0), 0, "sys.exit(0)"),
        (SystemExit(3), 3, "sys.exit(3)"),
        (SystemExit(10**5000), 255, "sys.exit(255)"),
        (SystemExit("bad data"), 1, "sys.exit('bad data')"),
        (SystemExit(Unprintable()), 1, "sys.exit('<SystemExit.__str__ raised ZeroDivisionError>')"),
        (StrRaises(), None, "<StrRaises.__str__ raised ZeroDivisionError>"),
        (ValueError("caf\udce9 \0"), None, "caf\udce9 \0"),
    ]
    for error, code, message in cases:
        events = live(workload(run=raising(error)))

        failure = next(event["failure"] for event in events if event.get("failure"))
        assert (failure.exit_code, failure.message) == (code, message)
        assert "in method" in failure.traceback
        assert "self = " not in failure.traceback  # local variables may hold secrets
        to_json(events)


def test_what_a_program_has_caught_before_it_exits_is_what_it_has_failed_of() -> None:
    def exit_with(code: Any, *, in_handler: bool) -> SystemExit:
        try:
            try:
                raise ValueError("corrupt batch 17")
            except ValueError:
                if in_handler:
                    sys.exit(code)
            sys.exit(code)
        except SystemExit as error:
            return error

    caught = failure_of(exit_with(1, in_handler=True), "run")
    assert (caught.type, caught.message, caught.exit_code) == ("ValueError", "corrupt batch 17", 1)
    assert failure_of(exit_with(1, in_handler=False), "run").message == "sys.exit(1)"
    assert failure_of(exit_with("no batch", in_handler=True), "run").message == "sys.exit('no batch')"
    assert failure_of(exit_with(0, in_handler=True), "run").message == "sys.exit(0)"


def test_for_a_debugger_the_exception_comes_out_after_it_was_told() -> None:
    events: list[Any] = []
    life = Lifecycle(workload(run=raising(RuntimeError("boom"))), None, events.append)
    life.do("setup", reraise=True)

    with pytest.raises(RuntimeError, match="boom"):
        life.do("run", reraise=True)

    assert story(events) == ["setup ok", "run failed"]


# progress


class Clock:
    """In place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lifecycle, "time", clock)
    return clock


def test_steps_in_quick_succession_are_not_all_told_and_the_last_one_is_kept(clock: Clock, tmp_path: Path) -> None:
    events: list[Any] = []
    thing = SimpleNamespace()
    report_progress_to(thing, events.append, tmp_path / "steps")

    for step in range(1000):
        clock.now = 100.0 + step / 1000
        thing.progress(step, 1000)

    steps = [event["step"] for event in events]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert 9 <= len(steps) <= 11
    assert steps[-1] < 999
    assert read_steps(tmp_path / "steps") == {"type": "progress", "step": 999, "total": 1000}


def test_a_step_that_is_on_a_gpu_is_not_waited_for(clock: Clock, tmp_path: Path) -> None:
    class OnGpu:
        """In place of a tensor on a GPU."""

        is_cuda = True
        waited = 0

        def __int__(self) -> int:
            self.waited += 1
            return 3

    step: Any = OnGpu()
    thing = SimpleNamespace()
    report_progress_to(thing, lambda event: None, tmp_path / "steps")

    for _ in range(100):
        thing.progress(step)

    assert step.waited == 1
    assert read_steps(tmp_path / "steps") == {"type": "progress", "step": 3, "total": None}


def test_progress_needs_no_total_and_takes_any_integer(clock: Clock) -> None:
    events: list[Any] = []
    thing = SimpleNamespace()
    report_progress_to(thing, events.append)

    thing.progress(np.int64(3))
    clock.now += 1
    thing.progress(torch.tensor(4), np.int32(5))

    assert events == [
        {"type": "progress", "step": 3, "total": None},
        {"type": "progress", "step": 4, "total": 5},
    ]
    to_json(events)


def test_a_class_with_slots_lives_without_progress() -> None:
    events = live(workload(__slots__=(), run=lambda self: WorkloadResult(not hasattr(self, "progress"))))

    assert story(events) == ["setup ok", "run ok", "cleanup ok"]
    assert events[3]["result"].passed is True
