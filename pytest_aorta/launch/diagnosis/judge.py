"""Which rank is the cause of what a trial has come to, and which only follow: the one place where that is decided.

Pure: all that counts is in the ``TrialEvidence``, under every launcher and on any number of nodes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_aorta.launch.diagnosis.evidence import (
    AgentEnd,
    RankEvidence,
    RankExit,
    RankReport,
    TrialEvidence,
    collective_text,
)
from pytest_aorta.launch.diagnosis.traces import gave_up_waiting, has_lost_a_peer
from pytest_aorta.trials.events import (
    AttemptEvent,
    AttemptReason,
    Blame,
    FailureData,
    Phase,
    RankData,
    RanksEvent,
    ResultData,
)
from pytest_aorta.trials.outcome import (
    Observed,
    after_step,
    exit_failure,
    place,
    signal_name,
    timeout_failure,
    unpassed_failure,
)

#: What an error of the agent says, and what helps.
_HINTS = (
    (
        r"is not registered",
        "--aorta-elastic rdzv_backend= takes c10d or static",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use|failed to listen",
        "give a free port of node 0 with --aorta-elastic rdzv_endpoint=HOST:PORT, on every node",
    ),
    (
        r"RendezvousConnectionError|RendezvousStateError|client socket has|DistNetworkError",
        "node 0 cannot be reached at --aorta-elastic rdzv_endpoint=HOST:PORT, or has gone",
    ),
    (
        r"RendezvousTimeoutError|RendezvousGracefulExitError|RendezvousClosedError",
        "run the same pytest on as many nodes as --aorta-elastic nnodes= says, at the same time, or allow fewer with "
        "nnodes=MIN:MAX",
    ),
    (
        r"uninterruptible sleep",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT sets how long the agent looks on",
    ),
)


def agent_failure(trial: TrialEvidence) -> FailureData | None:
    """Why the agent ended, unless it ended as it should.

    One that was ended, and one in a process of its own, failed in the phase that the first rank was in.
    """
    agent = trial["agent"]
    if agent is None:
        return None
    phase = phase_of(trial)
    if agent["returncode"] is not None and agent["returncode"] < 0:
        name = signal_name(-agent["returncode"])
        message = f"{agent['name']} was ended by {name} in {place(phase)}"
        return {"phase": phase, "kind": "signal", "signal": name, "message": message, "rank": None}
    if "error" in agent:
        return _raised(agent)
    if agent["returncode"]:
        message = f"{agent['name']} ended with exit code {agent['returncode']}; see stderr"
        code = agent["returncode"]
        return {"phase": phase, "kind": "exit_code", "exit_code": code, "message": message, "rank": None}
    return None


def _raised(agent: AgentEnd) -> FailureData:
    error = agent["error"]
    text = f"{error.get('type', '')}: {error['message']}"
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, text)), None)
    message = f"{agent['name']} failed: {error['message']}" + ("" if hint is None else f"; {hint}")
    failure: FailureData = {"phase": "launch", "kind": "exception", "message": message, "rank": None}
    if "type" in error:
        failure["type"] = error["type"]
    if "traceback" in error:
        failure["traceback"] = error["traceback"]
    return failure


def phase_of(trial: TrialEvidence) -> Phase:
    """The phase that the first rank was in; ``setup`` before it said so."""
    reports = [rank["report"] for rank in sorted(trial["ranks"], key=lambda rank: rank["rank"]) if rank["report"]]
    begun = [report["phases"][-1]["phase"] for report in reports if report and report["phases"]]
    if begun:
        return begun[0]
    ready = trial["launcher"] == "script" and bool(reports)
    return "run" if ready else "setup"


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


#: Characters of the message of a rank that gave up.
_SHOWN = 200


@dataclass(frozen=True)
class Missing:
    """What stacks and recorders of all ranks show together.

    Attributes:
        text: ``rank 1 is missing: run() at hang.py line 9; rank 0: all_reduce in run() at hang.py line 12``.
        rank: the one that the others wait for in a collective, or the only one that hung; ``None`` when that is not
            known.
        waiting: the ranks that waited for it.
        gave_up: the first rank whose process group has given up, where no limit has ended the trial.
        unseen: the ranks that ended then, before they could be asked where they were.
    """

    text: str
    rank: int | None
    waiting: frozenset[int]
    gave_up: int | None
    unseen: frozenset[int] = frozenset()


def explain_wait(ranks: Mapping[int, RankEvidence], found: Mapping[int, OwnFailure], *, asked: bool = True) -> Missing:
    """Find the rank that the others waited for.

    Where no stack shows a collective, as when it waits in C++ only, the ranks are missing that have entered fewer than
    others; of those that others wait for by their stacks, a rank without a stack is not missing when its recorder shows
    that it has entered as many as any.

    Args:
        ranks: all, in their order.
        found: the failures of those that have one.
        asked: whether ranks that still ran when a process group gave up were asked for their stacks. If not, one that
            was ended then may have waited as well, and is not missing.
    """
    hung = {number for number, own in found.items() if own.hung}
    gave_up = None if hung else _first_to_give_up(found)
    unseen = _unseen(ranks, found, asked=asked or gave_up is None)
    waiting = {
        number
        for number, rank in ranks.items()
        if number not in unseen and _waits(rank, found.get(number), by_stack=bool(hung))
    }
    collectives = {number: last for number, rank in ranks.items() if (last := rank["collective"]) is not None}
    behind = _behind(ranks)
    missing = sorted(behind)
    if waiting:
        others = (number for number in ranks if number not in waiting | unseen)
        missing = [number for number in others if not _has_entered(number, ranks, behind)]
    texts = {
        number: "where it was is not known"
        if number in unseen
        else _where(ranks[number], found.get(number), hung=number in hung)
        + (f" (last: {collective_text(collectives[number])})" if number in collectives else "")
        for number in ranks
    }
    parts = [f"rank {number} is missing: {texts[number]}" for number in ranks if number in missing]
    parts += [f"rank {number}: {texts[number]}" for number in ranks if number not in missing]
    seen = hung - unseen
    blamed = missing or (list(seen) if len(seen) == 1 else [])
    present = (waiting or collectives.keys()) | {number for number in ranks if _has_entered(number, ranks, behind)}
    kept = frozenset(present - set(missing)) if missing else frozenset[int]()
    return Missing("; ".join(parts), blamed[0] if blamed else None, kept, gave_up, frozenset(unseen))


def _first_to_give_up(found: Mapping[int, OwnFailure]) -> int | None:
    those = [number for number, own in found.items() if own.weight == GAVE_UP]
    return min(those, key=lambda number: (found[number].at, number), default=None)


def _waits(rank: RankEvidence, own: OwnFailure | None, *, by_stack: bool) -> bool:
    if (
        rank["location"] is not None
        and rank["location"]["collective"] is not None
        and (own is None or not by_stack or own.hung)
    ):
        return True
    return not by_stack and own is not None and own.weight in (GAVE_UP, PEER_LOST)


def _unseen(ranks: Mapping[int, RankEvidence], found: Mapping[int, OwnFailure], *, asked: bool) -> set[int]:
    """Ranks that were ended, or went on, before they could be asked where they were.

    Where each rank has a limit of its own, that is one which went on, or ended, between the first limit and its own.
    """
    limits = [rank["overdue"] for rank in ranks.values() if rank["overdue"] is not None]
    first = min(limits, default=None)
    return {
        number
        for number, own in found.items()
        if (own.hung and first is not None and _went_on(ranks[number], first))
        or (own.follows and not asked and ranks[number]["location"] is None and ranks[number]["collective"] is None)
    }


def _went_on(rank: RankEvidence, first: float) -> bool:
    """Whether a rank was somewhere else when its own limit passed, or had ended."""
    if rank["overdue"] is None:
        return True
    phases = [] if rank["report"] is None else rank["report"]["phases"]
    return any(times["ended"] is not None and first < times["ended"] <= rank["overdue"] for times in phases)


def _has_entered(number: int, ranks: Mapping[int, RankEvidence], behind: set[int]) -> bool:
    """Whether a rank without a stack has entered as many collectives as any, as far as these can be compared."""
    rank = ranks[number]
    if rank["location"] is not None or rank["collective"] is None or number in behind:
        return False
    others = [each["collective"] for each in ranks.values() if each["collective"] is not None]
    return all(last["group"] == rank["collective"]["group"] for last in others)


def _behind(ranks: Mapping[int, RankEvidence]) -> set[int]:
    """Ranks that have entered fewer collectives than others of the same process group."""
    collectives = {number: last for number, rank in ranks.items() if (last := rank["collective"]) is not None}
    if len({last["group"] for last in collectives.values()}) != 1:
        return set()
    most = max(last["number"] for last in collectives.values())
    return {number for number, last in collectives.items() if last["number"] < most}


def _where(rank: RankEvidence, own: OwnFailure | None, *, hung: bool) -> str:
    """Where a rank was, or how it ended."""
    if rank["location"] is not None and (hung or own is None or own.follows):
        return rank["location"]["text"]
    if own is None:
        return "exited 0"
    if hung or (own.follows and rank["stacks"] is None and rank["exit"] is not None):
        return "it gave no stack"
    failure = own.failure
    if failure["kind"] == "exception":
        said = f": {failure['message'].strip().splitlines()[0][:_SHOWN]}" if own.weight in (GAVE_UP, PEER_LOST) else ""
        return f"raised {failure.get('type', 'an exception')}{said}"
    return "never heard of" if own.weight == UNHEARD else str(failure["message"])


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
