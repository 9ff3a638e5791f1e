"""Step times of a cell compared with those of its baseline: how much longer a step takes, and how sure that is.

Of commands that say no steps, their whole runs are compared.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Speed:
    """What is known of the step times of a cell.

    Attributes:
        kind: ``slower`` and ``faster``: p is below the level, and the interval does not lie within the margin;
            ``similar``: it does.
        ratio: of the step times to those of the baseline, 1.2 for steps that take 20 % longer; ``None`` for ``n/a``.
        interval: of the ratio, 95 %; ``None`` where so few trials exclude nothing.
        p: of "as fast as the baseline", two-sided.
        p_adjusted: corrected for the number of cells (Holm).
        reason: why a cell is ``undecided``, where its interval does not say it.
        of: what was measured.
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
        margin: ratios up to ``1 + margin``, and from ``1 / (1 + margin)``, are similar.
        sequential: whether the number of trials depends on what was seen of them: the k-th trial of a cell at a place
            is compared with the k-th of the baseline there, and p and interval hold at any time.
        family: cells that share the level.
    """
    found = [_sequential(*side) if sequential else _fixed(*side) for side in sides]
    p_values = [speed.p for speed in found]
    adjusted = holm([*p_values, *[1.0] * (family - len(found))])
    return [
        _judged(replace(speed, p_adjusted=p), *side, margin)
        for speed, p, side in zip(found, adjusted, sides, strict=False)
    ]


def _judged(speed: Speed, cell: Sequence[Measured], base: Sequence[Measured], margin: float) -> Speed:
    if speed.ratio is None or speed.reason:
        return speed
    if speed.interval is None:
        return replace(speed, reason="too few trials")
    for whose, side in (("its", cell), ("the baseline's", base)):
        modes = _two_modes(_centred(side), 1 + margin)
        if modes and not _is_apart(cell, base):
            return replace(speed, reason=f"{whose} trials have two speeds: {modes[0]:.3g} and {modes[1]:.3g} ms")
    if speed.interval.within(1 / (1 + margin), 1 + margin):
        return replace(speed, kind="similar")
    if speed.p_adjusted < LEVEL:
        return replace(speed, kind="slower" if speed.ratio > 1 else "faster")
    return speed


def _fixed(cell: Sequence[Measured], base: Sequence[Measured]) -> Speed:
    if len(cell) < 2 or len(base) < 2:
        return Speed("n/a")
    places = _places(cell, base)
    if not places:
        return _elsewhere(cell, base)
    difference, error, freedom = _welch(*places[0]) if len(places) == 1 else _within_places(places)
    enough = 2 / comb(len(cell) + len(base), len(cell)) < LEVEL and freedom > 0
    if not enough:
        return Speed("undecided", exp(difference))
    from scipy.special import stdtr, stdtrit

    half, p = 0.0, float(difference == 0)
    if error > 0:
        half, p = float(stdtrit(freedom, 1 - LEVEL / 2)) * error, 2 * float(stdtr(freedom, -abs(difference) / error))
    return Speed("undecided", exp(difference), Interval(exp(difference - half), exp(difference + half)), p)


def _elsewhere(cell: Sequence[Measured], base: Sequence[Measured]) -> Speed:
    difference = fmean(time for _, time in cell) - fmean(time for _, time in base)
    return Speed("undecided", exp(difference), reason="on other devices")


def _places(cell: Sequence[Measured], base: Sequence[Measured]) -> list[tuple[list[float], list[float]]]:
    """Times of both sides at each place where both have run."""
    found: dict[Hashable, tuple[list[float], list[float]]] = {}
    for number, side in enumerate((cell, base)):
        for place, time in side:
            found.setdefault(place, ([], []))[number].append(time)
    return [both for both in found.values() if all(both)]


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


def _within_places(places: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float, float]:
    """As above, by least squares of a model in which each place has a speed of its own (two-way, additive)."""
    weights = [len(cell) * len(base) / (len(cell) + len(base)) for cell, base in places]
    differences = [fmean(cell) - fmean(base) for cell, base in places]
    difference = sum(weight * each for weight, each in zip(weights, differences, strict=True)) / sum(weights)
    squares = sum(weight * (each - difference) ** 2 for weight, each in zip(weights, differences, strict=True))
    squares += sum((time - fmean(side)) ** 2 for both in places for side in both for time in side)
    freedom = sum(len(cell) + len(base) for cell, base in places) - len(places) - 1
    return difference, sqrt(squares / freedom / sum(weights)) if freedom else 0.0, freedom


def _sequential(cell: Sequence[Measured], base: Sequence[Measured]) -> Speed:
    """The t test and confidence sequence of Lai 1976, as in Wang & Ramdas 2025, "Anytime-valid t-tests and confidence
    sequences for Gaussian means with unknown variance", with a normal prior of variance 1 on the effect size.

    Of normal noise it holds exactly from the first pair on, where asymptotic sequences need a number to begin with.
    """
    if len(cell) < 2 or len(base) < 2:
        return Speed("n/a")
    places = _places(cell, base)
    if not places:
        return _elsewhere(cell, base)
    pairs = [one - other for both in places for one, other in zip(*both, strict=False)]
    n, mean = len(pairs), fmean(pairs)
    growth = 1.0 + n
    bound = (sqrt(growth) / LEVEL) ** (2 / n)
    if bound >= growth:
        return Speed("undecided", exp(mean))
    squares = sum((each - mean) ** 2 for each in pairs)
    half = sqrt((bound - 1) / (1 - bound / growth) * squares / n)
    # The wealth of a bet against "as fast" is ((1 + x) / (1 + x / growth)) ** (n / 2) / sqrt(growth).
    x = n * mean**2 / squares if squares >= _NO_ERROR else inf if mean else 0.0
    wealth = n / 2 * (log(growth) if x == inf else log((1 + x) / (1 + x / growth))) - log(growth) / 2
    return Speed("undecided", exp(mean), Interval(exp(mean - half), exp(mean + half)), exp(-max(0.0, wealth)))


def _centred(side: Sequence[Measured]) -> list[float]:
    """Times without the differences between places."""
    at: dict[Hashable, list[float]] = {}
    for place, time in side:
        at.setdefault(place, []).append(time)
    mean = fmean(time for _, time in side)
    return [time - fmean(at[place]) + mean for place, time in side]


def _two_modes(times: Sequence[float], ratio: float) -> tuple[float, float] | None:
    """Both speeds, in ms, of times that are in two groups, a gap apart.

    The best division in two, by least squares, leaves a small share of the variance, at most a tenth. Of few times it
    has to be smaller: 1 % of samples of a uniform distribution have less.
    """
    ordered, n = sorted(times), len(times)
    least = max(2, n // 5)
    if n < 6 or ordered[-1] - ordered[0] < log(ratio):
        return None
    mean = fmean(ordered)
    sums = list(accumulate(time - mean for time in ordered))
    best = max(range(least, n - least + 1), key=lambda number: sums[number - 1] ** 2 / (number * (n - number)))
    low, high = ordered[:best], ordered[best:]
    within = variance(low) * (len(low) - 1) + variance(high) * (len(high) - 1)
    share = within / (variance(ordered) * (n - 1))
    apart = fmean(high) - fmean(low) > log(ratio)
    return (exp(fmean(low)), exp(fmean(high))) if apart and share < min(0.1, n / 200) else None


def _is_apart(cell: Sequence[Measured], base: Sequence[Measured]) -> bool:
    """Whether each trial of one side is slower than each of the other."""
    ours, theirs = ([time for _, time in side] for side in (cell, base))
    return min(ours) > max(theirs) or max(ours) < min(theirs)
