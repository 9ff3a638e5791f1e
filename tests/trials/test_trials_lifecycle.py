"""A trial's life in its own process, told as events, whatever the workload raises or returns."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta import WorkloadResult
from pytest_aorta.trials import lifecycle
from pytest_aorta.trials.lifecycle import Lifecycle, NotAResult, report_progress_to, result_to_plain
from pytest_aorta.trials.outcome import Observed, conclude
from pytest_aorta.trials.result import ResultRecord


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
    return type("Sample", (), {name: method for name, method in given.items() if method is not None})


def live(cls: type[Any], config: Any = None) -> list[Any]:
    events: list[Any] = []
    Lifecycle(cls, config, events.append).run_all()
    return events


def story(events: list[Any]) -> list[str]:
    """``setup ok``, ``run failed``, ... for every phase that has ended."""
    ends = [event for event in events if event["type"] == "end"]
    return [f"{event['phase']} {'failed' if 'failure' in event else 'ok'}" for event in ends]


def test_the_phases_follow_each_other_and_each_has_a_beginning_an_end_and_a_duration() -> None:
    events = live(workload())

    assert [(event["type"], event["phase"]) for event in events] == [
        *(("begin", "setup"), ("end", "setup")),
        *(("begin", "run"), ("end", "run")),
        *(("begin", "cleanup"), ("end", "cleanup")),
    ]
    assert all(event["sec"] >= 0 for event in events if event["type"] == "end")
    assert [event["result"]["passed"] for event in events if "result" in event] == [True]


def test_the_constructor_gets_the_config() -> None:
    received = []

    live(workload(__init__=lambda self, config: received.append(config)), {"steps": 3})

    assert received == [{"steps": 3}]


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("__init__", ["setup failed"]),
        ("setup", ["setup failed", "cleanup ok"]),
        ("run", ["setup ok", "run failed", "cleanup ok"]),
        ("cleanup", ["setup ok", "run ok", "cleanup failed"]),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_whatever_is_raised_the_phase_ends_and_what_was_constructed_is_cleaned_up(
    method: str, told: list[str], error: BaseException
) -> None:
    def method_that_raises(self: Any, *arguments: Any) -> None:
        raise error

    events = live(workload(**{method: method_that_raises}))

    assert story(events) == told
    failure = next(event["failure"] for event in events if "failure" in event)
    assert failure["kind"] == "exception"
    assert failure["type"] == type(error).__name__
    assert "method_that_raises" in failure["traceback"]
    json.dumps(events)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (SystemExit(), 0, "sys.exit(None)"),
        (SystemExit(0), 0, "sys.exit(0)"),
        (SystemExit(3), 3, "sys.exit(3)"),
        (SystemExit(2**70), 255, "sys.exit(255)"),
        (SystemExit("bad data"), 1, "sys.exit('bad data')"),
    ],
    ids=repr,
)
def test_a_call_of_sys_exit_tells_its_code(error: SystemExit, code: int, message: str) -> None:
    events = live(workload(run=raising(error)))

    failure = next(event["failure"] for event in events if "failure" in event)
    assert (failure["exit_code"], failure["message"]) == (code, message)


def test_a_code_that_cannot_even_be_written_is_the_one_that_python_takes_it_for() -> None:
    (failure,) = (event["failure"] for event in live(workload(run=raising(SystemExit(10**5000)))) if "failure" in event)

    assert (failure["exit_code"], failure["message"]) == (255, "sys.exit(255)")


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class StrOfItsOwn(Exception):
    def __str__(self) -> str:
        return Text("own")


class Text(str):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StrRaises(), "<StrRaises.__str__ raised ZeroDivisionError>"),
        (SystemExit(Unprintable()), "sys.exit('<SystemExit.__str__ raised ZeroDivisionError>')"),
        (ValueError("caf\udce9 \0"), "caf\udce9 \0"),
        (StrOfItsOwn(), "own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_that_cannot_be_shown_is_told_nevertheless(error: BaseException, message: str) -> None:
    events = live(workload(run=raising(error)))

    failure = next(event["failure"] for event in events if "failure" in event)
    assert failure["message"] == message
    assert "in method" in failure["traceback"]
    json.dumps(events)


def test_the_local_variables_of_a_traceback_are_not_told() -> None:
    def run(self: Any) -> None:
        password = "hunter" + "2"
        raise ValueError(len(password))

    assert "hunter2" not in json.dumps(live(workload(run=run)))


def test_a_workload_needs_no_cleanup() -> None:
    events = live(workload(cleanup=None))

    assert story(events) == ["setup ok", "run ok", "cleanup ok"]


def test_for_a_debugger_the_exception_comes_out_after_it_was_told() -> None:
    events: list[Any] = []
    life = Lifecycle(workload(run=raising(RuntimeError("boom"))), None, events.append)
    life.setup(reraise=True)

    with pytest.raises(RuntimeError, match="boom"):
        life.run(reraise=True)

    assert story(events) == ["setup ok", "run failed"]


def test_what_is_told_is_what_the_parent_concludes_from() -> None:
    seen = Observed()
    for event in live(workload(run=lambda self: WorkloadResult(False, failure_count=2))):
        seen.see(event)

    assert conclude(seen)[0] == "workload_failed"


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


def test_steps_in_quick_succession_are_not_all_told(clock: Clock) -> None:
    events: list[Any] = []
    thing = SimpleNamespace()
    report_progress_to(thing, events.append)

    for step in range(1000):
        clock.now = 100.0 + step / 1000
        thing.progress(step, 1000)

    steps = [event["step"] for event in events]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert 9 <= len(steps) <= 11


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
    json.dumps(events)


def test_progress_is_told_between_the_beginning_and_the_end_of_run() -> None:
    def run(self: Any) -> WorkloadResult:
        self.progress(1, 2)
        return WorkloadResult(True)

    kinds = [event["type"] for event in live(workload(run=run))]

    assert kinds == ["begin", "end", "begin", "progress", "end", "begin", "end"]


def test_a_class_with_slots_lives_without_progress() -> None:
    class Slotted:
        __slots__ = ("config",)

        def __init__(self, config: object) -> None:
            self.config = config

        def setup(self) -> None: ...

        def run(self) -> WorkloadResult:
            return WorkloadResult(not hasattr(self, "progress"))

    events = live(Slotted)

    assert story(events) == ["setup ok", "run ok", "cleanup ok"]
    assert events[3]["result"]["passed"] is True


# results


@dataclass
class Foreign:
    """A result class of another package."""

    passed: bool
    metrics: dict[str, Any]
    something_else: int = 1


class Duck:
    passed = np.bool_(True)

    @property
    def failure_count(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (WorkloadResult(True, metrics={"tflops": 1.5}), {"passed": True, "metrics": {"tflops": 1.5}}),
        (Foreign(False, {"a": 1}), {"passed": False, "metrics": {"a": 1}}),
        ({"passed": 1, "total_iterations": 3, "extra": 4}, {"passed": True, "total_iterations": 3}),
        (SimpleNamespace(passed=torch.tensor(False)), {"passed": False}),
        (Duck(), {"passed": True, "failure_count": 2}),
        (Duck, {"passed": True}),
    ],
    ids=["WorkloadResult", "dataclass", "dict", "tensor", "object", "class"],
)
def test_any_result_with_passed_is_one(result: object, kept: dict[str, Any]) -> None:
    plain = result_to_plain(result)

    assert plain.items() >= kept.items()
    assert "extra" not in plain
    assert "something_else" not in plain
    ResultRecord.model_validate(plain)


@pytest.mark.parametrize(
    "result", [None, True, 0, "ok", {}, {"Passed": True}, object(), [True]], ids=lambda result: type(result).__name__
)
def test_what_has_no_passed_is_no_result(result: object) -> None:
    with pytest.raises(NotAResult, match="which has no 'passed'; return a WorkloadResult"):
        result_to_plain(result)

    events = live(workload(run=lambda self: result))
    assert story(events) == ["setup ok", "run failed", "cleanup ok"]
    assert events[3]["failure"]["kind"] == "result"


def test_a_result_that_cannot_be_read_fails_the_run() -> None:
    class Hostile:
        @property
        def passed(self) -> bool:
            raise RuntimeError("lazy evaluation failed")

    events = live(workload(run=lambda self: Hostile()))

    assert story(events) == ["setup ok", "run failed", "cleanup ok"]
    assert events[3]["failure"]["message"] == "lazy evaluation failed"


def test_what_could_not_be_kept_is_noted_among_the_details() -> None:
    plain = result_to_plain(WorkloadResult(False, failure_details=[{"step": 3}], metrics={"model": object()}))

    assert plain["failure_details"][0] == {"step": 3}
    assert plain["failure_details"][1]["note"].startswith("metrics.model: object has no JSON form")


def test_details_and_metrics_of_other_shapes_are_wrapped() -> None:
    result: Any = {"passed": False, "failure_details": ["step 3 diverged", {"step": 4}], "metrics": [1, 2]}

    plain = result_to_plain(result)

    assert plain["failure_details"] == [{"detail": "step 3 diverged"}, {"step": 4}]
    assert plain["metrics"] == {"value": [1, 2]}
    assert result_to_plain({"passed": True, "failure_details": "one"})["failure_details"] == [{"detail": "one"}]


@pytest.mark.parametrize(
    "times",
    [[1, 2.5], (1, 2.5), np.array([1, 2.5]), torch.tensor([1, 2.5]), [np.float32(1), torch.tensor(2.5)]],
    ids=["list", "tuple", "numpy", "torch", "scalars"],
)
def test_step_times_are_floats_wherever_they_come_from(times: Any) -> None:
    plain = result_to_plain({"passed": True, "step_times_ms": times})

    assert plain["step_times_ms"] == [1.0, 2.5]
    assert all(type(time) is float for time in plain["step_times_ms"])


def test_step_times_of_a_long_run_are_all_kept() -> None:
    assert len(result_to_plain({"passed": True, "step_times_ms": np.zeros(50_000)})["step_times_ms"]) == 50_000


def test_step_times_that_are_no_numbers_are_left_out_and_noted() -> None:
    plain = result_to_plain({"passed": True, "step_times_ms": [1.0, None, "slow", math.nan]})

    assert plain["step_times_ms"][0] == 1.0
    assert math.isnan(plain["step_times_ms"][1])
    assert plain["failure_details"] == [{"note": "step_times_ms: 2 of 4 are no numbers; left out"}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failure_count", 1.5),
        ("failure_count", "three"),
        ("failure_count", math.inf),
        ("total_iterations", [3]),
        ("first_failure_iteration", "none"),
        ("elapsed_sec", "12 s"),
        ("main_work_started", 3),
    ],
)
def test_a_field_of_the_wrong_type_costs_that_field_and_is_noted(field: str, value: object) -> None:
    plain = result_to_plain({"passed": True, field: value})

    assert field not in plain
    assert plain["failure_details"] == [{"note": f"{field}: {value!r} is not of its type; left out"}]
    assert ResultRecord.model_validate(plain).passed


@pytest.mark.parametrize("count", [3, 3.0, np.int64(3), torch.tensor(3), np.float32(3)], ids=repr)
def test_a_count_may_be_any_whole_number(count: object) -> None:
    assert ResultRecord.model_validate(result_to_plain({"passed": True, "failure_count": count})).failure_count == 3


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=4,
)
_field_names = [name for name in WorkloadResult.__dataclass_fields__ if name != "passed"]


@given(st.fixed_dictionaries({"passed": st.booleans()}, optional=dict.fromkeys(_field_names, _anything)))
def test_whatever_the_fields_hold_there_is_a_record_of_it(result: dict[str, Any]) -> None:
    plain = result_to_plain(result)

    json.dumps(plain)
    record = ResultRecord.model_validate(plain)
    assert record.passed is result["passed"]
    json.dumps(record.model_dump(mode="json"), allow_nan=False)
