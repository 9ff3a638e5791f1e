"""A record never contradicts itself: what is refused on reading, what is made to agree, and what is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pydantic
from support.records import record

from pytest_aorta.trials.outcome import Observation, doubts, recorded_result, warnings_of
from pytest_aorta.trials.records import Failure, RankRecord, ResultRecord
from pytest_aorta.trials.result import TrialResult

SCHEMA = json.loads((files("pytest_aorta") / "schemas" / "trial_result.schema.json").read_text())


def is_refused(data: dict[str, Any]) -> str | None:
    """Why a record is refused; ``None`` when it is accepted. What the schema refuses, the reader does."""
    try:
        TrialResult.from_dict(data)
    except pydantic.ValidationError as error:
        return str(error)
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(data)
    return None


def failure(phase: str, kind: str) -> dict[str, Any]:
    return {"phase": phase, "kind": kind, "message": "m"}


def test_a_record_that_contradicts_itself_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"result": {"passed": False}}, "exit_status is 'ok', but result.passed is false"),
        *(
            (
                {"exit_status": status, "result": {"passed": True}},
                f"exit_status is '{status}', but result.passed is true",
            )
            for status in ("workload_failed", "infrastructure_failed", "timeout")
        ),
        ({"failure": failure("run", "exception")}, "exit_status is 'ok', but failure.phase is 'run'"),
        *(
            ({"exit_status": status, "failure": failure("run", kind)}, f"'{status}', but failure.kind is '{kind}'")
            for status, kind in [("timeout", "signal"), ("workload_failed", "stall")]
        ),
        ({"result": {"passed": "true"}}, "result.passed"),
        ({"result": {"passed": 1}}, "result.passed"),
    ]
    for changes, said in cases:
        refused = is_refused(record(**changes))

        assert refused is not None
        assert said in refused


def test_a_time_that_is_none_is_refused() -> None:
    for place in ["wall_clock_sec", "result.elapsed_sec", "result.step_times_ms", "phases_sec"]:
        time_cases: list[object] = [-1.0, -0.001, "NaN", "Infinity", "-Infinity", "3.5", True]
        for time in time_cases:
            places: dict[str, dict[str, Any]] = {
                "wall_clock_sec": {"wall_clock_sec": time},
                "result.elapsed_sec": {"result": {"passed": True, "elapsed_sec": time}},
                "result.step_times_ms": {"result": {"passed": True, "step_times_ms": [1.0, time]}},
                "phases_sec": {"phases_sec": {"run": time}},
            }

            refused = is_refused(record(**places[place]))

            assert refused is not None
            assert place in refused


def test_what_agrees_is_accepted() -> None:
    cases: list[dict[str, Any]] = [
        {"failure": failure("cleanup", "exception")},
        {"failure": failure("cleanup", "timeout")},
        {"exit_status": "timeout"},
        {"exit_status": "timeout", "failure": failure("setup", "stall")},
        {"exit_status": "infrastructure_failed", "failure": failure("launch", "signal")},
        {"wall_clock_sec": None, "result": {"passed": True, "elapsed_sec": None}},
        {"wall_clock_sec": 0, "phases_sec": {"run": 0.0}},
        {"result": {"passed": True, "failure_count": 3}},
    ]
    for changes in cases:
        assert is_refused(record(**changes)) is None


def test_a_record_with_the_fields_of_aorta_alone_is_read() -> None:
    labels = {"image": "<image-ref>", "digest": "sha256:...", "venv": None, "rocm": None, "source_package": "aorta"}
    data = record(
        execution_env={"kind": "docker", "name": "<environment-name>", **labels},
        config={"lr": 0.1},
        env={"hostname": "node7"},
        result={"passed": True, "failure_count": 0, "step_times_ms": [82.5], "elapsed_sec": 412.5, "metrics": {"a": 1}},
    )
    for name in ("cell", "trial_index", "started_at", "host", "request_fingerprint"):
        del data[name]

    assert is_refused(data) is None
    read = TrialResult.from_dict(data)
    assert read.to_dict().items() >= {"trial_index": None, "cell": None, "host": None, "failure": None}.items()
    for part in ("config", "env", "wall_clock_sec", "exit_status"):
        assert read.to_dict()[part] == data[part]
    for part in ("execution_env", "result"):
        assert read.to_dict()[part].items() >= data[part].items()
    assert TrialResult.from_dict(read.to_dict()) == read


def failing(rank: int, kind: Any = "exception") -> Failure:
    return Failure(phase="run", kind=kind, type="ValueError", rank=rank, message="boom")


def of_ranks(cause: Failure, *ranks: RankRecord) -> ResultRecord:
    named = replace(cause, message=f"rank {cause.rank}: {cause.message}")
    return recorded_result(Observation(result=ranks[0].result, ranks=list(ranks), rank_failure=named))


def test_the_cause_is_named_and_ranks_that_only_followed_do_not_count() -> None:
    passed, own = ResultRecord(True, metrics={"loss": 1.0}), ResultRecord(False, 1, failure_details=[{"step": 7}])
    cause = {"rank": 1, "phase": "run", "kind": "exception", "type": "ValueError", "message": "boom"}
    result = of_ranks(failing(1), RankRecord(0, result=passed), RankRecord(1, failure=failing(1)))
    assert result == ResultRecord(False, 1, failure_details=[cause], metrics={"loss": 1.0})

    result = of_ranks(
        failing(2, "signal"),
        RankRecord(0, result=own),
        RankRecord(1, failure=failing(1)),
        RankRecord(2, failure=failing(2, "signal")),
        RankRecord(3, failure=failing(3), collateral=True),
        RankRecord(4, result=ResultRecord(True), failure=replace(failing(4), phase="cleanup")),
    )
    assert result.failure_count == 2
    assert [(detail.get("step"), detail.get("rank")) for detail in result.failure_details] == [(7, None), (None, 2)]


def test_failures_that_a_rank_has_listed_itself_are_not_listed_twice() -> None:
    combined = ResultRecord(False, 2, failure_details=[{"rank": 1, "step": 3}])
    ranks = RankRecord(0, result=combined), RankRecord(1, failure=failing(1, "result"))

    assert of_ranks(failing(1, "result"), *ranks).failure_details == [{"rank": 1, "step": 3}]


def test_what_a_result_says_against_its_own_passed_is_named() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"failure_count": 0, "main_work_started": True}, []),
        ({"executed_iterations": 3, "configured_iterations": 10}, []),
        ({"executed_iterations": 0, "configured_iterations": 0}, []),
        ({"executed_iterations": None, "configured_iterations": 10, "total_iterations": 10}, []),
        ({"main_work_started": False}, ["passed=True, but main_work_started=False"]),
        ({"executed_iterations": 0, "configured_iterations": 10}, ["passed=True, but 0 of 10 iterations"]),
        ({"total_iterations": 0, "configured_iterations": 10}, ["passed=True, but 0 of 10 iterations"]),
        ({"metrics": {"loss": 0.5, "name": "nan"}}, []),
        (
            {"metrics": {"a": {"b": [1.0, math.nan, math.nan]}}},
            ["passed=True, but a.b is nan (--aorta-fail-on-nonfinite fails such trials)"],
        ),
        (
            {"metrics": dict.fromkeys("abcd", -math.inf)},
            [
                *(f"passed=True, but {name} is -inf (--aorta-fail-on-nonfinite fails such trials)" for name in "abc"),
                "passed=True, but 4 metrics are not finite",
            ],
        ),
        (
            {"output": {"detected": {"oom": {"lines": 1}}}},
            ["passed=True, but its output says oom (--aorta-fail-on=@oom fails such trials)"],
        ),
    ]
    for result, said in cases:
        passed = ResultRecord(True, **result)
        assert doubts(passed) == said
        assert warnings_of(Observation(result=passed)) == said
        if passed.output:  # of all ranks of a command
            assert warnings_of(Observation(result=passed, ranks=[RankRecord(0, result=ResultRecord(True))])) == said
        assert doubts(ResultRecord(False, **result)) == []


def test_what_other_ranks_say_is_named_with_their_numbers() -> None:
    right, wrong = ResultRecord(True), ResultRecord(True, main_work_started=False)
    seen = Observation(result=right, ranks=[RankRecord(rank, result=wrong if rank else right) for rank in range(4)])

    assert warnings_of(seen) == ["rank 1 and 2 more: passed=True, but main_work_started=False"]
