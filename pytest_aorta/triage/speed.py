"""Compare the step times of a cell with its baseline: how much longer a step takes, and how sure that is.

For commands without step times, whole runs are compared. Operators are compared in the same way, if the collector
``profile`` has measured them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import comb, exp, inf, lgamma, log, sqrt
from statistics import NormalDist, fmean, median, variance
from typing import Literal, NamedTuple

from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.rates import Interval, holm
from pytest_aorta.triage.rounds import by_turns, in_order, windows

#: Chance that any cell of a baseline is called slower or faster although none is.
LEVEL = 0.05

#: ``similar`` has to be shown; ``n/a``: fewer than two trials with step times on a side.
SpeedKind = Literal["slower", "faster", "similar", "undecided", "n/a"]

#: What was measured: steps, or whole runs.
Subject = Literal["steps", "runs"]


class Measured(NamedTuple):
    """One trial: its place, the logarithm of its median step time (or of its whole run) in ms, and its begin.

    ``began`` is empty if unknown or meaningless.
    """

    place: Hashable
    time: float
    began: str = ""


#: A smaller variance is due to rounding.
_NO_ERROR = 1e-300

#: With fewer pairs, pairing costs more certainty than it gains.
_FEWEST_PAIRS = 6

#: A straggler is this many median deviations from the median: 3.5 standard deviations, each estimated by 1.4826 median
#: deviations.
_STRAGGLES = 3.5 * 1.4826

#: Differences of pairs are rounded to so many levels, so that they have few different sums.
_LEVELS = 40

#: Sums of more differences are nearly normally distributed.
_MOST_EXACT = 50

#: Operators with a smaller share of the time are not compared, as each comparison costs certainty.
_LEAST_SHARE = 0.01

#: Operators whose time may be waiting for the slowest rank.
_WAITS = re.compile(r"c10d::|gloo:|nccl:|rccl:|mpi:|ucc:")


@dataclass(frozen=True)
class Speed:
    """The step times of a cell compared with its baseline.

    Attributes:
        kind: ``slower``, ``faster``: p is below the level, and the interval is not within the margin; ``similar``: the
            interval is within the margin.
        ratio: of the step times to the baseline's; 1.2 if steps take 20 % longer.
        interval: of the ratio, 95 %; ``None`` if there are too few trials to exclude anything.
        p: of "as fast as the baseline", two-sided; ``p_adjusted`` is corrected for the number of cells (Holm).
        reason: why a cell is ``undecided``, if its interval does not say so.
        held_back: why it may only seem slower or faster: ``14 of 20 trials of omp_1 ran under a power cap, ...``.
    """

    kind: SpeedKind
    ratio: float | None = None
    interval: Interval | None = None
    p: float = 1.0
    p_adjusted: float = 1.0
    reason: str = ""
    of: Subject = "steps"
    held_back: str = ""

    @property
    def change(self) -> str:
        """``+5% (4 to 6%)``, ``+30% (too few trials)``; empty for ``n/a``."""
        if self.ratio is None:
            return ""
        if self.interval is None:
            return f"{self.ratio - 1:+.0%} ({self.reason})"
        is_small = abs(self.ratio - 1) < 0.1 and self.interval.high - self.interval.low < 0.015
        decimals = 1 if is_small else 0
        # Adding 0 makes a negative zero a positive one.
        change, low, high = (
            round(100 * (each - 1), decimals) + 0.0 for each in (self.ratio, self.interval.low, self.interval.high)
        )
        return f"{change:+.{decimals}f}% ({low:.{decimals}f} to {high:.{decimals}f}%)"

    @property
    def text(self) -> str:
        """For a table: ``slower: +5% (4 to 6%)``."""
        return "-" if self.kind == "n/a" else f"{self.kind}: {self.change}"


def measured(trials: Iterable[TrialFacts], of: Subject = "steps") -> list[Measured]:
    """Trials with step times, or with a measured run, in order of their begin."""
    times = {"steps": lambda facts: facts.steps and facts.steps.median_ms,
             "runs": lambda facts: facts.run_sec and 1000 * facts.run_sec}  # fmt: skip
    return [
        Measured(facts.place.key, log(time), facts.started_at)
        for facts in in_order([*trials])
        if (time := times[of](facts)) is not None
    ]


def compare_speeds(
    sides: Sequence[tuple[Sequence[Measured], Sequence[Measured]]], margin: float, *, sequential: bool, family: int
) -> list[Speed]:
    """Compare the step times of cells with their baseline's.

    The unit is the trial, because the steps of a trial share its process, its clocks and its neighbours. Only trials at
    the same place are compared with each other.

    Args:
        sides: trials of each cell and of its baseline, in order of their begin. If the times are known, trials of one
            round and place are compared with each other.
        margin: ratios from ``1 / (1 + margin)`` to ``1 + margin`` are similar.
        sequential: the number of trials depends on their results, so p and interval have to hold at any time.
        family: number of cells that share the level.
    """
    compared = [_compared(*side, sequential, family) for side in sides]
    adjusted = holm([*(speed.p for speed in compared), *[1.0] * (family - len(compared))])
    judged = []
    for speed, p in zip(compared, adjusted, strict=False):
        speed = replace(speed, p_adjusted=p)
        ratio, interval = speed.ratio, speed.interval
        if ratio is not None and interval is not None:
            if interval.within(1 / (1 + margin), 1 + margin):
                speed = replace(speed, kind="similar")
            elif speed.p_adjusted < LEVEL:
                speed = replace(speed, kind="slower" if ratio > 1 else "faster")
        judged.append(speed)
    return judged


def _compared(cell: Sequence[Measured], base: Sequence[Measured], sequential: bool, family: int) -> Speed:
    """Estimate ratio, interval and p; the kind is decided later."""
    if len(cell) < 2 or len(base) < 2:
        return Speed("n/a")
    at: dict[Hashable, tuple[list[float], list[float]]] = {}
    for number, side in enumerate((cell, base)):
        for place, time, _ in side:
            at.setdefault(place, ([], []))[number].append(time)
    places = [both for both in at.values() if all(both)]
    if not places:
        difference = fmean(each.time for each in cell) - fmean(each.time for each in base)
        return Speed("undecided", exp(difference), reason="on other devices")
    spots = [[(each.place, each.began) for each in side] for side in (cell, base)]
    near = windows(*spots)
    pairs = [fmean(cell[k].time for k in ours) - fmean(base[k].time for k in theirs) for ours, theirs in near]
    is_timed = all(each.began for each in (*cell, *base))
    if is_timed and len(pairs) < min(len(cell), len(base)) and not by_turns(near, *spots):
        return Speed("undecided", exp(fmean(pairs)), reason="its trials did not alternate with those of the baseline")
    if sequential:
        low, middle, high, p = _anytime(pairs)
    elif is_timed and len(pairs) >= _FEWEST_PAIRS:
        can_tell = 2.0 ** (1 - len(pairs)) * family < LEVEL
        low, middle, high, p = _clipped(pairs) if can_tell and _straggle(pairs) else _t(*_estimate_pairs(pairs))
    else:
        low, middle, high, p = _t(*(_welch(*places[0]) if len(places) == 1 else within_places(places)))
        if 2 / comb(len(cell) + len(base), len(cell)) >= LEVEL:
            high = inf
    if high == inf:
        return Speed("undecided", exp(middle), reason="too few trials")
    return Speed("undecided", exp(middle), Interval(exp(low), exp(high)), p)


#: Lower end, estimate and upper end of a difference, and p.
_Estimate = tuple[float, float, float, float]


def _t(difference: float, error: float, freedom: float) -> _Estimate:
    if freedom <= 0:
        return -inf, difference, inf, 1.0
    if error <= 0:
        return difference, difference, difference, float(difference == 0)
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
    return difference - half, difference, difference + half, 2 * float(stdtr(freedom, -abs(difference) / error))


def _estimate_pairs(pairs: Sequence[float]) -> tuple[float, float, float]:
    """Mean, its standard error, and degrees of freedom."""
    squares = variance(pairs)
    return fmean(pairs), sqrt(squares / len(pairs)) if squares >= _NO_ERROR else 0.0, len(pairs) - 1


def _straggle(pairs: Sequence[float]) -> bool:
    """Whether some differences are much larger than most, so that a mean says little."""
    middle = median(pairs)
    deviations = [abs(each - middle) for each in pairs]
    return max(deviations) > _STRAGGLES * median(deviations) + sqrt(_NO_ERROR)


def _clipped(pairs: Sequence[float]) -> _Estimate:
    """Huber's estimate (1964) of the centre, with interval and p of an exact test.

    Without a difference, both signs of the difference of a pair are equally likely (Fisher 1935). The statistic is the
    sum of the differences, clipped at 1.5 standard deviations; with normal noise, clipping costs 4 % of the trials.
    With more than 50 pairs, the normal approximation.
    """
    import numpy as np

    values, middle = np.asarray(pairs), median(pairs)
    most = 1.5 * 1.4826 * float(np.median(np.abs(values - middle))) or sqrt(_NO_ERROR)

    def tails(null: float) -> tuple[float, float]:
        """Chances of sums as small, and as large, as observed."""
        scores = np.rint(_LEVELS * np.clip((values - null) / most, -1, 1)).astype(int)
        if len(pairs) > _MOST_EXACT:
            normal = NormalDist(0, max(1.0, float(np.sqrt((scores**2).sum()))))
            return normal.cdf(float(scores.sum()) + 1), normal.cdf(1 - float(scores.sum()))
        chances = np.ones(1)
        for size in np.abs(scores):
            longer = np.zeros(len(chances) + 2 * size)
            longer[: len(chances)] += chances / 2
            longer[2 * size :] += chances / 2
            chances = longer
        seen = len(chances) // 2 + int(scores.sum())
        return float(chances[: seen + 1].sum()), float(chances[seen:].sum())

    def end(tail: int, wanted: float) -> float:
        low, high = min(pairs) - most, max(pairs) + most
        for _ in range(40):
            half = (low + high) / 2
            is_below = tails(half)[0] > wanted if tail == 0 else tails(half)[1] < wanted
            low, high = (half, high) if is_below else (low, half)
        return (low + high) / 2

    return end(1, LEVEL / 2), end(0, 0.5), end(0, LEVEL / 2), min(1.0, 2 * min(tails(0.0)))


def _welch(cell: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Difference of the means, its standard error, and degrees of freedom (Welch 1947)."""
    difference = fmean(cell) - fmean(base)
    if len(cell) < 2 or len(base) < 2:
        return difference, 0.0, 0.0
    one, other = variance(cell) / len(cell), variance(base) / len(base)
    error = one + other
    if error < _NO_ERROR:
        return difference, 0.0, inf
    # As shares of their sum, so that errors as small as rounding do not underflow when squared.
    freedom = 1 / ((one / error) ** 2 / (len(cell) - 1) + (other / error) ** 2 / (len(base) - 1))
    return difference, sqrt(error), freedom


def within_places(places: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float, float]:
    """As ``_welch``, by least squares of a two-way additive model: each place has a speed of its own."""
    weights = [len(cell) * len(base) / (len(cell) + len(base)) for cell, base in places]
    differences = [fmean(cell) - fmean(base) for cell, base in places]
    difference = sum(weight * each for weight, each in zip(weights, differences, strict=True)) / sum(weights)
    squares = sum(weight * (each - difference) ** 2 for weight, each in zip(weights, differences, strict=True))
    for side in (side for both in places for side in both):
        mean = fmean(side)
        squares += sum((time - mean) ** 2 for time in side)
    freedom = sum(len(cell) + len(base) for cell, base in places) - len(places) - 1
    return difference, sqrt(squares / freedom / sum(weights)) if freedom else 0.0, freedom


def _anytime(pairs: Sequence[float]) -> _Estimate:
    """The median difference of pairs with its confidence sequence and p, valid at any time.

    A bet on the signs, mixed over all chances of a plus (Robbins 1970). Unlike a sequential t test it holds for any
    noise, such as two clock frequencies.
    """
    number, ordered = len(pairs), sorted(pairs)

    def wealth(above: int, below: int) -> float:
        logarithm = lgamma(above + 1) + lgamma(below + 1) - lgamma(above + below + 2) + (above + below) * log(2)
        return exp(min(logarithm, 500.0))

    # A median above the k-th smallest difference has k of them below; the largest refuted k gives an end.
    refuted = [k for k in range((number + 1) // 2) if wealth(number - k, k) >= 1 / LEVEL]
    p = min(1.0, 1 / wealth(sum(each > 0 for each in pairs), sum(each < 0 for each in pairs)))
    if not refuted:
        return -inf, median(pairs), inf, p
    return ordered[refuted[-1]], median(pairs), ordered[-1 - refuted[-1]], p


@dataclass(frozen=True)
class OperatorChange:
    """An operator whose time differs from the baseline's.

    Attributes:
        name: as torch's profiler calls it; followed by `` (device)`` for the time of its kernels.
        ms: own time per step without operators that it calls; mean over the cell's trials.
        interval: of the ratio of both, 95 %; ``None`` if only one side has the operator.
        p_adjusted: of "no difference", corrected for the number of operators and cells (Holm).
    """

    name: str
    ms: float
    base_ms: float
    interval: Interval | None
    p_adjusted: float

    @property
    def waits(self) -> bool:
        """Whether its time may be waiting for other ranks."""
        return _WAITS.match(self.name) is not None

    @property
    def text(self) -> str:
        """``aten::mm +31% (25 to 36%), 12.1 ms a step instead of 9.2``."""
        waits = ", which may wait for other ranks" if self.waits else ""
        if self.interval is None:
            where = "only here" if self.ms else "only in the baseline"
            return f"{self.name} {where}, {max(self.ms, self.base_ms):.3g} ms a step{waits}"
        low, high = (each - 1 for each in (self.interval.low, self.interval.high))
        change = f"{self.ms / self.base_ms - 1:+.0%} ({100 * low:.0f} to {high:.0%})"
        return f"{self.name} {change}, {self.ms:.3g} ms a step instead of {self.base_ms:.3g}{waits}"


def changed_operators(
    cell: Sequence[TrialFacts], base: Sequence[TrialFacts], margin: float, cells: int
) -> tuple[OperatorChange, ...]:
    """Operators whose time differs by more than ``margin`` (a share), most expensive first.

    Operators whose time may include waiting, such as collectives, come last. Each trial is one observation; trials
    without a profile are ignored. If nothing differs, any operator of any of ``cells`` cells is named in 5 % at most.
    """
    sides = ours, theirs = [[trial for trial in side if trial.operators] for side in (cell, base)]
    if min(map(len, sides)) < 2:
        return ()
    both = [*ours, *theirs]
    names = {name for trial in both for name in trial.operators}

    def mean(name: str, side: Sequence[TrialFacts]) -> float:
        return fmean(trial.operators.get(name, 0.0) for trial in side)

    means = {name: (mean(name, ours), mean(name, theirs)) for name in names}
    total = sum(sum(each) for each in means.values())
    names = {name for name in names if sum(means[name]) >= _LEAST_SHARE * total}
    shared = sorted(name for name in names if all(name in trial.operators for trial in both))
    times = [
        [[Measured(trial.place.key, log(trial.operators[name]), trial.started_at) for trial in in_order(side)]
         for side in sides]
        for name in shared
    ]  # fmt: skip
    speeds = compare_speeds([(own, base) for own, base in times], margin, sequential=False, family=len(names) * cells)
    changes = [
        OperatorChange(name, *means[name], speed.interval, speed.p_adjusted)
        for name, speed in zip(shared, speeds, strict=True)
        if speed.kind in ("slower", "faster")
    ]
    # Operators of one side only: a permutation test of which trials have it.
    p = len(names) * cells / comb(len(both), len(ours))
    for name in sorted(names.difference(shared)) if p < LEVEL else ():
        have = [{name in trial.operators for trial in side} for side in sides]
        if have in ([{True}, {False}], [{False}, {True}]):
            changes.append(OperatorChange(name, *means[name], None, p))
    return tuple(sorted(changes, key=lambda each: (each.waits, -abs(each.ms - each.base_ms))))
