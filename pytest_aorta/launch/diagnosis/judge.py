"""Decides which rank is the cause of a trial's failure, and which ranks only follow.

Pure: it reads only the ``AttemptEvidence``, under every launcher and on any number of nodes. It looks at each rank's
own failure, then at what ranks waited for, then at the agent's failure, then concludes.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from pytest_aorta.launch.diagnosis.collectives import busy_ms, find_mismatch, find_rejecting, positions
from pytest_aorta.launch.diagnosis.evidence import AttemptEvidence, RankEvidence, RankExit, rank_names
from pytest_aorta.launch.diagnosis.traces import relation_in, relation_to_a_peer, sizes_in
from pytest_aorta.launch.diagnosis.waits import WaitGraph
from pytest_aorta.trials.outcome import (
    Observation,
    after_step,
    describe_phase,
    exit_failure,
    signal_name,
    timeout_failure,
    unpassed_failure,
)
from pytest_aorta.trials.records import Attempt, AttemptReason, Blame, Confidence, Event, Failure, Phase, RankRecord

#: Weights of failures: the smaller, the likelier the others follow from it.
FATAL, RAISED, ABORTED, RETURNED, UNHEARD, GAVE_UP, PEER_LOST, ENDED, ENDED_UNSEEN = range(9)

#: An agent sends SIGTERM first. If nothing says what it did, a SIGKILL within so many seconds of the first failure
#: comes from elsewhere: the kernel may be short of memory.
_AT_ONCE = 2

#: Two ranks that failed by themselves within so many seconds: which was first is not known.
_APART = 0.2

#: Ranks that a message names; characters of the message of a rank that gave up.
_NAMED, _SHOWN = 8, 200

_IN_ORDER: tuple[Phase, ...] = ("import", "setup", "run", "cleanup")

#: Errors of the agent, and what helps.
_HINTS = {
    r"EADDRINUSE|[Aa]ddress already in use|failed to listen": (
        "give a free port of node 0 with --aorta-elastic rdzv_endpoint=HOST:PORT, on every node"
    ),
    r"RendezvousConnectionError|RendezvousStateError|client socket has|DistNetworkError": (
        "node 0 cannot be reached at --aorta-elastic rdzv_endpoint=HOST:PORT, or has gone"
    ),
    r"RendezvousTimeoutError|RendezvousGracefulExitError|RendezvousClosedError": (
        "run the same pytest on as many nodes as --aorta-elastic nnodes= says, at the same time, or allow fewer with "
        "nnodes=MIN:MAX"
    ),
    r"uninterruptible sleep": "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT sets how long the agent looks on",
}


@dataclass(frozen=True)
class Judgement:
    """A record of every expected rank, in order, and the failure that the others follow from.

    ``cleanup``: the first failure in a cleanup that does not follow from another one. ``location``: where each rank was
    that a limit has ended. ``hung_rank``: the rank for which these waited, or the only one of them.
    """

    ranks: list[RankRecord]
    failure: Failure | None = None
    cleanup: Failure | None = None
    location: str | None = None
    hung_rank: int | None = None


def judge(trial: AttemptEvidence) -> Judgement:
    """Decide for every rank whether it is the cause, collateral, or not known.

    The likelier cause comes first: a fatal signal, a hang, or an exit before the result (the peers of such a rank fail
    with exceptions); an exception; an abort; a result that is not passed; a rank that was never heard of. Exceptions of
    torch.distributed, and aborts because a peer has gone or did not come, follow from all of these and from a rank for
    which others waited. A rank that was ended because of another one counts only if there is nothing else. Among
    equals, the earliest is the cause, unless they fail alike or at once: then no rank is. A failure in ``cleanup()`` is
    no cause, and neither are the ends of other ranks that it leads to.
    """
    return _Case(trial).judgement()


def attempt_event(trial: AttemptEvidence, reason: AttemptReason = "failure") -> Event:
    """The event for the end of an attempt that another one follows."""
    judgement = judge(trial)
    failure = judgement.failure if reason == "failure" else None
    return {"type": "attempt", "attempt": Attempt(trial.attempt, reason, failure, judgement.ranks)}


def with_earlier(judgement: Judgement, attempts: Sequence[Attempt]) -> Judgement:
    """Take the cause from an earlier attempt if the ranks of the last one have only lost peers.

    Ranks that are started again may meet only what an earlier attempt has left (pytorch/pytorch#135712).
    """
    last = judgement.failure
    first = next((each for each in attempts if each.failure is not None and each.failure.rank is not None), None)
    if last is None or last.is_late or last.rank is not None or last.confidence != "unknown" or first is None:
        return judgement
    if any(rank.failure is not None and relation_to_a_peer(rank.failure) is None for rank in judgement.ranks):
        return judgement
    assert first.failure is not None
    return replace(
        judgement,
        failure=replace(
            first.failure,
            message=f"{first.failure.message}; the ranks that were started after that: {last.message}",
            confidence="likely",
            evidence=f"it ended attempt {first.attempt}; in the last one, all ranks lost a peer, or waited for one",
        ),
    )


def ranks_event(judgement: Judgement) -> Event:
    """The event for the end of all ranks."""
    return {
        "type": "ranks",
        "ranks": judgement.ranks,
        "failure": judgement.failure,
        "cleanup": judgement.cleanup,
    }


def is_about_a_missing_rank(trial: AttemptEvidence) -> bool:
    """Whether no rank has a failure of its own yet, and some have lost a peer or given up waiting for it."""
    weights = set(map(attrgetter("weight"), _Case(trial).own_failures.values())) - {UNHEARD}
    return min(weights, default=None) in (GAVE_UP, PEER_LOST)


@dataclass(frozen=True)
class _OwnFailure:
    """The failure that a rank itself shows, without a look at the other ranks."""

    failure: Failure
    weight: int
    at: float = 0.0
    #: Whether it lost a peer only after it was asked to end; then it is not known where it was before.
    is_echo: bool = False
    #: Whether only a line of its log tells it.
    is_logged: bool = False

    @property
    def follows(self) -> bool:
        """Whether it was ended because of another rank."""
        return self.weight >= ENDED

    @property
    def hung(self) -> bool:
        """Whether it was ended by a limit."""
        return self.failure.is_late


class _Case:
    def __init__(self, trial: AttemptEvidence) -> None:
        self.trial = trial
        self.ranks = {rank.rank: rank for rank in sorted(trial.ranks, key=attrgetter("rank"))}
        failed, limits = [], [] if trial.overdue is None else [trial.overdue]
        for rank in trial.ranks:
            if rank.exit is not None and rank.exit.exitcode:
                failed.append(rank.exit.at or 0.0)
            if rank.overdue is not None:
                limits.append(rank.overdue)
        self.first_failure = min(failed, default=None)
        #: When the first limit passed. If each rank has its own limit, the first one counts for all: the signals that
        #: follow wake and end ranks, which changes what the others do.
        self.limit = min(limits, default=None)
        #: What each rank reported before that limit.
        self.seen: dict[int, Observation] = {}
        self.own_failures: dict[int, _OwnFailure] = {}
        self.busy: dict[int, float] = {}
        if len({rank.host for rank in trial.ranks}) == 1:  # the clocks of hosts differ
            self.busy = busy_ms({rank.rank: rank.collectives for rank in trial.ranks})
        for number, rank in self.ranks.items():
            own = self._own_failure(rank)
            if own is not None:
                self.own_failures[number] = own
        self._see_silent_ends()
        self._add_last_lines()
        #: The rank that the results name as the cause.
        self.named = self._weigh_results()
        #: Whether ranks have waited for others, which ``_explain_wait`` explains.
        self.is_wait = False
        #: ``rank 1 is missing: run() at hang.py line 9; rank 0: all_reduce in run() at hang.py line 12``.
        self.wait_text = ""
        #: The only rank for which the others waited, that has entered another collective, or that hung; and why it is
        #: blamed.
        self.blamed: int | None = None
        self.confidence: Confidence = "likely"
        self.grounds = ""
        #: What is known if the cause is not one rank.
        self.several = ""
        #: Ranks that follow from the wait; ranks that ended before they could be asked where they were.
        self.waiting: set[int] = set()
        self.unseen: set[int] = set()
        #: The first rank that gave up or lost a peer, if no limit has ended the trial.
        self.waited: int | None = None
        #: The rank whose failure is shown; ranks that cannot be told from it; and the cause, if it is known.
        self.first: int | None = None
        self.tied: list[int] = []
        self.root: int | None = None

    def judgement(self) -> Judgement:
        own_failures = self.own_failures
        best = min(map(attrgetter("weight"), own_failures.values()), default=None)
        if best in (GAVE_UP, PEER_LOST) or any(map(attrgetter("hung"), own_failures.values())):
            self._explain_wait()
            for number in (self.waiting | self.unseen) & own_failures.keys():
                own_failures[number] = replace(own_failures[number], weight=ENDED_UNSEEN)
        order = sorted((own.weight, own.at, number) for number, own in own_failures.items())
        causes = [number for _, _, number in order if own_failures[number].failure.phase != "cleanup"]
        if causes and (not own_failures[causes[0]].follows or own_failures[order[0][2]].follows):
            self.first = causes[0]
        if self.blamed in causes:
            self.first = self.blamed
        if self.named is not None and self.first is not None:
            if own_failures[self.first].weight == own_failures[self.named].weight == RETURNED:
                self.first = self.named
            else:
                self.named = None
        if self.first is not None:
            own = own_failures[self.first]
            if own.weight == UNHEARD or self.first == self.named:  # all of them, or said to be the one
                self.tied = [self.first]
            elif own.weight >= GAVE_UP or own.hung:
                self.tied = sorted(number for weight, _, number in order if weight == own.weight)
            else:  # as likely to be the one that the others follow from
                alike = (number for number in causes if own_failures[number].weight == own.weight)
                host = self.ranks[self.first].host
                elsewhere = {
                    number for number, rank in self.ranks.items() if rank.host != host and own.weight < RETURNED
                }
                self.tied = sorted(
                    number
                    for number in alike
                    if number == self.first or number in elsewhere or _is_equal(own, own_failures[number])
                )
            if self.blamed == self.first or (own.weight < GAVE_UP and not own.hung and len(self.tied) == 1):
                self.root = self.first
        if self.blamed is not None and self.waited is not None:
            self.first = self.root = self.blamed
        failure, agent = self._failure(), agent_failure(self.trial)
        cause = None if self.first is None else own_failures.get(self.first)
        # An exit code of the agent follows from whatever has happened to a rank.
        of_agent = agent is not None and (
            agent.kind == "signal"
            or (not own_failures if agent.kind == "exit_code" else cause is None or cause.weight > RETURNED)
        )
        if of_agent:
            self.root, failure = None, agent
        records, cleanup = list(map(self._record, self.ranks.values())), None
        for record in records if not of_agent else ():
            shown = record.failure
            if shown is not None and shown.phase == "cleanup" and not record.collateral and cleanup is None:
                cleanup = replace(shown, message=f"rank {record.rank}: {shown.message}")
        if not self.is_wait or self.waited is not None:
            return Judgement(records, failure, cleanup)
        location = "; ".join(filter(None, (self.wait_text, self.trial.network)))
        return Judgement(records, failure, cleanup, location, self.blamed)

    # What one rank shows.

    def _own_failure(self, rank: RankEvidence) -> _OwnFailure | None:
        """The failure that it shows; if it ended without a word to its launcher, the failure that it has logged."""
        own, said, stopped_at = self._shown_failure(rank), rank.said, self._stopped_at(rank)
        if own is None or said is None or own.weight == UNHEARD:
            return own
        is_silent = own.failure.kind == "exit_code" or (own.follows and own.failure.kind == "signal")
        is_silent = is_silent or _is_bare_exit(own.failure)
        relation = relation_in(f"{said.type}: {said.message}")
        was_before = stopped_at is not None and (said.at or 0.0) <= stopped_at  # it was asked to end
        if own.weight == ENDED and was_before and own.failure.message == said.message:
            # It was asked to end before it came to say so itself.
            return replace(own, weight=_weight_of(own.failure, None), at=said.at or own.at, is_echo=False)
        is_late = own.follows and relation is None and not was_before
        if not is_silent or is_late:
            return own
        shown = own.failure
        failure = replace(said, phase=shown.phase, exit_code=shown.exit_code, signal=shown.signal)
        weight = {"gave up": GAVE_UP, "peer lost": PEER_LOST}.get(relation or "", RAISED)
        return _OwnFailure(failure, weight, min(own.at or math.inf, said.at or math.inf), is_logged=True)

    def _shown_failure(self, rank: RankEvidence) -> _OwnFailure | None:
        trial, end, limit = self.trial, rank.exit, self.limit
        if end is not None and limit is not None and end.at is not None and end.at <= limit:
            limit = None  # its exit was seen before
        self.seen[rank.rank] = seen = rank.seen(limit)
        if not rank.is_heard_of:
            return _OwnFailure(Failure("run", "rank", "never heard of"), UNHEARD)
        # By its agent.
        was_ended = False
        if end is not None and end.stopped is not None:
            was_ended = end.stopped and end.exitcode in (-signal.SIGTERM, -signal.SIGKILL, 0, 1, 128 + signal.SIGTERM)
        elif end is not None:
            late = self.first_failure is not None and (end.at or 0.0) - self.first_failure > _AT_ONCE
            was_ended = end.exitcode == -signal.SIGTERM or (end.exitcode == -signal.SIGKILL and late)
        reported = next((seen.failures[phase] for phase in _IN_ORDER if phase in seen.failures), None)
        where = f"{describe_phase(seen.phase)}{after_step(seen)}"
        if reported is not None:
            at = reported.at or 0.0
            late = (stopped_at := self._stopped_at(rank)) is not None and at > stopped_at
            if reported.kind == "signal" and end is not None and end.stopped is False:
                late = False  # it was ending when the others were asked to, and has gone after that
            weight = _weight_of(reported, rank.complaint)
            return _OwnFailure(reported, ENDED if late else weight, at, late and weight in (GAVE_UP, PEER_LOST))
        if seen.finished:
            # A rank that is done waits for the others, until its agent or a limit ends it.
            if end is None or not end.exitcode or limit is not None or was_ended:
                if rank.rank != 0 and seen.result is not None and not seen.result.passed:  # rank 0's is the trial's
                    return _OwnFailure(unpassed_failure(seen.result), RETURNED)
                return None
        elif limit is not None:
            seen.stalled = trial.stalled
            if trial.launcher == "script" and rank.imports and seen.progress is None and not rank.collectives:
                seen.phase = "import"
            return _OwnFailure(timeout_failure(seen), FATAL)
        elif rank.running:
            message = f"still in {where} when the ranks of node 0 had ended"
            weight = UNHEARD if self.first_failure is None else ENDED_UNSEEN
            return _OwnFailure(Failure(seen.phase, "rank", message), weight)
        elif end is None:
            agent = trial.agent
            if trial.launcher == "external":
                message = f"nothing is known of its end; it was in {where}"
                return _OwnFailure(Failure(seen.phase, "rank", message), UNHEARD)
            lost_agent = trial.launcher == "script"
            if agent is not None:
                lost = agent.error is not None if agent.returncode is None else agent.returncode < 0
                lost_agent = lost_agent or lost
            if lost_agent or self.first_failure is not None:
                message = f"ended in {where}, before it was done, because another rank had failed"
                if agent is not None and lost_agent:
                    message = f"{agent.name} ended before this rank did"
                return _OwnFailure(Failure(seen.phase, "signal", message), ENDED_UNSEEN)
        end = end or RankExit(0)
        name = signal_name(-end.exitcode)
        message = f"ended itself with exit code {end.exitcode} in {where}, before it was done"
        if end.exitcode < 0:
            message = f"ended by {name} in {where}"
        failure = exit_failure(seen.phase, end.exitcode, {"message": message})
        weight = _weight_of(failure, rank.complaint) if end.exitcode < 0 else FATAL
        if was_ended:
            weight = ENDED
            if end.exitcode < 0 and trial.launcher == "script":
                message = f"ended by {name}, which its launcher sent because of another rank"
        elif end.exitcode == -signal.SIGTERM and end.stopped is not None:
            message += ", which its agent had not sent"
        elif rank.complaint is not None and weight in (GAVE_UP, PEER_LOST):
            message += f": {rank.complaint}"
        return _OwnFailure(replace(failure, message=message), weight, math.inf if end.at is None else end.at)

    def _stopped_at(self, rank: RankEvidence) -> float | None:
        """When its agent first asked a rank to end, by the clock of its own host."""
        return self.trial.stopped_at if rank.stopped_at is None else rank.stopped_at

    def _see_silent_ends(self) -> None:
        """Count a rank as one that gave up if it ended silently in a collective that another rank has not entered.

        It could not go on, because it has caught that its peer did not come, or has gone.
        """
        behind, level = positions({number: rank.collectives for number, rank in self.ranks.items()})
        for number in level & self.own_failures.keys() if behind else ():
            own, failure = self.own_failures[number], self.own_failures[number].failure
            is_exit = _is_bare_exit(failure)
            if own.weight <= RAISED and not own.is_logged and (failure.kind == "exit_code" or is_exit):
                self.own_failures[number] = replace(own, weight=GAVE_UP)

    def _add_last_lines(self) -> None:
        """Add a rank's last line to its message if its exit code is all that is known."""
        for number, own in self.own_failures.items():
            line, failure = self.ranks[number].last_line, own.failure
            if line and (failure.kind == "exit_code" or _is_bare_exit(failure)):
                said = replace(failure, message=f"{failure.message}: {line}")
                self.own_failures[number] = replace(own, failure=said)

    def _weigh_results(self) -> int | None:
        """Find which result was the first not to pass: after an exchange between ranks, no result passes.

        Rank 0's result is the trial's, and so counts only beside others. The iteration tells the first result if all
        have one. Otherwise ``failure_details`` may name ranks by iteration: if the first of these iterations has a
        single rank, that rank is returned. Workloads may have anything else in their details.
        """
        others = [number for number, own in self.own_failures.items() if own.weight == RETURNED]
        zero = self.seen[0].result if 0 in self.seen else None
        if others and 0 not in self.own_failures and zero is not None and not zero.passed:
            self.own_failures[0] = _OwnFailure(unpassed_failure(zero), RETURNED)
            others.append(0)
        first: dict[int, int | None] = {}
        named: dict[int, set[int]] = {}
        for number in others:
            if (result := self.seen[number].result) is None:
                continue
            first[number] = result.first_failure_iteration
            for each in result.failure_details:
                rank, iteration = each.get("rank"), each.get("iteration")
                if isinstance(rank, int):
                    named.setdefault(iteration if isinstance(iteration, int) else 0, set()).add(rank)
        for number, at in first.items():
            if at is not None and None not in first.values():
                self.own_failures[number] = replace(self.own_failures[number], at=float(at))
        ranks = named[min(named)] if named else set()
        return min(ranks) if len(others) > 1 and len(ranks) == 1 and ranks <= {*others} else None

    # The rank that others waited for.

    def _explain_wait(self) -> None:
        """Find the rank for which the others waited, from stacks and flight recorders.

        If no stack shows a collective, because the waits are in C++, the ranks that have entered fewer collectives than
        others are missing. A rank without a stack is not missing if its recorder shows as many collectives as any. If
        some ranks were done and others waited, either the former are missing or the latter have entered too much:
        whichever the smaller side is. Ranks in different collectives wait for nobody.
        """
        ranks, own_failures = self.ranks, self.own_failures
        hung = {number for number, own in own_failures.items() if own.hung}
        gave_up = {number for number, own in own_failures.items() if own.weight in (GAVE_UP, PEER_LOST)}
        order = sorted((own_failures[number].weight, own_failures[number].at, number) for number in gave_up)
        waited = order[0][2] if order and not hung else None
        lost = waited is not None and own_failures[waited].weight == PEER_LOST
        unseen = self._unseen(lost=lost, at_deadline=waited is None)
        waiting = {number for number in ranks.keys() - unseen if self._is_waiting(number, hung, gave_up)}
        entered = {number: rank.collectives for number, rank in ranks.items() if rank.collectives}
        world_size = self.trial.world_size or len(ranks)
        sizes = {number: each for number, rank in ranks.items() if (each := sizes_in(rank.complaint)) is not None}
        mismatch = find_mismatch(entered, world_size, sizes) or find_rejecting(entered, sizes, world_size)
        behind, level = positions(entered)
        newest = {number for number in level & own_failures.keys() if not ranks[number].location}
        missing = ranks.keys() - waiting - unseen - newest if waiting else behind
        done, late = missing - own_failures.keys(), missing & own_failures.keys()
        if lost:  # one that ran has left its group, where all others have lost a peer in a collective ahead of it
            late = late & behind if len(late) == 1 else set()
        missing = late or done
        present = ((waiting or entered.keys()) | newest) - missing if missing else set()

        confidence: Confidence = "likely"
        blamed, grounds = missing, f"{rank_names(present)} waited for it"
        if late and all(own_failures[number].weight == UNHEARD for number in late):
            blamed = {min(late)}  # they are lost together
        several = f"{rank_names(present)} waited for {rank_names(blamed)}" if len(blamed) > 1 and present else ""
        if mismatch is not None:
            blamed = set() if mismatch.odd is None else {mismatch.odd}
            present = set(mismatch.ranks) - blamed if blamed else set()
            grounds = several = mismatch.text
        elif late:
            if waiting and all(ranks[number].location for number in late):
                confidence = "certain"
        elif done and len(ranks) - len(done) == 1:
            blamed = waiting if len(done) > 1 else set()
            present, grounds = set(), f"it waited when {rank_names(done)} were done"
            if not blamed and waiting:
                several = f"{rank_names(done)} was done when {rank_names(waiting)} still waited"
        elif done:
            grounds = f"it was done when {rank_names(present)} still waited"
        elif len(hung - unseen) == 1:
            blamed, grounds = hung - unseen, "only it had not ended"

        waits = {number: rank.wait for number, rank in ranks.items() if rank.wait is not None and number not in unseen}
        graph = WaitGraph.of(waits, {number: those[-1] for number, those in entered.items()})
        ring, chain = graph.ring(), graph.text() if mismatch is None else ""
        end = graph.odd(world_size) if ring else graph.awaited()
        if not ring and end not in late | unseen:
            chain = ""  # of a rank that is done, the rules above know more
        elif chain and end is not None and end not in unseen and (not blamed or end in blamed):
            if blamed != {end}:
                blamed, present, grounds = {end}, {*graph.edges} - {end}, chain
        elif chain:
            blamed, present, several = set(), set(), chain
        named = sorted(late or (done if len(done) == 1 else ()))
        parts = [] if mismatch is None else [mismatch.text]
        parts += [f"rank {number} is missing: {self._where(number, unseen)}" for number in named]
        parts += [chain] if chain and (ring or graph.is_long) else []  # one link says nothing new
        parts += [f"rank {number}: {self._where(number, unseen)}" for number in ranks if number not in named]
        self.is_wait, self.wait_text, self.several = True, "; ".join(parts), several
        self.blamed = next(iter(blamed)) if len(blamed) == 1 else None
        self.confidence, self.grounds = confidence, grounds
        self.waiting, self.unseen, self.waited = present, unseen, waited

    def _unseen(self, *, lost: bool, at_deadline: bool) -> set[int]:
        """Ranks that ended or went on before they could be asked where they were."""
        # Ranks of a script or of an outer launcher are asked for stacks only after their deadline. One that was ended
        # when another gave up may have waited as well, and is not missing.
        asked = at_deadline or self.trial.launcher in ("elastic", "torchrun")
        own_limits = [rank.overdue for rank in self.ranks.values() if rank.overdue is not None]
        unseen = {number for number, own in self.own_failures.items() if own.is_echo}
        for number, own in self.own_failures.items() if not lost else ():
            rank = self.ranks[number]
            if own.hung and own_limits:
                # It ended, or reported, between the first limit and its own.
                ends = (event.get("at") or 0.0 for event in rank.events or () if event["type"] == "end")
                if rank.overdue is None or any(min(own_limits) < at <= rank.overdue for at in ends):
                    unseen.add(number)
            if own.follows and not asked and rank.location is None and rank.collective is None:
                unseen.add(number)
        return unseen

    def _is_waiting(self, number: int, hung: set[int], gave_up: set[int]) -> bool:
        location = self.ranks[number].location
        if location is not None and location.collective is not None:
            return not hung or number in hung or number not in self.own_failures
        return not hung and number in gave_up

    def _where(self, number: int, unseen: set[int]) -> str:
        rank, own = self.ranks[number], self.own_failures.get(number)
        if number in unseen:
            return "where it was is not known"
        if own is None and (rank.location is None or rank.location.collective is None):
            text = "exited 0" if rank.exit is not None and rank.exit.exitcode == 0 else "it was done"
        elif rank.location is not None and (own is None or own.follows or own.hung):
            text = rank.location.text
        elif own is None or own.hung or (own.follows and rank.stacks is None and rank.exit is not None):
            text = "it gave no stack"
        elif own.failure.kind == "exception":
            text = f"raised {own.failure.type or 'an exception'}"
            if own.weight == PEER_LOST:
                text = "it lost a peer"
            elif own.weight == GAVE_UP:
                text += f": {own.failure.message.strip().splitlines()[0][:_SHOWN]}"
        else:
            text = "never heard of" if own.weight == UNHEARD else own.failure.message
        return text if rank.collective is None else f"{text} (last: {rank.collective})"

    # The verdict.

    def _failure(self) -> Failure | None:
        first, own_failures = self.first, self.own_failures
        if first is None:
            return None
        rank, confidence, grounds = self.ranks[first], self.confidence, self.grounds
        if first == self.blamed and self.waited is not None:
            # Others waited for this rank until they gave up: show the failure of the first that did.
            failure = replace(own_failures[self.waited].failure, rank=first, message=self.wait_text, stacks=rank.stacks)
            return replace(failure, confidence=confidence, evidence=grounds)
        own = own_failures[first]
        message = own.failure.message or own.failure.type or "no message"
        lost = [number for number, each in self.ranks.items() if not each.is_heard_of]
        if own.weight == UNHEARD and first in lost:
            more = "" if len(lost) <= _NAMED else f" and {len(lost) - _NAMED} more"
            listed = f"rank {', '.join(map(str, lost[:_NAMED]))}{more}"
            size = self.trial.world_size or len(self.trial.ranks)
            message += f"; of {size} ranks, there is no word of {listed}: their node may be lost"
        if rank.running and rank.location is not None:
            message += f"; {rank.location.text}"
        message = f"{rank_names(self.tied if self.root is None else [first])}: {message}"
        if self.root is None and self.waited is not None and self.several:
            message = f"{self.several}; {message}"
        if first == self.blamed:
            return replace(own.failure, rank=self.root, message=message, confidence=confidence, evidence=grounds)

        confidence = "likely"
        if own.weight == UNHEARD:
            grounds = "nothing is known of its end"
        elif first == self.named:
            grounds = "the failure_details of the results name it first"
        elif self.root is None and own.weight < GAVE_UP and not own.hung:
            alike = all(_words(own_failures[number].failure) == _words(own.failure) for number in self.tied)
            confidence = "unknown"
            hosts = {self.ranks[number].host for number in self.tied}
            how = (
                "alike" if alike else f"within {_APART:g} s" if len(hosts) == 1 else "on hosts whose clocks may differ"
            )
            grounds = f"{rank_names(self.tied)} failed {how}"
        elif self.root is None:
            confidence, grounds = "unknown", self.several or "no rank shows a failure that the others could follow from"
        else:
            others = own_failures.keys() - {first}
            ended = {number for number in others if own_failures[number].follows}
            followed = {number for number in others if own_failures[number].weight in (GAVE_UP, PEER_LOST)}
            rest = others - ended - followed
            said = [f"{rank_names(followed)} lost a peer, or waited for one"] if followed else []
            said += [f"{rank_names(ended)} ended because of another rank"] if ended else []
            said += ["it has logged this before it ended"] if own.is_logged else []
            said += [f"{rank_names(rest)} failed later, or in a way that is likelier to follow"] if rest else []
            if own.weight != ABORTED and not own.is_logged and (followed or not ended) and not rest:
                confidence = "certain"
            grounds = "; ".join(said) or "no other rank failed"
        return replace(own.failure, rank=self.root, message=message, confidence=confidence, evidence=grounds)

    def _record(self, rank: RankEvidence) -> RankRecord:
        own, blame, seen = self.own_failures.get(rank.rank), self._blame(rank.rank), self.seen[rank.rank]
        failure = None if own is None else replace(own.failure, rank=rank.rank)
        hung = own is not None and own.hung
        if failure is not None and rank.location is not None and (hung or blame == "cause"):
            failure = replace(failure, message=f"{failure.message}; {rank.location.text}")
        code, pid = (None, None) if rank.exit is None else (rank.exit.exitcode, rank.exit.pid)
        if pid is None:  # its parent does not know it
            pid = ((seen.env or {}).get("process") or {}).get("pid")
        if code is None and rank.is_heard_of and not hung and self.first_failure is None:
            ended_unseen = any(each.weight == ENDED_UNSEEN for each in self.own_failures.values())
            code = None if ended_unseen else 0
        return RankRecord(
            rank=rank.rank,
            local_rank=rank.local_rank,
            host=rank.host,
            pid=pid if isinstance(pid, int) else None,
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal_name(-code) if code is not None and code < 0 else None,
            passed=None if seen.result is None else seen.result.passed,
            failure=failure,
            blame=blame,
            collateral=blame == "collateral",
            error_file=rank.error_file,
            result=seen.result,
            stdout=rank.stdout,
            stderr=rank.stderr,
            stacks=rank.stacks,
            collective=None if rank.collective is None or not self.is_wait else str(rank.collective),
            seeds=seen.seeds,
            progress=seen.progress,
            busy_ms=self.busy.get(rank.rank),
            step_ms=self._step_ms(rank, seen),
        )

    def _step_ms(self, rank: RankEvidence, seen: Observation) -> float | None:
        steps, busy = None if seen.progress is None else seen.progress.step, self.busy.get(rank.rank)
        if busy is None or not steps:
            return None
        return busy * max(each.number for each in rank.collectives) / steps

    def _blame(self, number: int) -> Blame | None:
        own = self.own_failures.get(number)
        if number == self.root or (self.first is None and number == self.blamed):
            return "cause"
        if own is None:
            return None
        if number in self.waiting:
            return "collateral"
        if self.is_wait and self.blamed is None:
            asked = self.waited is not None and own.weight in (GAVE_UP, PEER_LOST)
            if own.hung or asked or (number in self.unseen and not own.is_echo):
                return "unknown"
        if self.first is None and own.weight < GAVE_UP and own.failure.phase == "cleanup":
            lower = (other for other in self.own_failures if other < number)  # the first in its cleanup
            if not any(
                self.own_failures[it].failure.phase == "cleanup" and not self.own_failures[it].follows for it in lower
            ):
                return "cause"
        if own.follows:
            return "collateral"
        lighter = self.first is None or self.own_failures.get(self.first, own).weight < own.weight or self.is_wait
        return "collateral" if own.weight >= GAVE_UP and lighter else "unknown"


def _is_bare_exit(failure: Failure) -> bool:
    """Whether the failure says no more than an exit code."""
    return failure.type == "SystemExit" and failure.message == f"sys.exit({failure.exit_code})"


def _weight_of(failure: Failure, complaint: str | None) -> int:
    if failure.kind == "result":
        return RETURNED
    if failure.kind != "signal":
        relation, otherwise = relation_to_a_peer(failure), RAISED
    elif failure.signal == "SIGABRT":
        # An abort (an uncaught C++ exception) follows from other faults more often than it causes them.
        relation, otherwise = None if complaint is None else relation_in(complaint), ABORTED
    else:
        return FATAL
    return {"gave up": GAVE_UP, "peer lost": PEER_LOST}.get(relation or "", otherwise)


def _is_equal(first: _OwnFailure, other: _OwnFailure) -> bool:
    if first.weight == RETURNED:
        return other.at <= first.at
    return _words(first.failure) == _words(other.failure) or abs(other.at - first.at) < _APART


def _words(failure: Failure) -> tuple[str | None, ...]:
    """What failures with the same cause have in common."""
    words = re.sub(r"\d+", "#", failure.message)
    return failure.kind, failure.type, failure.signal, f"{failure.exit_code} {words}"


def agent_failure(trial: AttemptEvidence) -> Failure | None:
    """Why the agent failed, in its own words, with the option that helps; ``None`` if it ended as it should.

    An agent that was ended, or that had its own process, failed in the phase in which the first rank was.
    """
    agent = trial.agent
    if agent is None or (agent.error is None and not agent.returncode):
        return None
    phase: Phase = "setup"
    for rank in sorted(trial.ranks, key=attrgetter("rank")):
        if begun := [event["phase"] for event in rank.events or () if event["type"] == "begin"]:
            phase = begun[-1]
            break
        if rank.events is not None and trial.launcher == "script":
            phase = "run"
    code = agent.returncode or 0
    if code < 0:
        name = signal_name(-code)
        return Failure(phase, "signal", f"{agent.name} was ended by {name} in {describe_phase(phase)}", signal=name)
    if agent.error is not None:
        text = f"{agent.error.get('type', '')}: {agent.error['message']}"
        hint = next((f"; {hint}" for pattern, hint in _HINTS.items() if re.search(pattern, text)), "")
        message = f"{agent.name} failed: {agent.error['message']}{hint}"
        return Failure("launch", "exception", message, agent.error.get("type"), agent.error.get("traceback"))
    message = f"{agent.name} ended with exit code {code}; see stderr"
    return Failure(phase, "exit_code", message, exit_code=code)
