"""From what was seen of a trial to its exit status: every event in every phase."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import get_args

import pytest

from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.outcome import Observation, after_step, conclude
from pytest_aorta.trials.records import Event, Failure, FailureKind, Phase, Progress, RankRecord, ResultRecord
from pytest_aorta.trials.result import ExitStatus

PHASES: tuple[Phase, ...] = get_args(Phase)
TOLD: tuple[Phase, ...] = ("setup", "run", "cleanup")


def reached(phase: Phase, *, passed: bool = True) -> Observation:
    """A trial that is in ``phase``, all phases before having ended well."""
    seen = Observation()
    if phase in ("launch", "import"):
        seen.phase = phase
        return seen
    for each in TOLD[: TOLD.index(phase)]:
        seen.see({"type": "begin", "phase": each})
        end: Event = {"type": "end", "phase": each, "sec": 0.5}
        if each == "run":
            end["result"] = ResultRecord(passed)
        seen.see(end)
    seen.see({"type": "begin", "phase": phase})
    return seen


def raises(seen: Observation, error: BaseException) -> None:
    phase = seen.phase
    if phase in ("launch", "import"):
        seen.lost = failure_of(error, phase)
        return
    seen.see({"type": "end", "phase": phase, "sec": 0.5, "failure": failure_of(error, phase)})
    seen.see({"type": "lived"})
    seen.returncode = 0


def exits(code: int) -> Callable[[Observation], None]:
    def event(seen: Observation) -> None:
        seen.returncode = code

    return event


def times_out(seen: Observation) -> None:
    seen.timed_out, seen.timeout = True, 30.0
    seen.returncode = -signal.SIGTERM


def loses_its_host(seen: Observation) -> None:
    seen.lost = Failure(phase=seen.phase, kind="signal", message="the xdist worker died")


def ends_well(seen: Observation) -> None:
    if seen.phase == "setup":
        seen.see({"type": "end", "phase": "setup", "sec": 0.5})
    if seen.phase == "run":
        seen.see({"type": "end", "phase": "run", "sec": 0.5, "result": ResultRecord(passed=True)})
    seen.see({"type": "end", "phase": "cleanup", "sec": 0.5})
    seen.see({"type": "lived"})
    seen.returncode = 0


def rank_fails(seen: Observation) -> None:
    message = "rank 1: SIGSEGV"
    failure = Failure(phase=seen.phase, kind="signal", signal="SIGSEGV", rank=1, message=message)
    seen.see({"type": "ranks", "ranks": [], "failure": failure, "cleanup": None})
    seen.see({"type": "lived"})
    seen.returncode = 0


EVENTS: dict[str, Callable[[Observation], None]] = {
    "raises": lambda seen: raises(seen, RuntimeError("boom")),
    "calls sys.exit(3)": lambda seen: raises(seen, SystemExit(3)),
    "crashes by a signal": exits(-signal.SIGSEGV),
    "exits with code 0": exits(0),
    "exits with code 3": exits(3),
    "times out": times_out,
    "loses its host": loses_its_host,
    "a rank fails": rank_fails,
}

KINDS: dict[str, FailureKind] = {
    "raises": "exception",
    "calls sys.exit(3)": "exception",
    "crashes by a signal": "signal",
    "exits with code 0": "exit_code",
    "exits with code 3": "exit_code",
    "times out": "timeout",
    "loses its host": "signal",
    "a rank fails": "signal",
}


def expected_status(phase: Phase, event: str) -> ExitStatus:
    """Which exit status each event means in each phase."""
    if event == "a rank fails":
        return "workload_failed" if phase in ("run", "cleanup") else "infrastructure_failed"
    if phase == "cleanup":
        return "ok"  # that of the result
    if event == "times out":
        return "timeout"
    if phase == "run" and event != "loses its host":
        return "workload_failed"
    return "infrastructure_failed"


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", PHASES)
def test_every_event_in_every_phase_has_its_exit_status(phase: Phase, event: str) -> None:
    seen = reached(phase)
    EVENTS[event](seen)

    status, failure = conclude(seen)

    assert status == expected_status(phase, event)
    assert failure is not None
    assert (failure.phase, failure.kind) == (phase, KINDS[event])
    assert failure.message


@pytest.mark.parametrize("event", EVENTS)
def test_a_result_that_is_not_passed_is_not_changed_by_what_comes_after_it(event: str) -> None:
    seen = reached("cleanup", passed=False)
    EVENTS[event](seen)

    status, failure = conclude(seen)

    assert status == "workload_failed"
    assert failure is not None
    assert failure.kind == ("signal" if event == "a rank fails" else "result")


def test_a_result_that_is_not_passed_is_a_failure_of_the_workload() -> None:
    seen = reached("run")
    seen.see({"type": "end", "phase": "run", "sec": 1.0, "result": ResultRecord(passed=False)})
    ends_well(seen)

    assert conclude(seen) == (
        "workload_failed",
        Failure(phase="run", kind="result", message="run() returned passed=False"),
    )


def test_what_is_not_passed_says_how_often_and_where_first() -> None:
    seen = reached("cleanup")
    seen.result = ResultRecord(False, 3, 0)
    ends_well(seen)

    _, failure = conclude(seen)

    assert failure is not None
    assert failure.message == "run() returned passed=False, 3 failure(s), first at iteration 0"


def test_a_timeout_names_its_limit_and_the_last_step_that_was_reported() -> None:
    seen = reached("run")
    seen.see({"type": "progress", "step": 7, "total": 20})
    times_out(seen)

    _, failure = conclude(seen)

    assert failure is not None
    assert failure.message == "the deadline of 30 s passed in run(), after step 7 of 20"


def test_a_crash_names_the_last_step_that_was_reported() -> None:
    seen = reached("run")
    seen.see({"type": "progress", "step": 7, "total": None})
    exits(-signal.SIGKILL)(seen)

    _, failure = conclude(seen)

    assert failure is not None
    assert failure.message == "ended by SIGKILL in run(), after step 7"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([None, None], ""),
        ([3, 3], ", after step 3 of 10"),
        ([None, 3], ", after step 3 of 10"),
        ([5, 3, 4], ", after step 3 (rank 1) to 5 of 10"),
        ([5, 3, 3], ", after step 3 (rank 1) to 5 of 10"),
    ],
)
def test_of_several_ranks_it_is_said_which_one_is_behind(steps: list[int | None], text: str) -> None:
    seen = Observation()
    for rank, step in enumerate(steps):
        seen.ranks.append(RankRecord(rank, progress=None if step is None else Progress(step, 10)))

    assert after_step(seen) == text


def test_a_timeout_stays_one_when_the_trial_answers_the_sigterm_with_an_exception() -> None:
    seen = reached("run")
    times_out(seen)
    raises(seen, KeyboardInterrupt())

    status, failure = conclude(seen)

    assert status == "timeout"
    assert failure is not None
    assert failure.phase == "run"


def test_a_failure_that_was_told_before_the_deadline_is_the_failure() -> None:
    seen = reached("run")
    seen.see({"type": "end", "phase": "run", "sec": 1.0, "failure": failure_of(ValueError("x"), "run")})
    times_out(seen)

    status, failure = conclude(seen)

    assert status == "workload_failed"
    assert failure is not None
    assert failure.type == "ValueError"


def test_a_failing_cleanup_after_a_failing_run_does_not_hide_it() -> None:
    seen = reached("run")
    seen.see({"type": "end", "phase": "run", "sec": 1.0, "failure": failure_of(ValueError("first"), "run")})
    seen.see({"type": "begin", "phase": "cleanup"})
    raises(seen, OSError("second"))

    status, failure = conclude(seen)

    assert status == "workload_failed"
    assert failure is not None
    assert failure.message == "first"
    assert seen.failures["cleanup"].message == "second"


def test_a_crash_in_the_cleanup_after_a_failing_setup_leaves_the_setup_to_blame() -> None:
    seen = reached("setup")
    seen.see({"type": "end", "phase": "setup", "sec": 1.0, "failure": failure_of(ValueError("x"), "setup")})
    seen.see({"type": "begin", "phase": "cleanup"})
    exits(-signal.SIGSEGV)(seen)

    status, failure = conclude(seen)

    assert status == "infrastructure_failed"
    assert failure is not None
    assert failure.phase == "setup"


def test_rank_0_cannot_say_ok_for_another_rank_that_failed() -> None:
    seen = reached("run")
    ends_well(seen)
    message = "rank 1: run() returned passed=False"
    failure = Failure(phase="run", kind="result", rank=1, message=message)
    seen.see({"type": "ranks", "ranks": [], "failure": failure, "cleanup": None})

    assert conclude(seen) == ("workload_failed", failure)


@pytest.mark.parametrize("passed", [True, None])
def test_where_the_ranks_were_is_said_also_when_the_limit_was_that_of_another_rank(passed: bool | None) -> None:
    message = "rank 1: the deadline passed in run()"
    overdue = Failure(phase="run", kind="timeout", message=message, rank=1)
    seen = Observation(rank_failure=overdue, location="rank 1: nap() at it.py line 9", hung_rank=1)
    seen.result = None if passed is None else ResultRecord(passed)

    status, failure = conclude(seen)

    assert failure is not None
    assert status == "timeout"
    assert failure.message == f"{message}; rank 1: nap() at it.py line 9"
    assert seen.rank_failure == overdue


def test_a_rank_that_hangs_outweighs_what_rank_0_has_lost_by_its_end() -> None:
    hangs = Failure(phase="run", kind="timeout", message="the deadline passed in run()", rank=1)
    seen = Observation(rank_failure=hangs, timed_out=True, phase="cleanup")
    seen.failures["run"] = Failure(phase="run", kind="exception", message="Connection closed by peer")

    assert conclude(seen) == ("timeout", hangs)
