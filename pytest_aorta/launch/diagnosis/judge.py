"""Which rank is the cause of what a trial has come to, and which only follow: the one place where that is decided.

Pure: all that counts is in the ``TrialEvidence``, under every launcher and on any number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_aorta.launch.diagnosis.agent_failure import agent_failure
from pytest_aorta.launch.diagnosis.missing_ranks import Missing, explain_wait
from pytest_aorta.launch.diagnosis.own_failure import (
    ENDED_UNSEEN,
    GAVE_UP,
    PEER_LOST,
    RETURNED,
    UNHEARD,
    OwnFailure,
    is_heard_of,
    overdue_of,
    own_failure,
    result_of,
)
from pytest_aorta.launch.diagnosis.trial_evidence import RankEvidence, TrialEvidence, collective_text
from pytest_aorta.trials.events import AttemptEvent, AttemptReason, Blame, FailureData, RankData, RanksEvent
from pytest_aorta.trials.outcome import signal_name

#: Ranks that a message names.
_NAMED = 8


@dataclass(frozen=True)
class Judgement:
    """What has become of the ranks of an attempt.

    Attributes:
        ranks: a record for every expected rank, in their order.
        failure: the one that the others follow from.
        cleanup: the first failure in a cleanup that does not follow from another one.
        location: of ranks that a limit has ended, where each of them was.
        hung_rank: the one of these that the others waited for, or the only one.
    """

    ranks: list[RankData]
    failure: FailureData | None = None
    cleanup: FailureData | None = None
    location: str | None = None
    hung_rank: int | None = None


def judge(trial: TrialEvidence) -> Judgement:
    """Decide of every rank whether it is the cause, collateral, or neither is known.

    A fatal signal, a hang, or an exit before the result, beats an exception, because the peers of a rank that is gone
    fail with exceptions; an exception beats an abort, an abort a result that is not passed, and that a rank that was
    never heard of. Exceptions and aborts because a peer has gone or did not come follow from all of these, and from a
    rank that was waited for. A rank that was ended because of another one counts only when there is nothing else. Among
    equals the earliest, then the lowest rank. A failure in ``cleanup()`` is no cause, and neither are the ends of other
    ranks that it leads to.
    """
    ranks = {rank["rank"]: rank for rank in sorted(trial["ranks"], key=lambda rank: rank["rank"])}
    first_failure = _first_failure(ranks.values())
    own = {number: own_failure(rank, trial, first_failure, leader=number == 0) for number, rank in ranks.items()}
    found = {number: failure for number, failure in own.items() if failure is not None}
    # A script, and a rank of an outer launcher, is looked at only when its deadline has passed.
    asked = trial["launcher"] in ("elastic", "torchrun")
    missing = explain_wait(ranks, found, asked=asked) if _waits_count(found) else None
    if missing is not None:
        for number in (missing.waiting | missing.unseen) & found.keys():
            found[number] = replace(found[number], weight=ENDED_UNSEEN)
    root = _root(found)
    if missing is not None and missing.rank in found and found[missing.rank].failure["phase"] != "cleanup":
        root = missing.rank
    failure = None if root is None else _failure_of(root, found, ranks, trial)
    if missing is not None and missing.rank is not None and missing.gave_up is not None:
        root, failure = missing.rank, _failure_of_missing(missing, found, ranks)
    agent = agent_failure(trial)
    if agent is not None and _counts_more(agent, None if root is None else found.get(root), found):
        root, failure = None, agent
    records = [_record(number, ranks, found, root, missing, trial) for number in ranks]
    cleanup = None if agent is failure and agent is not None else _cleanup(records)
    if missing is None or missing.gave_up is not None:
        return Judgement(records, failure, cleanup)
    network = trial.get("network")
    location = missing.text if network is None else f"{missing.text}; {network}"
    return Judgement(records, failure, cleanup, location, missing.rank)


def _first_failure(ranks: Iterable[RankEvidence]) -> float | None:
    ends = [end for rank in ranks if (end := rank["exit"]) is not None and end["exitcode"] != 0]
    return min((end.get("at", 0.0) for end in ends), default=None)


def _waits_count(found: Mapping[int, OwnFailure]) -> bool:
    """Whether ranks were ended as they waited: by a limit, or by the patience of a process group."""
    best = min((failure.weight for failure in found.values()), default=None)
    return best == GAVE_UP or any(failure.hung for failure in found.values())


def _root(found: Mapping[int, OwnFailure]) -> int | None:
    """The rank whose failure the others follow from."""
    order = sorted(found, key=lambda number: (found[number].weight, found[number].at, number))
    causes = [number for number in order if found[number].failure["phase"] != "cleanup"]
    if not causes or (found[causes[0]].follows and not found[order[0]].follows):
        return None
    return causes[0]


def _failure_of(
    root: int, found: Mapping[int, OwnFailure], ranks: Mapping[int, RankEvidence], trial: TrialEvidence
) -> FailureData:
    own = found[root]
    message = own.failure["message"]
    lost = [number for number, rank in ranks.items() if not is_heard_of(rank)]
    if own.weight == UNHEARD and root in lost:
        size = trial["world_size"] or len(trial["ranks"])
        message += f"; of {size} ranks, there is no word of {_listed(lost)}: their node may be lost"
    where = ranks[root]["location"]
    if ranks[root].get("running") and where is not None:
        message += f"; {where['text']}"
    return {**own.failure, "rank": root, "message": f"rank {root}: {message}"}


def _listed(ranks: list[int]) -> str:
    more = "" if len(ranks) <= _NAMED else f" and {len(ranks) - _NAMED} more"
    return f"rank {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _failure_of_missing(
    missing: Missing, found: Mapping[int, OwnFailure], ranks: Mapping[int, RankEvidence]
) -> FailureData:
    """Of a rank for which a process group has waited until its timeout: the failure of the first rank that gave up."""
    assert missing.gave_up is not None
    assert missing.rank is not None
    failure: FailureData = {**found[missing.gave_up].failure, "rank": missing.rank, "message": missing.text}
    stacks = ranks[missing.rank]["stacks"]
    return failure if stacks is None else {**failure, "stacks": stacks}


def _counts_more(agent: FailureData, cause: OwnFailure | None, found: Mapping[int, OwnFailure]) -> bool:
    """Whether the agent's own failure is what the trial has come to, and not that of a rank."""
    if agent["kind"] == "signal":
        return True
    if agent["kind"] == "exit_code":  # which follows from whatever has happened to a rank
        return not found
    return cause is None or cause.weight > RETURNED


def _record(
    number: int,
    ranks: Mapping[int, RankEvidence],
    found: Mapping[int, OwnFailure],
    root: int | None,
    missing: Missing | None,
    trial: TrialEvidence,
) -> RankData:
    rank, own, report = ranks[number], found.get(number), ranks[number]["report"]
    blame = _blame(number, found, root, missing)
    failure: FailureData | None = None if own is None else {**own.failure, "rank": number}
    if failure is not None and rank["location"] is not None and (own is None or own.hung or blame == "cause"):
        failure["message"] += f"; {rank['location']['text']}"
    end = rank["exit"]
    code = None if end is None else end["exitcode"]
    quiet = all(each.weight != ENDED_UNSEEN for each in found.values()) and _first_failure(ranks.values()) is None
    if code is None and quiet and is_heard_of(rank) and (own is None or not own.hung):
        code = 0
    result = result_of(rank, overdue_of(rank, trial))
    record: RankData = {
        "rank": number,
        "local_rank": rank["local_rank"],
        "host": rank["host"],
        "pid": end["pid"] if end is not None and end.get("pid") else None if report is None else report["pid"],
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": signal_name(-code) if code is not None and code < 0 else None,
        "passed": None if result is None else result["passed"],
        "failure": failure,
        "blame": blame,
        "collateral": blame == "collateral",
        "error_file": rank["error_file"],
        "result": result,
        "stdout": rank["stdout"],
        "stderr": rank["stderr"],
        "stacks": rank["stacks"],
        "seeds": None if report is None else report["seeds"],
        "progress": None if report is None else report["progress"],
    }
    if rank["collective"] is not None and missing is not None:
        record["collective"] = collective_text(rank["collective"])
    return record


def _blame(number: int, found: Mapping[int, OwnFailure], root: int | None, missing: Missing | None) -> Blame | None:
    own = found.get(number)
    if own is not None and missing is not None and missing.rank is None:
        waited = own.weight == GAVE_UP and missing.gave_up is not None
        if own.hung or waited or number in missing.unseen:
            return "unknown"
    if number == root and (own is None or missing is not None or own.weight < GAVE_UP):
        return "cause"
    if own is None:
        return None
    if root is None and own.weight < GAVE_UP and number == _first_in_cleanup(found):
        return "cause"
    if own.follows:
        return "collateral"
    if own.weight >= GAVE_UP and (root is None or found.get(root, own).weight < own.weight or missing is not None):
        return "collateral"
    return "unknown"


def _first_in_cleanup(found: Mapping[int, OwnFailure]) -> int | None:
    those = [number for number, own in found.items() if own.failure["phase"] == "cleanup" and not own.follows]
    return min(those, default=None)


def _cleanup(records: list[RankData]) -> FailureData | None:
    """What went wrong in the cleanup of the first rank that has not only been ended because of another one."""
    for record in records:
        failure = record["failure"]
        if failure is not None and failure["phase"] == "cleanup" and not record["collateral"]:
            return {**failure, "message": f"rank {record['rank']}: {failure['message']}"}
    return None


def attempt_event(trial: TrialEvidence, reason: AttemptReason = "failure") -> AttemptEvent:
    """All ranks of an attempt have ended, and another one follows."""
    found = judge(trial)
    failure = found.failure if reason == "failure" else None
    return {"type": "attempt", "attempt": trial["attempt"], "reason": reason, "ranks": found.ranks, "failure": failure}


def ranks_event(found: Judgement) -> RanksEvent:
    """All ranks have ended."""
    return {"type": "ranks", "ranks": found.ranks, "failure": found.failure, "cleanup": found.cleanup}


def is_about_a_missing_rank(trial: TrialEvidence) -> bool:
    """Whether no rank has a failure of its own yet, and some have lost a peer, or have given up to wait for it."""
    first_failure = _first_failure(trial["ranks"])
    heard = [rank for rank in trial["ranks"] if is_heard_of(rank)]
    found = [own_failure(rank, trial, first_failure, leader=rank["rank"] == 0) for rank in heard]
    return min((own.weight for own in found if own is not None), default=None) in (GAVE_UP, PEER_LOST)
