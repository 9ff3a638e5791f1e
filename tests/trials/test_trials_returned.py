"""What ``run()`` returned, whatever it is, as plain data for the record."""

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
from pydantic import TypeAdapter

from pytest_aorta import WorkloadResult
from pytest_aorta.trials.lifecycle import Lifecycle
from pytest_aorta.trials.outcome import Observation, conclude, unpassed_failure
from pytest_aorta.trials.records import ResultRecord, to_json
from pytest_aorta.trials.workload import read_result


def outcome_of(result: object) -> tuple[str, Any]:
    """Exit status and failure of a trial whose ``run()`` returns this."""

    class Returns:
        def __init__(self, config: object) -> None: ...

        def setup(self) -> None: ...

        def run(self) -> object:
            return result

    seen = Observation()
    Lifecycle(Returns, None, seen.see).run_all()
    seen.finished, seen.returncode = True, 0
    return conclude(seen)


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


def test_any_result_with_passed_is_one() -> None:
    cases: list[tuple[object, dict[str, Any]]] = [
        (WorkloadResult(True, metrics={"a": 1}), {"passed": True, "metrics": {"a": 1}, "elapsed_sec": None}),
        (Foreign(False, {"a": 1}), {"passed": False, "metrics": {"a": 1}}),
        ({"passed": True, "total_iterations": 3, "extra": 4}, {"passed": True, "total_iterations": 3}),
        (SimpleNamespace(passed=torch.tensor(False)), {"passed": False}),
        (Duck(), {"passed": False, "failure_count": 2}),
        (Duck, {"passed": True}),
    ]
    for result, kept in cases:
        plain = read_result(result)

        assert {name: getattr(plain, name) for name in kept} == kept


def test_passed_is_a_bool_of_python_numpy_or_torch() -> None:
    cases: list[object] = [
        True,
        np.bool_(True),
        np.array(True),
        torch.tensor(True),
        np.float32(1) > 0,
        (torch.ones(3) == 1).all(),
    ]
    for passed in cases:
        assert read_result({"passed": passed}).passed is True
        assert outcome_of(SimpleNamespace(passed=passed))[0] == "ok"


HAS_TO_BE = "; it has to be True or False"


def test_what_is_neither_true_nor_false_is_no_verdict() -> None:
    cases: list[tuple[object, str]] = [
        *(
            (result, f"run() returned {type(result).__name__}, which has no 'passed'; return a WorkloadResult")
            for result in (None, True, 0, "ok", {}, {"Passed": True}, object(), [True])
        ),
        ({"passed": math.nan}, f"run() returned passed=nan (float){HAS_TO_BE}"),
        ({"passed": np.float32("nan")}, f"run() returned passed=nan (float32){HAS_TO_BE}"),
        ({"passed": "false"}, f"run() returned passed='false' (str){HAS_TO_BE}"),
        ({"passed": 1.5}, f"run() returned passed=1.5 (float){HAS_TO_BE}"),
        ({"passed": 1}, f"run() returned passed=1 (int){HAS_TO_BE}"),
        ({"passed": None}, f"run() returned passed=None (NoneType){HAS_TO_BE}"),
        (SimpleNamespace(passed=[]), f"run() returned passed=[] (list){HAS_TO_BE}"),
        ({"passed": torch.tensor([True, True])}, f"run() returned passed=[True, True] (Tensor){HAS_TO_BE}"),
        ({"passed": len}, f"run() returned passed='{len!r}' (builtin_function_or_method){HAS_TO_BE}"),
    ]
    for result, message in cases:
        status, failure = outcome_of(result)

        assert (status, failure.phase, failure.kind) == ("workload_failed", "run", "result")
        assert failure.message == message


def test_a_result_that_cannot_be_read_fails_the_run() -> None:
    class Hostile:
        @property
        def passed(self) -> bool:
            raise RuntimeError("lazy evaluation failed")

    status, failure = outcome_of(Hostile())

    assert status == "workload_failed"
    assert (failure.kind, failure.message) == ("exception", "lazy evaluation failed")


def test_details_and_metrics_of_other_shapes_are_wrapped() -> None:
    result: Any = {"passed": False, "failure_details": ["step 3 diverged", {"step": 4}], "metrics": [1, object]}

    plain = read_result(result)

    note = {"note": "metrics[1]: type has no JSON form; kept as text"}
    assert plain.failure_details == [{"detail": "step 3 diverged"}, {"step": 4}, note]
    assert plain.metrics == {"value": [1, "<class 'object'>"]}
    assert read_result({"passed": True, "failure_details": "one"}).failure_details == [{"detail": "one"}]


def test_step_times_that_are_no_durations_are_left_out_and_noted() -> None:
    plain = read_result({"passed": True, "step_times_ms": [1.0, None, "slow", math.nan, -1.0, math.inf, 0]})

    assert plain.step_times_ms == [1.0, 0.0]
    assert plain.failure_details == [{"note": "step_times_ms: 5 of 7 are not finite numbers of at least 0; left out"}]


def test_a_field_of_the_wrong_type_costs_that_field_and_is_noted() -> None:
    cases: list[tuple[str, object, str]] = [
        ("failure_count", 1.5, "a whole number"),
        ("failure_count", True, "a whole number"),
        ("failure_count", "three", "a whole number"),
        ("failure_count", math.inf, "a whole number"),
        ("total_iterations", [3], "a whole number"),
        ("first_failure_iteration", "none", "a whole number"),
        ("elapsed_sec", "12 s", "a finite number of at least 0"),
        ("elapsed_sec", -0.5, "a finite number of at least 0"),
        ("elapsed_sec", math.nan, "a finite number of at least 0"),
        ("main_work_started", 3, "a bool"),
    ]
    for field, value, expected in cases:
        plain = read_result({"passed": True, field: value})

        assert getattr(plain, field) is None
        assert plain.failure_details == [{"note": f"{field}: {value!r} is not {expected}; left out"}]
        assert plain.passed


def test_a_result_that_has_failures_has_not_passed() -> None:
    record = read_result({"passed": True, "failure_count": 3})
    assert not record.passed
    assert unpassed_failure(record).message == "run() returned passed=True, but failure_count=3"


@pytest.mark.parametrize(
    ("allowed", "metrics", "why"),
    [
        (None, {"loss": math.nan}, ""),
        ("", {"loss": 0.5}, ""),
        ("", {"loss": math.nan}, "loss is nan"),
        ("", {"by": {"rank": [0.1, math.inf]}}, "by.rank is inf"),
        ("best,loss", {"loss": math.nan, "best": math.inf}, ""),
    ],
)
def test_metrics_that_are_not_finite_fail_a_result_where_that_is_asked_for(
    allowed: str | None, metrics: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if allowed is not None:
        monkeypatch.setenv("AORTA_FAIL_ON_NONFINITE", allowed)
    record = read_result({"passed": True, "metrics": metrics})
    assert record.passed is not bool(why)
    if why:
        message = f"run() returned passed=True, but {why} (--aorta-fail-on-nonfinite)"
        assert unpassed_failure(record).message == message


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=4,
)
_field_names = [name for name in WorkloadResult.__dataclass_fields__ if name != "passed"]


@given(st.fixed_dictionaries({"passed": st.booleans()}, optional=dict.fromkeys(_field_names, _anything)))
def test_whatever_the_fields_hold_there_is_a_record_of_it(result: dict[str, Any]) -> None:
    record = read_result(result)
    checked = TypeAdapter(ResultRecord)

    assert record.passed is (result["passed"] and not (record.failure_count or 0) > 0)
    read = checked.validate_python(json.loads(to_json(record)))
    json.dumps(checked.dump_python(read, mode="json"), allow_nan=False)
