"""What one rank shows of its own failure, without a look at the other ranks; pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from pytest_aorta.launch.diagnosis.followers import gave_up_waiting, has_lost_a_peer
from pytest_aorta.launch.diagnosis.trial_evidence import RankEvidence, RankExit, RankReport, TrialEvidence
from pytest_aorta.trials.events import FailureData, Phase, ResultData
from pytest_aorta.trials.outcome import (
    Observed,
    after_step,
    exit_failure,
    place,
    signal_name,
    timeout_failure,
    unpassed_failure,
)

#: An agent sends SIGTERM first. Where nothing says what it did, a SIGKILL within so many seconds of the first failure
#: comes from elsewhere: the kernel may be short of memory.
_AT_ONCE = 2

_IN_ORDER: tuple[Phase, ...] = ("import", "setup", "run", "cleanup")

#: How likely a failure is the one that the others follow from; the smaller, the likelier.
FATAL, RAISED, ABORTED, RETURNED, UNHEARD, GAVE_UP, PEER_LOST, ENDED, ENDED_UNSEEN = range(9)


@dataclass(frozen=True)
class OwnFailure:
    """The failure of a rank.

    Attributes:
        failure: what goes into its record, but for its place in the trial.
        weight: see above.
        at: when it failed, in seconds of ``time.time()``; 0 where that is unknown.
    """

    failure: FailureData
    weight: int
    at: float = 0.0

    @property
    def follows(self) -> bool:
        """Whether it was ended because of another rank."""
        return self.weight >= ENDED

    @property
    def hung(self) -> bool:
        """Whether it was ended by a limit."""
        return self.failure["kind"] in ("timeout", "stall")


def is_heard_of(rank: RankEvidence) -> bool:
    """Whether there is anything of it."""
    return rank["started"] or rank["exit"] is not None or rank["report"] is not None


def overdue_of(rank: RankEvidence, trial: TrialEvidence) -> float | None:
    """When a limit passed for the rank, unless its exit was seen before.

    Where each rank has a limit of its own, the first of these counts for all: the signals that follow wake ranks, and
    end them, and so change what the others do.
    """
    limits = [trial["overdue"], *(each["overdue"] for each in trial["ranks"])]
    overdue = min((limit for limit in limits if limit is not None), default=None)
    end = rank["exit"]
    return None if overdue is None or (end is not None and end.get("at", overdue + 1) <= overdue) else overdue


def counts(at: float | None, until: float | None) -> bool:
    """Whether something of that time counts.

    What a rank reports after its deadline is an effect of the signals that ask for its stacks and end it: they
    interrupt its system calls.
    """
    return until is None or at is None or at <= until


def is_finished(report: RankReport | None, until: float | None) -> bool:
    """Whether all its phases were over in time."""
    return report is not None and report["finished"] and counts(report["finished_at"], until)


def own_failure(
    rank: RankEvidence, trial: TrialEvidence, first_failure: float | None, leader: bool
) -> OwnFailure | None:
    """The failure of a rank; ``None`` when it has none.

    Args:
        rank: the rank.
        trial: what it is a part of.
        first_failure: when the first rank ended with an exit code other than 0, 0 if that is unknown; ``None`` when no
            rank did.
        leader: whether its result is that of the trial.
    """
    if not is_heard_of(rank):
        return OwnFailure({"phase": "run", "kind": "rank", "message": "never heard of"}, UNHEARD)
    report, end, until = rank["report"], rank["exit"], overdue_of(rank, trial)
    seen = _observed(rank, until)
    finished = is_finished(report, until)
    reported = next((seen.failures[phase] for phase in _IN_ORDER if phase in seen.failures), None)
    if until is not None and not finished and reported is None:
        seen.stalled = trial["stalled"]
        return OwnFailure(timeout_failure(seen), FATAL)
    if reported is not None:
        return _reported(reported, trial)
    if rank.get("running") and not finished:
        message = f"still in {place(seen.phase)}{after_step(seen)} when the ranks of node 0 had ended"
        weight = UNHEARD if first_failure is None else ENDED_UNSEEN
        return OwnFailure({"phase": seen.phase, "kind": "rank", "message": message}, weight)
    if end is None and not finished and trial["launcher"] == "external":
        message = f"nothing is known of its end; it was in {place(seen.phase)}{after_step(seen)}"
        return OwnFailure({"phase": seen.phase, "kind": "rank", "message": message}, UNHEARD)
    if (
        end is None
        and not finished
        and (first_failure is not None or trial["launcher"] == "script" or _lost_its_agent(trial))
    ):
        return _ended_unseen(seen, trial)
    code = 0 if end is None else end["exitcode"]
    if code or not finished:
        return _exited(seen, code, rank, trial, first_failure)
    if not leader and seen.result is not None and not seen.result["passed"]:
        return OwnFailure(unpassed_failure(seen.result), RETURNED)
    return None


def _observed(rank: RankEvidence, until: float | None) -> Observed:
    """What its event log says, of the time that counts."""
    report = rank["report"]
    seen = Observed()
    if report is None:
        return seen
    for times in report["phases"]:
        if not counts(times["began"], until):
            break
        seen.see({"type": "begin", "phase": times["phase"]})
        if times["over"] and counts(times["ended"], until):
            failure = next((each for each in report["failures"] if each["phase"] == times["phase"]), None)
            if failure is None:
                seen.see({"type": "end", "phase": times["phase"], "sec": 0.0})
            else:
                seen.see({"type": "end", "phase": times["phase"], "sec": 0.0, "failure": failure})
    seen.failures = {each["phase"]: each for each in report["failures"] if counts(each.get("at"), until)}
    seen.result = result_of(rank, until)
    seen.progress = report["progress"]
    return seen


def result_of(rank: RankEvidence, until: float | None) -> ResultData | None:
    """What its ``run()`` has returned in time."""
    report = rank["report"]
    if report is None or report["result"] is None:
        return None
    ended = next((times["ended"] for times in report["phases"] if times["phase"] == "run"), None)
    return report["result"] if counts(ended, until) else None


def _reported(reported: FailureData, trial: TrialEvidence) -> OwnFailure:
    at = reported.get("at", 0.0)
    if trial["stopped_at"] is not None and at > trial["stopped_at"]:
        return OwnFailure(reported, ENDED, at)
    return OwnFailure(reported, _weight_of(reported), at)


def _weight_of(failure: FailureData) -> int:
    if failure["kind"] != "exception":
        return RETURNED
    if gave_up_waiting(failure["message"]):
        return GAVE_UP
    return PEER_LOST if has_lost_a_peer(failure["message"]) else RAISED


def _lost_its_agent(trial: TrialEvidence) -> bool:
    """Whether the agent was ended, or failed itself, and has not seen all ranks end."""
    agent = trial["agent"]
    if agent is None:
        return False
    return "error" in agent if agent["returncode"] is None else agent["returncode"] < 0


def _ended_unseen(seen: Observed, trial: TrialEvidence) -> OwnFailure:
    if trial["agent"] is not None and (_lost_its_agent(trial) or trial["launcher"] == "script"):
        message = f"{trial['agent']['name']} ended before this rank did"
    else:
        message = f"ended in {place(seen.phase)}{after_step(seen)}, before it was done, because another rank had failed"
    return OwnFailure({"phase": seen.phase, "kind": "signal", "message": message}, ENDED_UNSEEN)


def _exited(
    seen: Observed, code: int, rank: RankEvidence, trial: TrialEvidence, first_failure: float | None
) -> OwnFailure:
    end = rank["exit"]
    where = f"in {place(seen.phase)}{after_step(seen)}"
    message = f"ended itself with exit code {code} {where}, before it was done"
    weight = FATAL
    if code < 0:
        message = f"ended by {signal_name(-code)} {where}"
        weight = _weight_of_signal(-code, rank["complaint"])
    at = 0.0 if end is None else end.get("at", 0.0)
    own = OwnFailure(exit_failure(seen.phase, code, {"message": message}), weight, at)
    if end is not None and _was_ended(end, first_failure):
        if code < 0 and trial["launcher"] == "script":
            own.failure["message"] = f"ended by {signal_name(-code)}, which torchrun sent because of another rank"
        return replace(own, weight=ENDED)
    if code == -signal.SIGTERM:
        own.failure["message"] += ", which its agent had not sent" if end is not None and "stopped" in end else ""
    if rank["complaint"] is not None and weight in (GAVE_UP, PEER_LOST):
        own.failure["message"] += f": {rank['complaint']}"
    return own


def _weight_of_signal(number: int, complaint: str | None) -> int:
    if number != signal.SIGABRT:
        return FATAL
    if complaint is None:
        # It follows from other faults (an uncaught C++ exception) more often than it causes them.
        return ABORTED
    return GAVE_UP if gave_up_waiting(complaint) else PEER_LOST


def _was_ended(end: RankExit, first_failure: float | None) -> bool:
    """Whether its agent has ended it."""
    code = end["exitcode"]
    if "stopped" in end:
        return end["stopped"] and code in (-signal.SIGTERM, -signal.SIGKILL, 0, 1, 128 + signal.SIGTERM)
    late = first_failure is not None and end.get("at", 0.0) - first_failure > _AT_ONCE
    return code == -signal.SIGTERM or (code == -signal.SIGKILL and late)
