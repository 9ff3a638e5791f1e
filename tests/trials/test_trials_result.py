"""The record of a trial: its key paths, its way to JSON and back, its published schema."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.trials.execution import Limits, Resources
from pytest_aorta.trials.records import Failure, FailureKind, Phase, RankRecord, ResultRecord
from pytest_aorta.trials.result import (
    ExecutionEnv,
    ExitStatus,
    ReplayOf,
    Request,
    RequestedEnvironment,
    RequestedWorkload,
    StartedBy,
    TrialResult,
    schema_text,
)

PUBLISHED = Path(__file__).parents[2] / "docs" / "trial_result.schema.json"

unicode = st.text(max_size=8) | st.sampled_from(["NaN", "\\NaN", "Infinity", "-Infinity"])
# Bytes that are not UTF-8 reach Python like this. (JSON has one text for a character and the two halves of it.)
text = unicode | st.binary(max_size=8).map(os.fsdecode)
optional_text = st.none() | text
optional_int = st.none() | st.integers()
free_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    # Only in keys are lone surrogates escaped before there is a record.
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(unicode, inner, max_size=3),
    max_leaves=5,
)
free = st.dictionaries(unicode, free_value, max_size=3)
failures = st.builds(
    Failure,
    phase=st.sampled_from(get_args(Phase)),
    kind=st.sampled_from(get_args(FailureKind)),
    type=optional_text,
    message=text,
    traceback=optional_text,
    signal=optional_text,
    exit_code=optional_int,
    rank=optional_int,
    stacks=optional_text,
)
durations = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


def agreeing(exit_status: ExitStatus, failure: Failure | None, result: ResultRecord, **fields: Any) -> TrialResult:
    """A record in which the result and the failure are such that they can have this status."""
    if failure is not None:
        late = exit_status == "timeout" or (exit_status == "ok" and failure.kind == "timeout")
        phase: Phase = "cleanup" if exit_status == "ok" else failure.phase
        kind: FailureKind = "stall" if late else "signal" if failure.kind in ("timeout", "stall") else failure.kind
        failure = replace(failure, phase=phase, kind=kind)
    result = replace(result, passed=exit_status == "ok")
    return TrialResult(exit_status=exit_status, failure=failure, result=result, **fields)


requests = st.builds(
    Request,
    workload=st.builds(RequestedWorkload, name=text, target=text, source_package=text),
    environment=st.builds(
        RequestedEnvironment, name=text, venv=optional_text, launcher=st.lists(text, max_size=2), source_package=text
    ),
    overlay=st.dictionaries(unicode, text, max_size=2),
    ambient=st.dictionaries(unicode, optional_text, max_size=2),
    config=free,
    elastic=free,
    seed=optional_int,
    limits=st.builds(Limits, timeout=st.none() | st.floats(0, 10), memory=optional_int),
    resources=st.builds(Resources, devices=st.none() | st.tuples(st.integers()), hosts=st.tuples(text)),
    interpreter=text,
    cwd=text,
    sys_path=st.lists(text, max_size=2),
)
trial_results = st.builds(
    agreeing,
    trial_id=text,
    workload=text,
    cell=optional_text,
    trial_index=optional_int,
    execution_env=st.builds(
        ExecutionEnv,
        kind=st.sampled_from(["local", "venv", "docker", "rocm"]),
        name=text,
        image=optional_text,
        digest=optional_text,
        venv=optional_text,
        rocm=optional_text,
        verified=st.none() | st.booleans(),
        source_package=text,
    ),
    mitigations_applied=st.lists(text, max_size=2),
    config=free,
    env=free,
    result=st.builds(
        ResultRecord,
        passed=st.booleans(),
        failure_count=optional_int,
        first_failure_iteration=optional_int,
        failure_details=st.lists(free, max_size=2),
        total_iterations=optional_int,
        step_times_ms=st.lists(durations, max_size=3),
        elapsed_sec=st.none() | durations,
        metrics=free,
        main_work_started=st.none() | st.booleans(),
        executed_iterations=optional_int,
        configured_iterations=optional_int,
        output=free,
    ),
    wall_clock_sec=st.none() | durations,
    exit_status=st.sampled_from(get_args(ExitStatus)),
    failure=st.none() | failures,
    warnings=st.lists(text, max_size=2),
    ranks=st.lists(
        st.builds(
            RankRecord,
            rank=st.integers(),
            local_rank=optional_int,
            pid=optional_int,
            exit_code=optional_int,
            signal=optional_text,
            passed=st.none() | st.booleans(),
            failure=st.none() | failures,
            collateral=st.booleans(),
            stdout=optional_text,
            stderr=optional_text,
        ),
        max_size=2,
    ),
    phases_sec=st.dictionaries(unicode, durations, max_size=2),
    started_at=optional_text,
    host=optional_text,
    request_fingerprint=optional_text,
    request=st.none() | requests,
    replay_of=st.none()
    | st.builds(
        ReplayOf, file=text, started_at=text, exit_status=st.just("ok"), differences=st.lists(text, max_size=2)
    ),
    test=st.none() | st.builds(StartedBy, node_id=text, options=text),
    artifacts=st.dictionaries(unicode, text, max_size=2),
)


def a_record(**fields: Any) -> TrialResult:
    """A complete record with little in it."""
    environment = ExecutionEnv(kind="local", name="local", source_package="pytest-aorta")
    given = {
        "trial_id": "w_d0_m0_t0",
        "workload": "w",
        "cell": "local-none",
        "trial_index": 0,
        "execution_env": environment,
        "mitigations_applied": ["none"],
        "config": {},
        "env": {},
        "result": ResultRecord(passed=True),
        "wall_clock_sec": 1.5,
        "exit_status": "ok",
        "started_at": "2024-01-01T00:00:00.000+00:00",
        "host": "here",
        **fields,
    }
    return TrialResult(**given)


def exact(value: object) -> object:
    """A form in which a NaN equals a NaN, and 1, 1.0 and True are three values."""
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    return type(value), value.hex() if isinstance(value, float) else value


@settings(max_examples=50)
@given(trial_results)
def test_a_record_fits_the_published_schema_and_comes_back_from_strict_json_without_loss(record: TrialResult) -> None:
    data = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    validator().validate(data)

    again = TrialResult.from_dict(data)

    assert exact(again.model_dump()) == exact(record.model_dump())
    assert exact(again.to_dict()) == exact(record.to_dict())


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))


def test_the_published_schema_is_that_of_the_code() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "pytest_aorta.trials.result"], capture_output=True, text=True, check=True
    ).stdout

    assert printed == schema_text()
    assert PUBLISHED.read_text() == printed, (
        f"publish it again: python -m pytest_aorta.trials.result > {PUBLISHED.relative_to(Path(__file__).parents[2])}"
    )


def test_the_key_paths_are_those_that_readers_rely_on() -> None:
    record = a_record(
        failure=Failure(phase="cleanup", kind="exception"), ranks=[RankRecord(rank=0)], phases_sec={"run": 1.0}
    ).to_dict()

    assert set(record) == {
        *("schema_version", "trial_id", "workload", "execution_env", "mitigations_applied", "config", "env", "result"),
        *("wall_clock_sec", "exit_status"),
        *(
            "cell",
            "trial_index",
            "request_fingerprint",
            "request",
            "replay_of",
            "test",
            "seeds",
            *("preloaded", "not_preloaded"),
            "failure",
            "warnings",
            "ranks",
            "elastic",
            "phases_sec",
            "started_at",
            "host",
        ),
        *("artifacts", "collected", "fingerprint_parts", "imposed", "side_by_side"),
    }
    assert set(record["execution_env"]) == {
        *("kind", "name", "image", "digest", "venv", "rocm", "source_package", "verified", "claims", "entered_with"),
    }
    assert set(record["result"]) == {
        *("passed", "failure_count", "first_failure_iteration", "failure_details", "total_iterations"),
        *("step_times_ms", "elapsed_sec", "metrics", "output"),
        *("main_work_started", "executed_iterations", "configured_iterations"),
    }
    assert set(record["failure"]) == {
        *("phase", "kind", "type", "message", "traceback", "signal", "exit_code", "rank", "stacks", "at"),
        *("confidence", "evidence", "infrastructure"),
    }
    assert record["schema_version"] == "0.1"
    assert next(iter(record)) == "schema_version"


def test_a_nan_is_a_text_in_the_file_and_a_number_for_the_reader() -> None:
    result = ResultRecord(passed=True, metrics={"loss": math.nan}, failure_details=[{"worst": -math.inf}])

    data = a_record(result=result).to_dict()
    again = TrialResult.from_dict(data)

    assert data["result"]["metrics"] == {"loss": "NaN"}
    assert data["result"]["failure_details"] == [{"worst": "-Infinity"}]
    assert math.isnan(again.result.metrics["loss"])
    assert again.result.failure_details == [{"worst": -math.inf}]


def test_keys_of_a_later_schema_are_ignored() -> None:
    data = a_record().to_dict()
    data["verdict"] = "innocent"
    data["result"]["later"] = {"deep": 1}
    data["execution_env"]["conda"] = "base"

    assert TrialResult.from_dict(data) == a_record()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("trial_id",), "trial_id"),
        (("exit_status",), "exit_status"),
        (("result",), "result"),
        (("result", "passed"), "result.passed"),
        (("execution_env", "kind"), "execution_env.kind"),
    ],
)
def test_a_missing_field_is_named(path: tuple[str, ...], named: str) -> None:
    data = a_record().to_dict()
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]

    with pytest.raises(pydantic.ValidationError) as caught:
        TrialResult.from_dict(data)

    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [named]
    assert named in str(caught.value)
