"""Which rank is the cause of what a trial has come to, and which only follow: the one place where that is decided.

Pure: all that counts is in the ``TrialEvidence``, under every launcher and on any number of nodes. First each rank's
own failure, then what ranks waited for, then the agent's failure, then the verdict.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_aorta.launch.diagnosis.evidence import AgentEnd, RankEvidence, RankExit, TrialEvidence, pid_of
from pytest_aorta.launch.diagnosis.traces import gave_up_waiting, has_lost_a_peer
from pytest_aorta.trials.outcome import (
    Observation,
    after_step,
    exit_failure,
    place,
    signal_name,
    timeout_failure,
    unpassed_failure,
)
from pytest_aorta.trials.records import (
    Attempt,
    AttemptReason,
    Blame,
    Event,
    Failure,
    Phase,
    RankRecord,
)

#: How likely a failure is the one that the others follow from; the smaller, the likelier.
FATAL, RAISED, ABORTED, RETURNED, UNHEARD, GAVE_UP, PEER_LOST, ENDED, ENDED_UNSEEN = range(9)

#: An agent sends SIGTERM first. Where nothing says what it did, a SIGKILL within so many seconds of the first failure
#: comes from elsewhere: the kernel may be short of memory.
_AT_ONCE = 2

#: Ranks that a message names.
_NAMED = 8

#: Characters of the message of a rank that gave up.
_SHOWN = 200

_IN_ORDER: tuple[Phase, ...] = ("import", "setup", "run", "cleanup")


@dataclass(frozen=True)
class Judgement:
    """A record of every expected rank, in order, and the failure that the others follow from.

    ``cleanup``: the first failure in a cleanup that does not follow from another one. ``location``: of ranks that a
    limit has ended, where each of them was. ``hung_rank``: the one that these waited for, or the only one.
    """

    ranks: list[RankRecord]
    failure: Failure | None = None
    cleanup: Failure | None = None
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
    ranks = {rank.rank: rank for rank in sorted(trial.ranks, key=lambda rank: rank.rank)}
    found = _own_failures(ranks.values(), trial)
    # A script, and a rank of an outer launcher, is looked at only when its deadline has passed.
    asked = trial.launcher in ("elastic", "torchrun")
    wait = _explain_wait(ranks, found, asked=asked) if _waits_count(found) else None
    if wait is not None:
        for number in (wait.waiting | wait.unseen) & found.keys():
            found[number] = replace(found[number], weight=ENDED_UNSEEN)
    root = _root(found)
    if wait is not None and wait.missing in found and found[wait.missing].failure.phase != "cleanup":
        root = wait.missing
    failure = None if root is None else _failure_of(root, found, ranks, trial)
    if wait is not None and wait.missing is not None and wait.gave_up is not None:
        # Of a rank for which a process group has waited until its timeout: the failure of the first that gave up.
        root = wait.missing
        failure = replace(found[wait.gave_up].failure, rank=root, message=wait.text, stacks=ranks[root].stacks)
    agent = agent_failure(trial)
    if agent is not None and _counts_more(agent, None if root is None else found.get(root), found):
        root, failure = None, agent
    records = [_record(number, ranks, found, root, wait, trial) for number in ranks]
    cleanup = None if agent is failure and agent is not None else _cleanup(records)
    if wait is None or wait.gave_up is not None:
        return Judgement(records, failure, cleanup)
    location = wait.text if trial.network is None else f"{wait.text}; {trial.network}"
    return Judgement(records, failure, cleanup, location, wait.missing)


def attempt_event(trial: TrialEvidence, reason: AttemptReason = "failure") -> Event:
    """All ranks of an attempt have ended, and another one follows."""
    found = judge(trial)
    failure = found.failure if reason == "failure" else None
    return {"type": "attempt", "attempt": Attempt(trial.attempt, reason, failure, found.ranks)}


def ranks_event(found: Judgement) -> Event:
    """All ranks have ended."""
    return {"type": "ranks", "ranks": found.ranks, "failure": found.failure, "cleanup": found.cleanup}


def is_about_a_missing_rank(trial: TrialEvidence) -> bool:
    """Whether no rank has a failure of its own yet, and some have lost a peer, or have given up to wait for it."""
    found = _own_failures([rank for rank in trial.ranks if rank.is_heard_of], trial)
    return min((own.weight for own in found.values()), default=None) in (GAVE_UP, PEER_LOST)


# What one rank shows of its own failure, without a look at the other ranks.


@dataclass(frozen=True)
class _OwnFailure:
    failure: Failure
    weight: int
    at: float = 0.0

    @property
    def follows(self) -> bool:
        """Whether it was ended because of another rank."""
        return self.weight >= ENDED

    @property
    def hung(self) -> bool:
        """Whether it was ended by a limit."""
        return self.failure.is_late


def _own_failures(ranks: Iterable[RankEvidence], trial: TrialEvidence) -> dict[int, _OwnFailure]:
    first_failure = _first_failure(trial.ranks)
    own = {rank.rank: _own_failure(rank, trial, first_failure) for rank in ranks}
    return {number: failure for number, failure in own.items() if failure is not None}


def _first_failure(ranks: Iterable[RankEvidence]) -> float | None:
    return min((rank.exit.at or 0.0 for rank in ranks if rank.exit is not None and rank.exit.exitcode), default=None)


def _overdue(rank: RankEvidence, trial: TrialEvidence) -> float | None:
    """When a limit passed for the rank, unless its exit was seen before.

    Where each rank has a limit of its own, the first of these counts for all: the signals that follow wake ranks, and
    end them, and so change what the others do.
    """
    limits = [trial.overdue, *(each.overdue for each in trial.ranks)]
    overdue = min((limit for limit in limits if limit is not None), default=None)
    if overdue is not None and rank.exit is not None and rank.exit.at is not None and rank.exit.at <= overdue:
        return None
    return overdue


def _own_failure(rank: RankEvidence, trial: TrialEvidence, first_failure: float | None) -> _OwnFailure | None:
    if not rank.is_heard_of:
        return _OwnFailure(Failure("run", "rank", "never heard of"), UNHEARD)
    until = _overdue(rank, trial)
    seen, end = rank.seen(until), rank.exit
    where = f"{place(seen.phase)}{after_step(seen)}"
    reported = next((seen.failures[phase] for phase in _IN_ORDER if phase in seen.failures), None)
    if until is not None and not seen.finished and reported is None:
        seen.stalled = trial.stalled
        return _OwnFailure(timeout_failure(seen), FATAL)
    if reported is not None:
        at = reported.at or 0.0
        late = trial.stopped_at is not None and at > trial.stopped_at
        return _OwnFailure(reported, ENDED if late else _weight_of(reported), at)
    if rank.running and not seen.finished:
        message = f"still in {where} when the ranks of node 0 had ended"
        weight = UNHEARD if first_failure is None else ENDED_UNSEEN
        return _OwnFailure(Failure(seen.phase, "rank", message), weight)
    if end is None and not seen.finished and trial.launcher == "external":
        message = f"nothing is known of its end; it was in {where}"
        return _OwnFailure(Failure(seen.phase, "rank", message), UNHEARD)
    lost_agent = trial.launcher == "script" or _lost_its_agent(trial.agent)
    if end is None and not seen.finished and (first_failure is not None or lost_agent):
        message = f"ended in {where}, before it was done, because another rank had failed"
        if trial.agent is not None and lost_agent:
            message = f"{trial.agent.name} ended before this rank did"
        return _OwnFailure(Failure(seen.phase, "signal", message), ENDED_UNSEEN)
    # A rank that is done waits for the others, until its agent or a limit ends it.
    waited = seen.finished and end is not None and (_was_ended(end, first_failure) or until is not None)
    if (end is not None and end.exitcode and not waited) or not seen.finished:
        return _exited(seen, end, rank.complaint, trial, first_failure)
    if rank.rank != 0 and seen.result is not None and not seen.result.passed:  # rank 0's result is the trial's
        return _OwnFailure(unpassed_failure(seen.result), RETURNED)
    return None


def _weight_of(failure: Failure) -> int:
    if failure.kind != "exception":
        return RETURNED
    if gave_up_waiting(failure.message):
        return GAVE_UP
    return PEER_LOST if has_lost_a_peer(failure.message) else RAISED


def _lost_its_agent(agent: AgentEnd | None) -> bool:
    if agent is None:
        return False
    return agent.error is not None if agent.returncode is None else agent.returncode < 0


def _exited(
    seen: Observation, end: RankExit | None, complaint: str | None, trial: TrialEvidence, first_failure: float | None
) -> _OwnFailure:
    code = 0 if end is None else end.exitcode
    where = f"in {place(seen.phase)}{after_step(seen)}"
    message = f"ended itself with exit code {code} {where}, before it was done"
    weight = FATAL
    if code < 0:
        message = f"ended by {signal_name(-code)} {where}"
        weight = _weight_of_signal(-code, complaint)
    if end is not None and _was_ended(end, first_failure):
        weight = ENDED
        if code < 0 and trial.launcher == "script":
            message = f"ended by {signal_name(-code)}, which torchrun sent because of another rank"
    elif code == -signal.SIGTERM and end is not None and end.stopped is not None:
        message += ", which its agent had not sent"
    elif complaint is not None and weight in (GAVE_UP, PEER_LOST):
        message += f": {complaint}"
    at = 0.0 if end is None else end.at or 0.0
    return _OwnFailure(exit_failure(seen.phase, code, {"message": message}), weight, at)


def _weight_of_signal(number: int, complaint: str | None) -> int:
    if number != signal.SIGABRT:
        return FATAL
    if complaint is None:
        # It follows from other faults (an uncaught C++ exception) more often than it causes them.
        return ABORTED
    return GAVE_UP if gave_up_waiting(complaint) else PEER_LOST


def _was_ended(end: RankExit, first_failure: float | None) -> bool:
    if end.stopped is not None:
        return end.stopped and end.exitcode in (-signal.SIGTERM, -signal.SIGKILL, 0, 1, 128 + signal.SIGTERM)
    late = first_failure is not None and (end.at or 0.0) - first_failure > _AT_ONCE
    return end.exitcode == -signal.SIGTERM or (end.exitcode == -signal.SIGKILL and late)


# The rank that others waited for, from their stacks and flight recorders.


@dataclass(frozen=True)
class _Wait:
    """What stacks and recorders of all ranks show together.

    ``text``: ``rank 1 is missing: run() at hang.py line 9; rank 0: all_reduce in run() at hang.py line 12``;
    ``missing``: the rank that the others wait for in a collective, or the only one that hung; ``waiting`` waited for
    it. ``gave_up``: the first rank whose process group has given up, where no limit has ended the trial; the ranks
    ``unseen`` ended then, before they could be asked where they were.
    """

    text: str
    missing: int | None
    waiting: frozenset[int]
    gave_up: int | None
    unseen: frozenset[int]


def _waits_count(found: Mapping[int, _OwnFailure]) -> bool:
    best = min((failure.weight for failure in found.values()), default=None)
    return best == GAVE_UP or any(failure.hung for failure in found.values())


def _explain_wait(ranks: Mapping[int, RankEvidence], found: Mapping[int, _OwnFailure], *, asked: bool) -> _Wait:
    """Find the rank that the others waited for.

    Where no stack shows a collective, as when it waits in C++ only, the ranks are missing that have entered fewer than
    others; of those that others wait for by their stacks, a rank without a stack is not missing when its recorder shows
    that it has entered as many as any. ``asked``: whether ranks that still ran when a process group gave up were asked
    for their stacks. If not, one that was ended then may have waited as well, and is not missing.
    """
    hung = {number for number, own in found.items() if own.hung}
    gave_up = None
    if not hung:
        those = [number for number, own in found.items() if own.weight == GAVE_UP]
        gave_up = min(those, key=lambda number: (found[number].at, number), default=None)
    unseen = _unseen(ranks, found, asked=asked or gave_up is None)
    waiting = {
        number
        for number, rank in ranks.items()
        if number not in unseen and _waits(rank, found.get(number), by_stack=bool(hung))
    }
    entered = {number: rank.collective for number, rank in ranks.items() if rank.collective is not None}
    comparable = len({last.group for last in entered.values()}) == 1
    most = max((last.number for last in entered.values()), default=0)
    behind = {number for number, last in entered.items() if comparable and last.number < most}
    up_to_date = {number for number in entered if comparable and number not in behind and not ranks[number].location}
    missing = sorted(behind)
    if waiting:
        missing = [number for number in ranks if number not in waiting | unseen | up_to_date]
    texts = {number: _where(ranks[number], found.get(number), unseen=number in unseen) for number in ranks}
    parts = [f"rank {number} is missing: {texts[number]}" for number in missing]
    parts += [f"rank {number}: {texts[number]}" for number in ranks if number not in missing]
    blamed = missing or (list(hung - unseen) if len(hung - unseen) == 1 else [])
    present = ((waiting or entered.keys()) | up_to_date) - set(missing) if missing else set()
    return _Wait("; ".join(parts), blamed[0] if blamed else None, frozenset(present), gave_up, frozenset(unseen))


def _waits(rank: RankEvidence, own: _OwnFailure | None, *, by_stack: bool) -> bool:
    in_collective = rank.location is not None and rank.location.collective is not None
    if in_collective and (own is None or not by_stack or own.hung):
        return True
    return not by_stack and own is not None and own.weight in (GAVE_UP, PEER_LOST)


def _unseen(ranks: Mapping[int, RankEvidence], found: Mapping[int, _OwnFailure], *, asked: bool) -> set[int]:
    """Ranks that were ended, or went on, before they could be asked where they were.

    Where each rank has a limit of its own, that is one which went on, or ended, between the first limit and its own.
    """
    first = min((rank.overdue for rank in ranks.values() if rank.overdue is not None), default=None)
    return {
        number
        for number, own in found.items()
        if (own.hung and first is not None and _went_on(ranks[number], first))
        or (own.follows and not asked and ranks[number].location is None and ranks[number].collective is None)
    }


def _went_on(rank: RankEvidence, first: float) -> bool:
    if rank.overdue is None:
        return True
    ends = [event.get("at") for event in rank.events or () if event["type"] == "end"]
    return any(at is not None and first < at <= rank.overdue for at in ends)


def _where(rank: RankEvidence, own: _OwnFailure | None, *, unseen: bool) -> str:
    if unseen:
        text = "where it was is not known"
    elif rank.location is not None and (own is None or own.follows or own.hung):
        text = rank.location.text
    elif own is None:
        text = "exited 0"
    elif own.hung or (own.follows and rank.stacks is None and rank.exit is not None):
        text = "it gave no stack"
    elif own.failure.kind == "exception":
        text = f"raised {own.failure.type or 'an exception'}"
        if own.weight in (GAVE_UP, PEER_LOST):
            text += f": {own.failure.message.strip().splitlines()[0][:_SHOWN]}"
    else:
        text = "never heard of" if own.weight == UNHEARD else own.failure.message
    return text if unseen or rank.collective is None else f"{text} (last: {rank.collective})"


# The failure of what has started the ranks, in its own words, with the option that mends it.

#: What an error of the agent says, and what helps.
_HINTS = (
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


def agent_failure(trial: TrialEvidence) -> Failure | None:
    """Why the agent ended, unless it ended as it should.

    One that was ended, and one in a process of its own, failed in the phase that the first rank was in.
    """
    agent = trial.agent
    if agent is None:
        return None
    phase = _phase_of(trial)
    if agent.returncode is not None and agent.returncode < 0:
        name = signal_name(-agent.returncode)
        message = f"{agent.name} was ended by {name} in {place(phase)}"
        return Failure(phase, "signal", message, signal=name)
    if agent.error is not None:
        text = f"{agent.error.get('type', '')}: {agent.error['message']}"
        hint = next((f"; {hint}" for pattern, hint in _HINTS if re.search(pattern, text)), "")
        message = f"{agent.name} failed: {agent.error['message']}{hint}"
        return Failure("launch", "exception", message, agent.error.get("type"), agent.error.get("traceback"))
    if agent.returncode:
        message = f"{agent.name} ended with exit code {agent.returncode}; see stderr"
        return Failure(phase, "exit_code", message, exit_code=agent.returncode)
    return None


def _phase_of(trial: TrialEvidence) -> Phase:
    logs = [rank.events for rank in sorted(trial.ranks, key=lambda rank: rank.rank) if rank.events is not None]
    for events in logs:
        if begun := [event["phase"] for event in events if event["type"] == "begin"]:
            return begun[-1]
    return "run" if trial.launcher == "script" and logs else "setup"


def _counts_more(agent: Failure, cause: _OwnFailure | None, found: Mapping[int, _OwnFailure]) -> bool:
    if agent.kind == "signal":
        return True
    if agent.kind == "exit_code":  # which follows from whatever has happened to a rank
        return not found
    return cause is None or cause.weight > RETURNED


# The verdict: the root, and a record of each rank.


def _root(found: Mapping[int, _OwnFailure]) -> int | None:
    order = sorted(found, key=lambda number: (found[number].weight, found[number].at, number))
    causes = [number for number in order if found[number].failure.phase != "cleanup"]
    if not causes or (found[causes[0]].follows and not found[order[0]].follows):
        return None
    return causes[0]


def _failure_of(
    root: int, found: Mapping[int, _OwnFailure], ranks: Mapping[int, RankEvidence], trial: TrialEvidence
) -> Failure:
    own, rank = found[root], ranks[root]
    message = own.failure.message
    lost = [number for number, each in ranks.items() if not each.is_heard_of]
    if own.weight == UNHEARD and root in lost:
        more = "" if len(lost) <= _NAMED else f" and {len(lost) - _NAMED} more"
        listed = f"rank {', '.join(map(str, lost[:_NAMED]))}{more}"
        size = trial.world_size or len(trial.ranks)
        message += f"; of {size} ranks, there is no word of {listed}: their node may be lost"
    if rank.running and rank.location is not None:
        message += f"; {rank.location.text}"
    return replace(own.failure, rank=root, message=f"rank {root}: {message}")


def _record(
    number: int,
    ranks: Mapping[int, RankEvidence],
    found: Mapping[int, _OwnFailure],
    root: int | None,
    wait: _Wait | None,
    trial: TrialEvidence,
) -> RankRecord:
    rank, own = ranks[number], found.get(number)
    blame = _blame(number, found, root, wait)
    failure = None if own is None else replace(own.failure, rank=number)
    if failure is not None and rank.location is not None and (own is None or own.hung or blame == "cause"):
        failure = replace(failure, message=f"{failure.message}; {rank.location.text}")
    end, seen = rank.exit, rank.seen()
    code = None if end is None else end.exitcode
    quiet = all(each.weight != ENDED_UNSEEN for each in found.values()) and _first_failure(ranks.values()) is None
    if code is None and quiet and rank.is_heard_of and (own is None or not own.hung):
        code = 0
    result = rank.seen(_overdue(rank, trial)).result
    return RankRecord(
        rank=number,
        local_rank=rank.local_rank,
        host=rank.host,
        pid=end.pid if end is not None and end.pid else pid_of(seen),
        exit_code=code if code is not None and code >= 0 else None,
        signal=signal_name(-code) if code is not None and code < 0 else None,
        passed=None if result is None else result.passed,
        failure=failure,
        blame=blame,
        collateral=blame == "collateral",
        error_file=rank.error_file,
        result=result,
        stdout=rank.stdout,
        stderr=rank.stderr,
        stacks=rank.stacks,
        collective=None if rank.collective is None or wait is None else str(rank.collective),
        seeds=seen.seeds,
        progress=seen.progress,
    )


def _blame(number: int, found: Mapping[int, _OwnFailure], root: int | None, wait: _Wait | None) -> Blame | None:
    own = found.get(number)
    if own is not None and wait is not None and wait.missing is None:
        waited = own.weight == GAVE_UP and wait.gave_up is not None
        if own.hung or waited or number in wait.unseen:
            return "unknown"
    if number == root and (own is None or wait is not None or own.weight < GAVE_UP):
        return "cause"
    if own is None:
        return None
    if root is None and own.weight < GAVE_UP and number == _first_in_cleanup(found):
        return "cause"
    if own.follows:
        return "collateral"
    if own.weight >= GAVE_UP and (root is None or found.get(root, own).weight < own.weight or wait is not None):
        return "collateral"
    return "unknown"


def _first_in_cleanup(found: Mapping[int, _OwnFailure]) -> int | None:
    those = [number for number, own in found.items() if own.failure.phase == "cleanup" and not own.follows]
    return min(those, default=None)


def _cleanup(records: list[RankRecord]) -> Failure | None:
    for record in records:
        failure = record.failure
        if failure is not None and failure.phase == "cleanup" and not record.collateral:
            return replace(failure, message=f"rank {record.rank}: {failure.message}")
    return None
