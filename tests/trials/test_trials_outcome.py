"""From what was seen of a trial to its exit status; real endings are in tests/plugin/test_plugin_statuses.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_aorta.trials.outcome import Observation, after_step, conclude, interruption
from pytest_aorta.trials.records import Failure, Phase, Progress, RankRecord, ResultRecord

PASSED, UNPASSED = ResultRecord(True), ResultRecord(False)


def failed(phase: Phase, kind: Any = "exception", rank: int | None = None) -> Failure:
    return Failure(phase=phase, kind=kind, rank=rank, message="boom")


RANK_1 = failed("run", "result", 1)
RANK_1_HANGS = failed("run", "timeout", 1)


def test_the_failure_is_what_came_first() -> None:
    cases: list[tuple[dict[str, Any], str, str, str]] = [
        # A result that is not passed is not changed by what comes after it.
        *(
            ({"result": UNPASSED, "phase": "cleanup", **after}, "workload_failed", "run", "result")
            for after in (
                {"failures": {"cleanup": failed("cleanup")}, "finished": True, "returncode": 0},
                {"returncode": -11},
                {"returncode": 0},
                {"returncode": 3},
                {"timed_out": True, "timeout": 30.0, "returncode": -15},
                {"lost": failed("cleanup", "signal")},
            )
        ),
        # Another rank has failed: it is the failure, also where rank 0 has passed.
        ({"result": UNPASSED, "rank_failure": failed("run", "signal", 1)}, "workload_failed", "run", "signal"),
        ({"result": PASSED, "finished": True, "rank_failure": RANK_1}, "workload_failed", "run", "result"),
        # A rank that hangs outweighs what rank 0 has lost by its end.
        (
            {"timed_out": True, "failures": {"run": failed("run")}, "rank_failure": RANK_1_HANGS},
            *("timeout", "run", "timeout"),
        ),
        # A rank that was ended at the deadline is not its cause.
        (
            {"timed_out": True, "phase": "run", "rank_failure": failed("run", "signal", 1)},
            *("timeout", "run", "timeout"),
        ),
        # A failure reported before the deadline is not replaced by the timeout.
        (
            {"timed_out": True, "failures": {"run": failed("run")}, "phase": "cleanup"},
            *("workload_failed", "run", "exception"),
        ),
        # A crash in the cleanup after a failing setup leaves the setup to blame.
        (
            {"failures": {"setup": failed("setup")}, "phase": "cleanup", "returncode": -11},
            *("infrastructure_failed", "setup", "exception"),
        ),
    ]
    for seen, status, phase, kind in cases:
        concluded, failure = conclude(Observation(**seen))

        assert failure is not None
        assert (concluded, failure.phase, failure.kind) == (status, phase, kind)


def test_a_timeout_stays_one_when_the_trial_answers_the_sigterm_with_an_exception() -> None:
    seen = Observation(phase="run", timed_out=True, timeout=30.0, returncode=0)
    seen.see({"type": "end", "phase": "run", "sec": 0.5, "failure": failed("run")})
    seen.see({"type": "lived"})

    status, failure = conclude(seen)

    assert failure is not None
    assert (status, failure.phase, failure.kind) == ("timeout", "run", "timeout")


def test_of_several_ranks_it_is_said_which_one_is_behind() -> None:
    cases: list[tuple[list[int | None], str]] = [
        ([None, None], ""),
        ([3, 3], ", after step 3 of 10"),
        ([None, 3], ", after step 3 of 10"),
        ([5, 3, 4], ", after step 3 (rank 1) to 5 of 10"),
        ([5, 3, 3], ", after step 3 (rank 1) to 5 of 10"),
    ]
    for steps, text in cases:
        seen = Observation()
        for rank, step in enumerate(steps):
            seen.ranks.append(RankRecord(rank, progress=None if step is None else Progress(step, 10)))

        assert after_step(seen) == text


@pytest.mark.parametrize("result", [PASSED, None])
def test_where_the_ranks_were_is_said_also_when_the_limit_was_that_of_another_rank(result: ResultRecord | None) -> None:
    where = "rank 1: nap() at it.py line 9"
    seen = Observation(rank_failure=RANK_1_HANGS, location=where, hung_rank=1, result=result)

    status, failure = conclude(seen)

    assert failure is not None
    assert (status, failure.message) == ("timeout", f"boom; {where}")
    assert seen.rank_failure == RANK_1_HANGS


def test_a_trial_that_was_interrupted_while_its_result_came_keeps_the_result() -> None:
    lost = interruption("setup", "stopping after 1 failures")
    seen = Observation(phase="cleanup", result=PASSED, lost=lost, finished=True, returncode=0)

    assert conclude(seen) == ("ok", replace(lost, phase="cleanup"))
