"""What clocks, throttling and caps say of two sets of trials: of a cell and its baseline, or of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from pytest_aorta.probe.health.meaning import THROTTLES
from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.rates import difference_p

#: Level of a difference in how many trials of two sides were held back.
_LEVEL = 0.05

#: Clocks are lower below this share of the other side's; under load they vary less.
_LOWER_CLOCK = 0.97


class HeldBack(NamedTuple):
    """``numbers``: of trials that were held back, and of all, on both sides. ``p``: corrected for the reasons."""

    p: float
    what: str
    numbers: tuple[int, int, int, int]


def held_back(one: Sequence[TrialFacts], other: Sequence[TrialFacts]) -> list[HeldBack]:
    """How trials of both sides differ in what has held their clocks back, the clearest difference first.

    For each reason, and for clocks that differ by more than 3 %, an exact test of the number of trials (Boschloo).
    Trials without readings are left out.
    """
    sides = [[facts for facts in side if facts.throttled is not None] for side in (one, other)]
    if not all(sides):
        return []
    counts: dict[str, tuple[int, int]] = {}
    for reason in sorted({reason for side in sides for facts in side for reason in facts.throttled or ()}):
        ours, theirs = (sum(reason in (facts.throttled or ()) for facts in side) for side in sides)
        counts[THROTTLES.get(reason, f"were held back ({reason})")] = ours, theirs
    clocks = [[facts.clock_mhz for facts in side if facts.clock_mhz is not None] for side in sides]
    if all(clocks):
        low, high = sorted(map(median, clocks))
        if low < _LOWER_CLOCK * high:
            ours, theirs = (sum(clock < (low + high) / 2 for clock in side) for side in clocks)
            counts[f"were clocked lower ({low:.0f} MHz instead of {high:.0f})"] = ours, theirs
    found = []
    for what, (ours, theirs) in counts.items():
        numbers = ours, len(sides[0]), theirs, len(sides[1])
        if (p := difference_p(*numbers) * len(counts)) < _LEVEL:
            found.append(HeldBack(p, what, numbers))
    return sorted(found)


def why_slower(slow: Sequence[TrialFacts], fast: Sequence[TrialFacts], names: tuple[str, str]) -> str:
    """Why the slow side may owe that to its clocks; empty if more of the other side's trials were held back, or none.

    ``14 of 20 trials of omp_1 ran under a power cap, 0 of 20 of none``.
    """
    for each in held_back(slow, fast):
        ours, trials, theirs, others = each.numbers
        if ours * others > theirs * trials:
            return f"{ours} of {trials} trials of {names[0]} {each.what}, {theirs} of {others} of {names[1]}"
    return ""


def changes_of_clocks(before: Sequence[TrialFacts], after: Sequence[TrialFacts]) -> tuple[str, ...]:
    """Sentences on how two runs, A and B, differ: ``30 of 40 trials of B ran under a power cap, 0 of 40 of A``."""
    sentences = []
    for each in held_back(after, before):
        ours, trials, theirs, others = each.numbers
        sentences.append(f"{ours} of {trials} trials of B {each.what}, {theirs} of {others} of A")
    return tuple(sentences)
