"""The rank that others waited for, from their stacks and flight recorders; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_aorta.launch.diagnosis.own_failure import GAVE_UP, PEER_LOST, UNHEARD, OwnFailure
from pytest_aorta.launch.diagnosis.trial_evidence import RankEvidence, collective_text

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
