"""From what was seen of a trial to its exit status; real endings are in tests/plugin/test_plugin_statuses.py."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_aorta.trials.lifecycle import failure_of
from pytest_aorta.trials.outcome import Observation, after_step, conclude, interruption
from pytest_aorta.trials.records import Event, Failure, Phase, Progress, RankRecord, ResultRecord

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


@pytest.mark.parametrize("event", EVENTS)
def test_a_result_that_is_not_passed_is_not_changed_by_what_comes_after_it(event: str) -> None:
    seen = reached("cleanup", passed=False)
    EVENTS[event](seen)

    status, failure = conclude(seen)

    assert status == "workload_failed"
    assert failure is not None
    assert failure.kind == ("signal" if event == "a rank fails" else "result")


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


def test_a_trial_that_was_interrupted_while_its_result_came_keeps_the_result() -> None:
    seen = Observation(phase="setup")
    seen.lost = interruption(seen.phase, "stopping after 1 failures")
    ends_well(seen)

    assert conclude(seen) == ("ok", replace(seen.lost, phase="cleanup"))
