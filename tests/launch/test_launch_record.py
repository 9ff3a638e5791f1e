"""Whatever was seen of a trial, however it went and wherever it broke off, there is one complete record of it."""

from __future__ import annotations

import json
from typing import Any, get_args

from hypothesis import event as note
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import SPEC

from pytest_aorta.launch.environment import PreparedCell, WorkloadInfo
from pytest_aorta.launch.launch_mode import LaunchPlan
from pytest_aorta.launch.record import build_record
from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.outcome import Observation, conclude
from pytest_aorta.trials.records import Failure, Phase, RankRecord, ResultRecord
from pytest_aorta.trials.result import ExitStatus, TrialResult
from pytest_aorta.trials.workload import read_result

Event = Any  # as it comes through a channel

INFO = WorkloadInfo(
    launch_mode="single_process",
    min_world_size=1,
    result_scope="global",
    timeout_sec=None,
    source=None,
    sources={"w.py": "digest"},
    config={"lr": float("nan")},
)
CELL = PreparedCell(INFO, LaunchPlan("single"))

errors = st.sampled_from(
    [ValueError("x"), KeyboardInterrupt(), SystemExit(3), SystemExit("no licence"), SystemExit(10**5000), OSError(28)]
)
returned = st.fixed_dictionaries(
    {"passed": st.booleans()},
    optional={
        "failure_count": st.integers() | st.text(max_size=3) | st.floats(),
        "first_failure_iteration": st.none() | st.integers(),
        "failure_details": st.lists(st.dictionaries(st.text(max_size=3), st.floats(), max_size=2), max_size=2),
        "step_times_ms": st.lists(st.floats() | st.text(max_size=3), max_size=3) | st.just("many"),
        "elapsed_sec": st.floats() | st.text(max_size=3),
        "metrics": st.dictionaries(st.text(max_size=3), st.floats() | st.integers(), max_size=2) | st.floats(),
        "main_work_started": st.booleans() | st.integers(),
        "executed_iterations": st.integers(0, 1),
        "configured_iterations": st.integers(0, 1),
    },
)
rank_failures = st.builds(
    lambda phase, kind, rank: Failure(phase=phase, kind=kind, rank=rank, message=f"rank {rank}"),
    st.sampled_from(["import", "setup", "run", "cleanup"]),
    st.sampled_from(["exception", "signal", "exit_code", "timeout", "result", "rank"]),
    st.integers(0, 1),
)


@st.composite
def lives(draw: st.DrawFn) -> list[Event]:
    """What a trial's process says of itself when it is not ended early."""
    progress = [{"type": "progress", "step": draw(st.integers(0, 9)), "total": draw(st.none() | st.just(9))}]
    said: list[Event] = []
    if draw(st.booleans()):  # a fresh interpreter
        if draw(st.booleans()):
            return [{"type": "failed", "error": {"type": "ImportError", "message": "no", "traceback": ""}}]
        said.append({"type": "prepared"})
    said.append({"type": "env", "env": {"env_vars": {}}})

    def phase(name: Phase, **news: Any) -> bool:
        failure = draw(st.none() | errors)
        end = {"failure": failure_of(failure, name)} if failure is not None else news
        said.extend([{"type": "begin", "phase": name}, *progress, {"type": "end", "phase": name, "sec": 0.5, **end}])
        return failure is None

    if phase("setup"):
        phase("run", result=read_result(draw(returned)))
    if draw(st.booleans()):
        phase("cleanup")
    if draw(st.booleans()):
        failure = draw(st.none() | rank_failures)
        ranks = [
            RankRecord(rank, collateral=rank == 1, failure=failure if failure and failure.rank == rank else None)
            for rank in range(2)
        ]
        said.append({"type": "ranks", "ranks": ranks, "failure": failure, "cleanup": None})
    return [*said, {"type": "lived"}]


def observe(life: list[Event], heard: int, deadline: int | None) -> Observation:
    """The first ``heard`` events of a life, the deadline having passed before event ``deadline``."""
    seen = Observation(phase="launch", timeout=30.0)
    for index, event in enumerate(life[:heard]):
        seen.timed_out = seen.timed_out or deadline == index
        seen.see(event)
    return seen


def checked(seen: Observation) -> tuple[TrialResult, ExitStatus]:
    """The record, which goes to JSON and back without loss, and its status."""
    status, failure = conclude(seen)
    record = build_record(SPEC, seen, CELL, started_at="now")
    data = json.loads(json.dumps(record.to_dict(), allow_nan=False))

    assert TrialResult.from_dict(data).to_dict() == record.to_dict()
    assert record.exit_status == status
    assert status in get_args(ExitStatus)
    if status == "ok":
        assert record.result.passed
        assert record.failure is None or record.failure.phase == "cleanup"
    else:
        assert failure is not None
        assert record.failure is not None
        assert record.failure.message or record.failure.type
        assert status == "timeout" or record.failure.kind not in ("timeout", "stall")
        assert not record.result.passed
    if seen.rank_failure is not None:
        assert (record.result.failure_count or 0) >= 1
        assert seen.rank_failure.rank in [detail.get("rank") for detail in record.result.failure_details]
    return record, status


@given(
    lives(),
    st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.sampled_from([0, 3, -11, None]),
    st.booleans(),
)
@example([], 0, None, None, True)
def test_every_end_of_every_life_has_a_record(
    life: list[Event], heard: int, deadline: int | None, returncode: int | None, lost: bool
) -> None:
    seen = observe(life, heard, deadline)
    seen.returncode = returncode
    if lost:
        seen.lost = Failure(phase=seen.phase, kind="signal", signal="SIGKILL", message="its host process died")

    record, status = checked(seen)

    note(status)
    if lost and seen.result is None:
        assert status == "infrastructure_failed"
    # What came before the work is never blamed on the workload.
    if record.failure is not None and record.failure.phase in ("launch", "import", "setup") and seen.result is None:
        assert status in ("infrastructure_failed", "timeout")
    if status == "workload_failed":
        assert record.failure is not None
        assert record.failure.phase in ("run", "cleanup") or seen.result is not None


PHASES: tuple[Phase, ...] = get_args(Phase)


@given(
    phase=st.sampled_from(PHASES),
    returncode=st.sampled_from([0, 3, -11, -200, None]),
    timed_out=st.booleans(),
    lost=st.booleans(),
    passed=st.sampled_from([None, False, True]),
)
def test_no_combination_is_without_a_record(
    phase: Phase, returncode: int | None, timed_out: bool, lost: bool, passed: bool | None
) -> None:
    """Also those that should not be possible: if one occurs, its record is needed most."""
    seen = Observation(phase=phase, returncode=returncode, timed_out=timed_out)
    if passed is not None:
        seen.result = ResultRecord(passed)
        seen.phase = "cleanup"
    if lost:
        seen.lost = Failure(phase=seen.phase, kind="signal", message="its host process died")

    _, status = checked(seen)

    if passed is not None:
        assert status == ("ok" if passed else "workload_failed")
    elif lost:
        assert status == "infrastructure_failed"
    elif timed_out:
        assert status == "timeout"
