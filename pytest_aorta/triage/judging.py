"""Conclusions from the trials of a cell and its baseline, and doubts about them."""

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

#: Chance that any cell of a baseline is called different although none is.
LEVEL = 0.05

#: With so many trials on either side, a large difference would show.
ENOUGH = 8

#: A cure leaves at most this share of the failures.
_CURE = 0.5

VerdictKind = Literal[
    "baseline",
    "second baseline",
    "not read",
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

#: Verdicts that say that failure rates differ.
DIFFERENT: tuple[VerdictKind, ...] = ("fixes", "reduces", "worse")

#: ``fixed``: valid once, for a number of trials that was set before. ``sequential``: valid at any time.
Method = Literal["fixed", "sequential"]


@dataclass(frozen=True)
class Comparison:
    """Failure rate of a cell minus its baseline's rate, with its 95 % interval.

    ``ratio`` is the 99 % interval of the cell's rate divided by the baseline's. ``p`` is two-sided, for this cell
    alone; ``p_adjusted`` is corrected for the number of cells (Holm). If trials ran in several places, only trials of
    one place are compared with each other. If starts served several trials, p is the larger of the trials' and the
    starts' p, and the intervals count as many trials as there are independent ones.
    """

    baseline: CellKey
    difference: float
    interval: Interval
    ratio: Interval
    p: float
    p_adjusted: float
    method: Method

    def is_within(self, margin: Margin) -> bool:
        """Whether the whole intervals of difference and ratio lie within the margin."""
        return (margin.points >= 1 or self.interval.within(-margin.points, margin.points)) and (
            margin.share >= 1 or self.ratio.within(1 - margin.share, 1 + margin.share)
        )


@dataclass(frozen=True)
class Verdict:
    """The conclusion about a cell.

    Attributes:
        reason: why there is no more to say; empty if the numbers say it.
        more_trials: for ``undecided``: guess of how many more trials of the cell would decide.
        more_starts: for ``undecided``: how many more processes of each cell a run may add.
        is_of_starts: it is undecided because of the number of processes.
        removes: for ``fixes`` and ``reduces``: it removes at least this share of the failures, 99 %.
        of: completes the word: ``exchanges A for B``, ``leaves B``, ``confounded with host``, ``no cure (0.88-1.2x)``
            (ratio of the rates, 99 %), ``undecided on the speed``.
        is_same: for ``no cure``: the rate is shown to be within the margin of the baseline's.
        is_likely: for ``no cure``: not shown, but so likely that the cell was given up.
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
        """As in a table: ``undecided (about 12 more trials)``, ``no cure (0.88-1.2x)``, ``no cure?``."""
        if self.more_trials is not None:
            return f"undecided (about {self.more_trials} more trials)"
        return f"{self.kind}{'?' * self.is_likely} {self.of}".rstrip()


@dataclass(frozen=True)
class Pair:
    """Counted trials of a cell and of its ``baseline``; both have some.

    Attributes:
        strata: ``counts`` for each place in which both have trials; ``counts`` alone if there is one place.
        rounds: the same for each round and place, if rounds matter: trials of one round share the state of the machine,
            or their seeds. Else empty.
        watched: result of the test that holds at any time; ``None`` if the number of trials was set before.
        apart: ``host`` or ``device`` if they have no place in common; ``time`` if one ended before the other began.
        starts: the test of starts, if one served several trials.
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
        """The p value with each trial as an independent draw."""
        if len(self.strata) == 1 and not self.rounds:
            return rates.difference_p(*self.strata[0])
        return rates.conditional_p(self.rounds or self.strata)

    def comparison(self) -> Comparison:
        """Compare this cell alone, without a correction for others."""
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
    """Compare each cell with its baseline; p values are corrected for the number of comparisons (Holm).

    ``family``: number of cells that share the level, to estimate how many more trials a cell needs. ``planned``: number
    of comparisons at the end; correcting for it from the start, a cell that begins later takes nothing back.
    """
    single = [pair.comparison() for pair in pairs]
    adjusted = rates.holm([*(each.p for each in single), *[1.0] * (planned - len(single))])
    compared = [replace(each, p_adjusted=p) for each, p in zip(single, adjusted, strict=False)]
    return [(each, _verdict(pair, each, margin, family)) for pair, each in zip(pairs, compared, strict=True)]


def _verdict(pair: Pair, comparison: Comparison, margin: Margin, family: int) -> Verdict:
    """Turn a comparison into a verdict.

    A significant difference comes first. ``no cure`` has to be shown: the intervals of difference and ratio lie within
    ``margin``, or the rate may be lower, but is above half of the baseline's.
    """
    failures, trials, base_failures, base_trials = pair.counts
    sequential = comparison.method == "sequential"
    kind: VerdictKind = "undecided"
    is_same = comparison.is_within(margin)
    if comparison.p_adjusted < LEVEL and comparison.difference:
        kind = "worse" if comparison.difference > 0 else "reduces" if failures else "fixes"
    # With a higher rate it may turn out to be worse.
    elif is_same or (comparison.ratio.low > _CURE and comparison.difference <= 0):
        kind = "no cure"
    # Without a common place or time, more trials would not decide.
    if pair.apart and (kind != "undecided" or min(trials, base_trials) >= ENOUGH):
        where = "while" if pair.apart == "time" else "where"
        reason = f"no trial of {pair.baseline.cell} ran {where} its trials ran"
        return Verdict("confounded", reason, of=f"with {pair.apart}")
    if kind in ("fixes", "reduces"):
        # Few trials without a failure are no cure: half of the baseline's rate has to be excluded.
        # Trials of a start that end alike count as one.
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
    # The guess is for trials of one place; with few trials it would only repeat its prior.
    says_nothing = pair.strata != (pair.counts,) or min(trials, base_trials) < ENOUGH
    return Verdict(kind, more_trials=None if says_nothing else rates.more_trials(*pair.counts, margin, family))


def _undecided_starts(starts: StartComparison, margin: Margin, family: int, sequential: bool) -> Verdict:
    """Undecided because there are too few starts.

    Even if its tests hold at one time only, a run may go on to the number of starts below which no split is a
    difference (``more_starts``). Beyond that, a guess says how many would probably decide.
    """
    needed = more_starts(starts.cell, starts.base, family)
    if needed:
        return Verdict("undecided", starts.reason(needed), more_starts=needed, is_of_starts=True)
    guess = starts.guess(margin, family)
    more = guess if sequential else None
    return Verdict("undecided", starts.reason(guess, is_guess=True), more_starts=more, is_of_starts=True)


def times(ratio: Interval) -> str:
    """Format a ratio of rates: ``(0.88-1.2x)``, ``(0.4x or more)``."""
    if ratio.high == inf:
        return f"({ratio.low:.2g}x or more)" if ratio.low else ""
    return f"({ratio.low:.2g}-{ratio.high:.2g}x)"


def bound_on_rate(trials: int, *, sequential: bool) -> float:
    """Upper 95 % bound on the rate after trials without a failure."""
    if not sequential:
        return rates.rate_below(trials)
    from pytest_aorta.triage.sequential import rate_upper_bound_sequential

    return rate_upper_bound_sequential(0, trials)


def outlasts(runs: Association, counts: Counts, comparisons: int) -> bool:
    """Whether a difference holds if runs of failures make trials worth less.

    Trials are counted as independent ones at the upper end (95 %, one-sided) of their serial correlation.
    """
    share = (runs.independent or 0) / runs.all_trials
    correlation = min(1.0, (1 - share) / (1 + share) + 1.645 / sqrt(runs.all_trials))
    share = (1 - correlation) / (1 + correlation)
    trials, base_trials = int(counts[1] * share), int(counts[3] * share)
    failures, base_failures = min(trials, round(counts[0] * share)), min(base_trials, round(counts[2] * share))
    return comparisons * rates.difference_p(failures, trials, base_failures, base_trials) < LEVEL


def loss_doubt(cell: CellStatistics, base: CellStatistics, kind: VerdictKind, comparisons: int) -> str:
    """Why lost trials leave a verdict open; empty if they do not.

    A lost trial might have failed. So a verdict does not hold if cell and baseline lose trials at different rates, or
    if it were gone had all lost trials of the side that fails less failed. Trials lost by one event are one loss.
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
