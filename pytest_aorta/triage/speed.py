"""Step times of a cell compared with those of its baseline: how much longer a step takes, and how sure that is.

Of commands that say no steps, their whole runs are compared. Where the collector ``profile`` has looked, operators are
compared in the same way: what is slower where steps are slower.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import comb, exp, inf, log, sqrt
from statistics import fmean, variance
from typing import Literal

from pytest_aorta.triage.facts import TrialFacts
from pytest_aorta.triage.rates import Interval, holm

#: Probability that any cell of a baseline is called slower or faster although none is.
LEVEL = 0.05

#: ``similar`` is shown, not assumed; ``n/a`` without step times of two trials on both sides.
SpeedKind = Literal["slower", "faster", "similar", "undecided", "n/a"]

#: What was measured of each trial.
Subject = Literal["steps", "runs"]

#: One trial: where it ran, and the logarithm of its median step time, or of the time of its run.
Measured = tuple[Hashable, float]

#: Below so little, a variance is rounding.
_NO_ERROR = 1e-300

#: Operators that take less than this part of both sides' operators are not compared: each one costs certainty.
_LEAST_SHARE = 0.01

#: They last as long as the slowest rank makes them last.
_WAITS = re.compile(r"c10d::|gloo:|nccl:|rccl:|mpi:|ucc:")


@dataclass(frozen=True)
class Speed:
    """What is known of the step times of a cell.

    Attributes:
        kind: ``slower`` and ``faster``: p is below the level, and the interval does not lie within the margin;
            ``similar``: it does.
        ratio: of the step times to those of the baseline, 1.2 for steps that take 20 % longer.
        interval: of the ratio, 95 %; ``None`` where so few trials exclude nothing.
        p: of "as fast as the baseline", two-sided; ``p_adjusted`` is corrected for the number of cells (Holm).
        reason: why a cell is ``undecided``, where its interval does not say it.
    """

    kind: SpeedKind
    ratio: float | None = None
    interval: Interval | None = None
    p: float = 1.0
    p_adjusted: float = 1.0
    reason: str = ""
    of: Subject = "steps"

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
    """Those of the trials that have step times, or whose run was measured as a whole, in their order."""
    if of == "runs":
        return [(trial.place.key, log(1000 * trial.run_sec)) for trial in trials if trial.run_sec is not None]
    return [(trial.place.key, log(trial.steps.median_ms)) for trial in trials if trial.steps is not None]


def compare_speeds(
    sides: Sequence[tuple[Sequence[Measured], Sequence[Measured]]], margin: float, *, sequential: bool, family: int
) -> list[Speed]:
    """Compare step times of cells with those of their baseline.

    The trial is the unit, because the steps of a trial share its process, its clocks and its neighbours: counted one by
    one they would feign precision. Only trials at the same place are compared with each other.

    Args:
        sides: of each cell its trials and those of its baseline, in the order in which they began.
        margin: ratios from ``1 / (1 + margin)`` to ``1 + margin`` are similar.
        sequential: whether the number of trials depends on what was seen of them: the k-th trial of a cell at a place
            is compared with the k-th of the baseline there, and p and interval hold at any time.
        family: cells that share the level.
    """
    found = [_compared(*side, sequential) for side in sides]
    adjusted = holm([*(speed.p for speed in found), *[1.0] * (family - len(found))])
    judged = []
    for speed, p, side in zip(found, adjusted, sides, strict=False):
        speed = replace(speed, p_adjusted=p)
        ratio, interval = speed.ratio, speed.interval
        if ratio is not None and interval is not None:
            if reason := _two_speeds(*side, 1 + margin):
                speed = replace(speed, reason=reason)
            elif interval.within(1 / (1 + margin), 1 + margin):
                speed = replace(speed, kind="similar")
            elif speed.p_adjusted < LEVEL:
                speed = replace(speed, kind="slower" if ratio > 1 else "faster")
        judged.append(speed)
    return judged


def _compared(cell: Sequence[Measured], base: Sequence[Measured], sequential: bool) -> Speed:
    """Undecided, with its numbers."""
    if len(cell) < 2 or len(base) < 2:
        return Speed("n/a")
    at: dict[Hashable, tuple[list[float], list[float]]] = {}
    for number, side in enumerate((cell, base)):
        for place, time in side:
            at.setdefault(place, ([], []))[number].append(time)
    places = [both for both in at.values() if all(both)]
    if not places:
        difference = fmean(time for _, time in cell) - fmean(time for _, time in base)
        return Speed("undecided", exp(difference), reason="on other devices")
    if sequential:
        difference, half, p = _anytime(places)
    else:
        difference, error, freedom = _welch(*places[0]) if len(places) == 1 else within_places(places)
        half, p = inf, 1.0
        if 2 / comb(len(cell) + len(base), len(cell)) < LEVEL and freedom > 0:
            half, p = 0.0, float(difference == 0)
            if error > 0:
                from scipy.special import stdtr, stdtrit

                half = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
                p = 2 * float(stdtr(freedom, -abs(difference) / error))
    if half == inf:
        return Speed("undecided", exp(difference), reason="too few trials")
    return Speed("undecided", exp(difference), Interval(exp(difference - half), exp(difference + half)), p)


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
    """As above, by least squares of a model in which each place has a speed of its own (two-way, additive)."""
    weights = [len(cell) * len(base) / (len(cell) + len(base)) for cell, base in places]
    differences = [fmean(cell) - fmean(base) for cell, base in places]
    difference = sum(weight * each for weight, each in zip(weights, differences, strict=True)) / sum(weights)
    squares = sum(weight * (each - difference) ** 2 for weight, each in zip(weights, differences, strict=True))
    for side in (side for both in places for side in both):
        mean = fmean(side)
        squares += sum((time - mean) ** 2 for time in side)
    freedom = sum(len(cell) + len(base) for cell, base in places) - len(places) - 1
    return difference, sqrt(squares / freedom / sum(weights)) if freedom else 0.0, freedom


def _anytime(places: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float, float]:
    """The mean difference of pairs, half of its confidence sequence, and p.

    The t test and confidence sequence of Lai 1976, as in Wang & Ramdas 2025, "Anytime-valid t-tests and confidence
    sequences for Gaussian means with unknown variance", with a normal prior of variance 1 on the effect size. Of normal
    noise it holds exactly from the first pair on, where asymptotic sequences need a number to begin with.
    """
    pairs = [one - other for both in places for one, other in zip(*both, strict=False)]
    n, mean = len(pairs), fmean(pairs)
    growth = 1.0 + n
    bound = (sqrt(growth) / LEVEL) ** (2 / n)
    if bound >= growth:
        return mean, inf, 1.0
    squares = sum((each - mean) ** 2 for each in pairs)
    # The wealth of a bet against "as fast" is ((1 + x) / (1 + x / growth)) ** (n / 2) / sqrt(growth).
    x = n * mean**2 / squares if squares >= _NO_ERROR else inf if mean else 0.0
    wealth = n / 2 * (log(growth) if x == inf else log((1 + x) / (1 + x / growth))) - log(growth) / 2
    return mean, sqrt((bound - 1) / (1 - bound / growth) * squares / n), exp(-max(0.0, wealth))


def _two_speeds(cell: Sequence[Measured], base: Sequence[Measured], ratio: float) -> str:
    """Why two speeds leave a comparison open: the times of one side are in two groups, a gap apart.

    The best division in two, by least squares, leaves a small share of the variance, at most a tenth. Of few times it
    has to be smaller: 1 % of samples of a uniform distribution have less. It does not matter where each trial of one
    side is slower than each of the other.
    """
    ours, theirs = ([time for _, time in side] for side in (cell, base))
    if min(ours) > max(theirs) or max(ours) < min(theirs):
        return ""
    for whose, side in (("its", cell), ("the baseline's", base)):
        at: dict[Hashable, list[float]] = {}
        for place, time in side:
            at.setdefault(place, []).append(time)
        overall = fmean(time for _, time in side)
        ordered, n = sorted(time - fmean(at[place]) + overall for place, time in side), len(side)
        least = max(2, n // 5)
        if n < 6 or ordered[-1] - ordered[0] < log(ratio):
            continue
        sums = list(accumulate(time - overall for time in ordered))
        best = max(range(least, n - least + 1), key=lambda number: sums[number - 1] ** 2 / (number * (n - number)))
        low, high = ordered[:best], ordered[best:]
        within = variance(low) * (len(low) - 1) + variance(high) * (len(high) - 1)
        share = within / (variance(ordered) * (n - 1))
        if fmean(high) - fmean(low) > log(ratio) and share < min(0.1, n / 200):
            return f"{whose} trials have two speeds: {exp(fmean(low)):.3g} and {exp(fmean(high)):.3g} ms"
    return ""


@dataclass(frozen=True)
class OperatorChange:
    """An operator whose time differs.

    Attributes:
        name: as torch's profiler calls it; `` (device)`` behind it for the time of its kernels.
        ms: per step, its own time without that of the operators it calls; mean over the trials of the cell.
        interval: 95 %, of the ratio of both; ``None`` for an operator that only one of them has.
        p_adjusted: of "no difference", corrected for the number of operators and cells (Holm).
    """

    name: str
    ms: float
    base_ms: float
    interval: Interval | None
    p_adjusted: float

    @property
    def waits(self) -> bool:
        """Whether it may only wait for other ranks."""
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
    """The operators that differ, what costs most first; those that may only wait come last.

    The trial is the unit, as for steps, and trials without a profile are left out; with probability 5 % any operator is
    named in any of ``cells`` cells where none differs.
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
    times = [[[(trial.place.key, log(trial.operators[name])) for trial in side] for side in sides] for name in shared]
    speeds = compare_speeds([(own, base) for own, base in times], margin, sequential=False, family=len(names) * cells)
    found = [
        OperatorChange(name, *means[name], speed.interval, speed.p_adjusted)
        for name, speed in zip(shared, speeds, strict=True)
        if speed.kind in ("slower", "faster")
    ]
    # Which trials have it says as much as a permutation can.
    p = len(names) * cells / comb(len(both), len(ours))
    for name in sorted(names.difference(shared)) if p < LEVEL else ():
        have = [{name in trial.operators for trial in side} for side in sides]
        if have in ([{True}, {False}], [{False}, {True}]):
            found.append(OperatorChange(name, *means[name], None, p))
    return tuple(sorted(found, key=lambda each: (each.waits, -abs(each.ms - each.base_ms))))
