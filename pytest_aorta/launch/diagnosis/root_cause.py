"""Which failure of a rank the failures of the other ranks follow from; the events that report it."""

from __future__ import annotations

import re
import signal

from pytest_aorta.trials.events import AttemptEvent, AttemptReason, FailureData, RankData, RanksEvent

#: Aborts follow from other faults (a collective's watchdog, an uncaught C++ exception) more often than they cause them.
_FOLLOWERS = {signal.SIGABRT}

#: Messages of backends whose peer rank has gone.
_PEER_LOST = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Read error|Socket closed|remote process exited", re.I
)


def root_cause(records: list[RankData]) -> FailureData | None:
    """The failure that the others follow from, or ``None``.

    A fatal signal, a hang, or an exit before the result, beats an exception, because the peers of a
    rank that is gone fail with exceptions; an exception beats an abort, an abort a result that is not passed, and that
    an exception because of a lost connection; a rank that was ended because of another one counts only when there
    is nothing else. Among equals the earliest, then the lowest rank.
    A failure in ``cleanup()`` is no cause, and neither are the ends of other ranks that it leads to.
    """

    def order(failed: tuple[RankData, FailureData]) -> tuple[int, float, int]:
        record, failure = failed
        if record["collateral"]:
            weight = 5 if record["signal"] is not None else 6
        elif failure["kind"] == "signal":
            weight = 2 if failure.get("signal") in {number.name for number in _FOLLOWERS} else 0
        elif failure["kind"] == "exception" and _PEER_LOST.search(failure["message"]):
            weight = 4
        else:
            weight = {"exit_code": 0, "timeout": 0, "exception": 1}.get(failure["kind"], 3)
        return weight, failure.get("at", 0.0), record["rank"]

    failed = sorted(((record, record["failure"]) for record in records if record["failure"] is not None), key=order)
    causes = [(record, failure) for record, failure in failed if failure["phase"] != "cleanup"]
    if not causes or (causes[0][0]["collateral"] and not failed[0][0]["collateral"]):
        return None
    record, failure = causes[0]
    return {**failure, "message": f"rank {record['rank']}: {failure['message']}"}


def cleanup_failure(records: list[RankData]) -> FailureData | None:
    """What went wrong in the cleanup of the first rank that has not only been ended because of another one."""
    for record in records:
        failure = record["failure"]
        if failure is not None and failure["phase"] == "cleanup" and not record["collateral"]:
            return {**failure, "message": f"rank {record['rank']}: {failure['message']}"}
    return None


def attempt_event(attempt: int, ranks: list[RankData], reason: AttemptReason = "failure") -> AttemptEvent:
    """All ranks of an attempt have ended, and another one follows."""
    failure = root_cause(ranks) if reason == "failure" else None
    return {"type": "attempt", "attempt": attempt, "reason": reason, "ranks": ranks, "failure": failure}


def ranks_event(records: list[RankData]) -> RanksEvent:
    """All ranks have ended."""
    return {"type": "ranks", "ranks": records, "failure": root_cause(records), "cleanup": cleanup_failure(records)}
