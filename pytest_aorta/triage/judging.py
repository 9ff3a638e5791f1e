"""What is concluded from the trials of a cell beside those of its baseline, and what leaves that in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import TYPE_CHECKING, Literal

from pytest_aorta.triage import Margin, rates
from pytest_aorta.triage.cells import CellStatistics
from pytest_aorta.triage.draws import StartComparison, independent, more_starts
from pytest_aorta.triage.facts import CellKey
from pytest_aorta.triage.rates import Counts, Interval
from pytest_aorta.triage.where import Association

if TYPE_CHECKING:
    from pytest_aorta.triage.sequential import SequentialComparison

#: Probability that any cell of a baseline is called different although none is.
LEVEL = 0.05

#: So many trials on either side would show a large difference.
ENOUGH = 8

#: Part of the failures that a cure leaves at most.
_CURE = 0.5

VerdictKind = Literal[
    "baseline",
    "second baseline",
    "fixes",
    "reduces",
    "worse",
    "exchanges",
    "leaves",
    "confounded",
    "slower",
    "faster",
    "similar",
    "no cure",
    "undecided",
    "did not run",
    "error",
]

#: Verdicts that a difference of the failure rates is.
DIFFERENT: tuple[VerdictKind, ...] = ("fixes", "reduces", "worse")

#: How the numbers were found: once, after a number of trials that was set before; or such that one may look any time.
Method = Literal["fixed", "sequential"]


@dataclass(frozen=True)
class Comparison:
    """Failure rate of a cell minus that of its baseline, with its 95 % interval.

    ``ratio`` is the 99 % interval of the cell's rate divided by the baseline's. ``p`` is two-sided, of this cell alone;
    ``p_adjusted`` is corrected for the number of cells (Holm). Where trials ran in several places, all compare trials
    of one place with each other. Where starts served several trials, p is the larger one of the trials' and of the
    starts', and the intervals are those of as many trials as there are starts.
    """

    baseline: CellKey
    difference: float
    interval: Interval
    ratio: Interval
    p: float
    p_adjusted: float
    method: Method

    def is_within(self, margin: Margin) -> bool:
        """Whether all plausible rates are within the margin of all plausible rates of the baseline."""
        return (margin.points >= 1 or self.interval.within(-margin.points, margin.points)) and (
            margin.share >= 1 or self.ratio.within(1 - margin.share, 1 + margin.share)
        )


@dataclass(frozen=True)
class Verdict:
    """What is concluded about a cell.

    Attributes:
        reason: why there is no more to say; empty where the numbers say it.
        more_trials: of ``undecided``: about how many more trials of the cell would decide.
        more_starts: of ``undecided``: how many more processes of the cell, and of its baseline, the run may go on to.
        is_of_starts: whether it is the number of processes that leaves it open.
        removes: of ``fixes`` and ``reduces``: at least this share of the failures is gone, 99 %.
        of: of ``exchanges`` what for what, of ``leaves`` what, of ``confounded`` with what, of ``no cure`` how many
            times the baseline's rate its own is, 99 %; ``on the speed``, where that is the question.
        is_same: of ``no cure``: whether the rate is shown to be within the margin of the baseline's.
        is_likely: of ``no cure``: whether it is not shown, but so likely that the cell was given up.
    """

    kind: VerdictKind
    reason: str = ""
    more_trials: int | None = None
    more_starts: int | None = None
    is_of_starts: bool = False
    removes: float | None = None
    of: str = ""
    is_same: bool = False
    is_likely: bool = False

    @property
    def text(self) -> str:
        """For a table: ``undecided (about 12 more trials)``, ``no cure (0.88-1.2x)``, ``no cure?`` if it is likely."""
        if self.more_trials is not None:
            return f"undecided (about {self.more_trials} more trials)"
        return f"{self.kind}{'?' * self.is_likely} {self.of}".rstrip()


@dataclass(frozen=True)
class Pair:
    """Counted trials of a cell and of its ``baseline``, which both have some.

    Attributes:
        strata: ``counts`` for each place in which both have trials; ``counts`` alone where there is one place.
        rounds: the same for each round at each place, where rounds matter: trials of one round share what the machine
            did to it, or their seeds. Empty where they do not.
        watched: what their pairs of trials show at any time; ``None`` where the number of trials was set before.
        apart: ``host`` or ``device``, where they have no place in common; ``time``, where one ended before the other.
        starts: the test of starts, where one served several trials.
    """

    baseline: CellKey
    counts: Counts
    strata: tuple[Counts, ...]
    rounds: tuple[Counts, ...] = ()
    watched: SequentialComparison | None = None
    apart: str = ""
    starts: StartComparison | None = None

    @property
    def trials_p(self) -> float:
        """The p value if each trial were a draw of its own."""
        if len(self.strata) == 1 and not self.rounds:
            return rates.difference_p(*self.strata[0])
        return rates.conditional_p(self.rounds or self.strata)

    def comparison(self) -> Comparison:
        """Of this cell alone."""
        strata: Sequence[tuple[float, float, float, float]] = self.strata
        if self.starts is not None and self.counts[1] and self.counts[3]:
            ours = independent(self.starts.cell) / self.counts[1]
            theirs = independent(self.starts.base) / self.counts[3]
            strata = [(a * ours, b * ours, c * theirs, d * theirs) for a, b, c, d in self.strata]
        cell, base = rates.arms(strata)
        difference, seen = cell.rate - base.rate, self.watched
        if seen is not None:
            return Comparison(self.baseline, difference, seen.interval, seen.ratio, seen.p, seen.p, "sequential")
        p = self.trials_p if self.starts is None else max(self.trials_p, self.starts.p)
        ratio = rates.ratio_interval(*rates.arms(strata, rates.RATIO_LEVEL))
        return Comparison(self.baseline, difference, rates.difference_interval(cell, base), ratio, p, p, "fixed")


def judge(pairs: Sequence[Pair], margin: Margin, family: int, planned: int = 0) -> list[tuple[Comparison, Verdict]]:
    """Compare cells with their baselines, corrected for their number (Holm).

    ``family``: cells that share the level, for the guess of how many more trials decide. ``planned``: comparisons that
    there will be, as a cell that has its first trials later must not take back what was concluded before.
    """
    found = [pair.comparison() for pair in pairs]
    adjusted = rates.holm([*(each.p for each in found), *[1.0] * (planned - len(found))])
    compared = [replace(each, p_adjusted=p) for each, p in zip(found, adjusted, strict=False)]
    return [(each, _verdict(pair, each, margin, family)) for pair, each in zip(pairs, compared, strict=True)]


def _verdict(pair: Pair, comparison: Comparison, margin: Margin, family: int) -> Verdict:
    """What a comparison says of a cell.

    Significantly different comes first. ``no cure`` is shown, not assumed: the whole intervals of difference and ratio
    lie within ``margin``, or it may lower the rate, but does not remove half of the failures.
    """
    failures, trials, base_failures, base_trials = pair.counts
    sequential = comparison.method == "sequential"
    kind: VerdictKind = "undecided"
    is_same = comparison.is_within(margin)
    if comparison.p_adjusted < LEVEL and comparison.difference:
        kind = "worse" if comparison.difference > 0 else "reduces" if failures else "fixes"
    # Above 0 it may turn out to be worse.
    elif is_same or (comparison.ratio.low > _CURE and comparison.difference <= 0):
        kind = "no cure"
    # Where they have nothing in common, more trials do not decide either.
    if pair.apart and (kind != "undecided" or min(trials, base_trials) >= ENOUGH):
        where = "while" if pair.apart == "time" else "where"
        reason = f"no trial of {pair.baseline.cell} ran {where} its trials ran"
        return Verdict("confounded", reason, of=f"with {pair.apart}")
    if kind in ("fixes", "reduces"):
        # Three trials without a failure are no cure: the rate may be half of what it was.
        # Where the trials of a start are alike, they are one.
        number = len(pair.starts.cell) if pair.starts is not None and pair.starts.are_alike else trials
        if kind == "fixes" and bound_on_rate(number, sequential=sequential) >= base_failures / base_trials * _CURE:
            kind = "reduces"
        removes = 1 - comparison.ratio.high
        return Verdict(kind, removes=removes if removes > 0 else None)
    if kind == "no cure":
        return Verdict(kind, of=times(comparison.ratio), is_same=is_same)
    if kind != "undecided":
        return Verdict(kind)
    if pair.starts is not None and (pair.starts.are_alike or pair.trials_p * family < LEVEL):
        return _undecided_starts(pair.starts, margin, family, sequential)
    # The guess is for trials of one place, and of a few it would be no more than its prior.
    says_nothing = pair.strata != (pair.counts,) or min(trials, base_trials) < ENOUGH
    return Verdict(kind, more_trials=None if says_nothing else rates.more_trials(*pair.counts, margin, family))


def _undecided_starts(starts: StartComparison, margin: Margin, family: int, sequential: bool) -> Verdict:
    """Undecided for its number of starts, whatever the number of trials.

    A run whose tests hold at one time only may go on to the number of starts below which no split is a difference;
    beyond, a guess as for trials says how many would probably decide.
    """
    needed = more_starts(starts.cell, starts.base, family)
    if needed:
        return Verdict("undecided", starts.reason(needed), more_starts=needed, is_of_starts=True)
    guess = starts.guess(margin, family)
    more = guess if sequential else None
    return Verdict("undecided", starts.reason(guess, is_guess=True), more_starts=more, is_of_starts=True)


def times(ratio: Interval) -> str:
    """How many times the baseline's rate a rate is: ``(0.88-1.2x)``, ``(0.4x or more)``."""
    if ratio.high == inf:
        return f"({ratio.low:.2g}x or more)" if ratio.low else ""
    return f"({ratio.low:.2g}-{ratio.high:.2g}x)"


def bound_on_rate(trials: int, *, sequential: bool) -> float:
    """The largest rate that is plausible after so many trials without a failure, 95 %."""
    if not sequential:
        return rates.rate_below(trials)
    from pytest_aorta.triage.sequential import rate_upper_bound_sequential

    return rate_upper_bound_sequential(0, trials)


def outlasts(runs: Association, counts: Counts, comparisons: int) -> bool:
    """Whether there is a difference even if the trials say only as much as so many independent ones.

    At the upper end of the interval of their serial correlation, 95 %, one-sided.
    """
    share = (runs.independent or 0) / runs.all_trials
    correlation = min(1.0, (1 - share) / (1 + share) + 1.645 / sqrt(runs.all_trials))
    share = (1 - correlation) / (1 + correlation)
    trials, base_trials = int(counts[1] * share), int(counts[3] * share)
    failures, base_failures = min(trials, round(counts[0] * share)), min(base_trials, round(counts[2] * share))
    return comparisons * rates.difference_p(failures, trials, base_failures, base_trials) < LEVEL


def loss_doubt(cell: CellStatistics, base: CellStatistics, kind: VerdictKind, comparisons: int) -> str:
    """Why lost trials leave a verdict open; empty where they do not.

    A trial that was lost might have failed. So a verdict does not hold where cell and baseline lose trials at
    different rates, nor where it is gone if those that were lost on the side that fails less had failed. Trials that
    one event has cost are one loss.
    """
    lost, base_lost = cell.loss_events, base.loss_events
    if not lost and not base_lost:
        return ""
    doubt = rates.difference_p(lost, cell.counted + lost, base_lost, base.counted + base_lost) < LEVEL
    if kind in DIFFERENT:
        more = base_lost if kind == "worse" else 0
        less = 0 if kind == "worse" else lost
        worst = (cell.failures + less, cell.counted + less, base.failures + more, base.counted + more)
        lower = worst[0] * worst[3] < worst[2] * worst[1]
        doubt |= lower == (kind == "worse") or comparisons * rates.difference_p(*worst) >= LEVEL
    if not doubt:
        return ""
    if base_lost * (cell.counted + lost) > lost * (base.counted + base_lost):
        return f"{base.lost} of {base.total} trials of {base.key.cell} were lost"
    return f"{cell.lost} of {cell.total} trials were lost"
