"""Statistics of trials that were set before: rates with their intervals, p values, how many more trials.

A *rate* is always that of failures; a *difference* is the cell's rate less the baseline's, so that a negative one is an
improvement. The short formulas are written out: importing ``scipy.stats`` or ``statsmodels`` takes a second, at the end
of every run that prints a table. The tests compare them with both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, exp, inf, lgamma, log, pi, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from pytest_aorta.triage import MARGIN, Margin

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

#: Beyond so many on a side, the tables of Boschloo's test take more than a tenth of a second and 10 MB.
_MOST_TRIALS_OF_BOSCHLOO = 1000

#: Common rates among which Boschloo's test looks for the least favourable one, evenly spaced in the arc sine of their
#: square root, where binomial distributions are equally wide; then as many around the best.
_RATES = 256

#: Chance of an error, and with which chance a decision is made, of forecasts.
_ALPHA, _POWER = 0.05, 0.8

#: Of intervals of a ratio: what is said of it comes on top of what is said of the difference.
RATIO_LEVEL = 0.99

#: More trials than these are no useful guess.
MOST_MORE = 500

#: Numbers of more trials that are said, and draws of what may come of them.
_STEPS = (2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, MOST_MORE)
_DRAWS = 500

#: Odds, before any trial, that both rates are equal, in one comparison. From the second number on, the probability that
#: they are, or are not, is one to reckon with, and has to lead to a decision with a chance of the third.
_EQUAL, _PLAUSIBLE, _POWER_OF_EACH = 0.5, 0.15, 0.7

#: By how much limits of a ratio that hold at any time are wider than those of a normal distribution.
_RATIO_WIDTH = 1.2

_NORMAL = NormalDist()

#: Failures and trials of a cell, failures and trials of its baseline.
Counts = tuple[int, int, int, int]


@dataclass(frozen=True)
class Interval:
    """A range of plausible values, both ends included."""

    low: float
    high: float

    def within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


def wilson(failures: float, trials: float, level: float = 0.95) -> Interval:
    """The score interval of a rate (Wilson 1927; without continuity correction); all of 0 to 1 without a trial."""
    if trials == 0:
        return Interval(0.0, 1.0)
    z = _NORMAL.inv_cdf((1 + level) / 2)
    rate = failures / trials
    middle = (failures + z * z / 2) / (trials + z * z)
    half = z * sqrt(trials * rate * (1 - rate) + z * z / 4) / (trials + z * z)
    # Rounding must neither leave the range of a rate nor put the estimate outside of its own interval.
    return Interval(max(0.0, min(rate, middle - half)), min(1.0, max(rate, middle + half)))


@dataclass(frozen=True)
class Estimate:
    """A rate with the ends of its interval."""

    rate: float
    low: float
    high: float


def arms(tables: Sequence[tuple[float, float, float, float]], level: float = 0.95) -> tuple[Estimate, Estimate]:
    """The rates of a cell and of its baseline, over strata: the mean of those of each, with common weights.

    The weights are those of Cochran, Mantel & Haenszel; the ends are recovered from the Wilson intervals of the strata
    (Zou & Donner 2008, "Construction of confidence limits about effect measures: a general approach"). With one
    stratum, these are the rate and its Wilson interval.
    """
    weights = [trials * base / (trials + base) if trials and base else 0.0 for _, trials, _, base in tables]
    total = sum(weights)
    if not total:
        return Estimate(0.5, -0.5, 1.5), Estimate(0.5, -0.5, 1.5)
    found = []
    for side in (0, 2):
        rate = below = above = 0.0
        for table, weight in zip(tables, weights, strict=True):
            if weight:
                share, own = weight / total, table[side] / table[side + 1]
                interval = wilson(table[side], table[side + 1], level)
                rate += share * own
                below += (share * (own - interval.low)) ** 2
                above += (share * (interval.high - own)) ** 2
        found.append(Estimate(rate, rate - sqrt(below), rate + sqrt(above)))
    return found[0], found[1]


def difference_interval(cell: Estimate, base: Estimate) -> Interval:
    """The interval of the cell's rate less the baseline's; all of -1 to 1 without a trial on either side.

    Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10: the
    square-and-add of two Wilson intervals.
    """
    difference = cell.rate - base.rate
    return Interval(
        max(-1.0, difference - sqrt((cell.rate - cell.low) ** 2 + (base.high - base.rate) ** 2)),
        min(1.0, difference + sqrt((cell.high - cell.rate) ** 2 + (base.rate - base.low) ** 2)),
    )


def ratio_interval(cell: Estimate, base: Estimate) -> Interval:
    """The interval of the cell's rate divided by the baseline's, from 0 to infinity where nothing is known.

    Donner & Zou 2012, "Closed-form confidence intervals for functions of the normal mean and standard deviation": the
    ratios for which the interval of (cell - ratio * baseline) holds 0.
    """
    product = cell.rate * base.rate

    def end(cell_end: float, base_end: float, sign: int) -> float:
        of_cell, of_base = cell_end * (2 * cell.rate - cell_end), base_end * (2 * base.rate - base_end)
        if of_base <= 0:
            return 0.0 if sign < 0 else inf
        return max(0.0, (product + sign * sqrt(max(0.0, product**2 - of_cell * of_base))) / of_base)

    return Interval(end(max(0.0, cell.low), base.high, -1), end(cell.high, max(0.0, base.low), 1))


def difference_p(failures: int, trials: int, base_failures: int, base_trials: int) -> float:
    """The two-sided p value of "both rates are equal"; 1 without a trial on either side.

    Boschloo's exact test (1970), never weaker than Fisher's: twice the smaller of the two one-sided p values. With more
    than 1,000 trials on a side Fisher's.
    """
    if trials == 0 or base_trials == 0 or failures * base_trials == base_failures * trials:
        return 1.0
    # In one order, so that exchanging cell and baseline gives the same number to the last digit.
    return _equal_rates_p(*sorted([(failures, trials), (base_failures, base_trials)]))


@lru_cache(maxsize=65536)
def _equal_rates_p(one: tuple[int, int], other: tuple[int, int]) -> float:
    (failures, trials), (other_failures, other_trials) = one, other
    if max(trials, other_trials) > _MOST_TRIALS_OF_BOSCHLOO:
        failed = failures + other_failures
        chances = _hypergeometric(failed, trials, other_trials)
        seen = chances[failures - max(0, failed - other_trials)]
        as_unlikely = chances[chances <= seen * (1 + 1e-7)]
        return min(1.0, float(as_unlikely.sum()))
    return min(1.0, 2 * min(_boschloo_less(*one, *other), _boschloo_less(*other, *one)))


def _boschloo_less(failures: int, trials: int, other_failures: int, other_trials: int) -> float:
    """The p value of "the first rate is not lower than the other".

    Boschloo 1970: the chance of a table whose one-sided p value in Fisher's test is as small as the observed one, at
    the common rate at which that chance is largest. As ``scipy.stats.boschloo_exact``, but what depends on the numbers
    of trials alone is kept: the cells of a table mostly have equally many, and at 200 trials SciPy takes a tenth of a
    second for each.
    """
    import numpy as np

    angles, distributions, fisher = _tables(trials, other_trials)
    # Fisher's p value falls as the other side fails more often: how many failures of the other side make a table
    # extreme, for each number of failures of this side. Equal values must not be told apart by rounding.
    needed = (fisher > fisher[failures, other_failures] * (1 + 1e-9)).sum(axis=1)

    def chances(first: Numbers, other_at_least: Numbers) -> Numbers:
        return np.asarray((first * other_at_least[:, needed]).sum(axis=1))

    best = int(np.argmax(chances(*distributions)))
    around = np.linspace(angles[max(best - 1, 0)], angles[min(best + 1, _RATES - 1)], _RATES)
    return float(min(1.0, chances(*_distributions(trials, other_trials, around)).max()))


@lru_cache(maxsize=16)
def _tables(trials: int, other_trials: int) -> tuple[Numbers, tuple[Numbers, Numbers], Numbers]:
    import numpy as np

    angles = np.linspace(0, np.pi / 2, _RATES + 2)[1:-1]
    first, other = np.arange(trials + 1)[:, None], np.arange(other_trials + 1)[None, :]
    ways = _log_ways(trials)[first] + _log_ways(other_trials)[other]
    # Tables with the same number of failures in all, one below the other; then summed from the fewest of the first.
    by_total = np.zeros((trials + 1, trials + other_trials + 1))
    by_total[first, first + other] = np.exp(ways - _log_ways(trials + other_trials)[first + other])
    fisher = np.cumsum(by_total, axis=0)[first, first + other]
    return angles, _distributions(trials, other_trials, angles), fisher


def _distributions(trials: int, other_trials: int, angles: Numbers) -> tuple[Numbers, Numbers]:
    """Of each rate, the chance of each number of failures, and of at least so many of the other side."""
    import numpy as np

    rates = np.sin(angles)[:, None] ** 2

    def binomial(number: int) -> Numbers:
        failed = np.arange(number + 1)
        chances: Numbers = np.exp(_log_ways(number) + failed * np.log(rates) + (number - failed) * np.log1p(-rates))
        return chances

    at_least = np.cumsum(binomial(other_trials)[:, ::-1], axis=1)[:, ::-1]
    return binomial(trials), np.concatenate([at_least, np.zeros((len(angles), 1))], axis=1)


def _log_ways(trials: int) -> Numbers:
    """Of each number of failures, the logarithm of in how many ways so many of the trials can be those that fail."""
    import numpy as np

    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    return np.asarray(factorials[-1] - factorials - factorials[::-1])


def conditional_p(tables: Sequence[Counts]) -> float:
    """The two-sided mid-p value of "within each stratum both rates are equal"; strata may have different rates.

    The exact conditional counterpart of the test of Cochran, Mantel & Haenszel (Birch 1964): given the failures and the
    trials of each stratum, such as a host or a round, the cell's failures are a sum of hypergeometric numbers. Of pairs
    it is McNemar's test. Twice the smaller tail, with half the chance of what was seen (Lancaster 1961; Fagerland,
    Lydersen & Laake 2013, "The McNemar test for binary matched-pairs data: mid-p and asymptotic are better than exact
    conditional").
    """
    lower, upper, seen = _tails(tables)
    return min(1.0, 2 * min(lower, upper) - seen)


def stratified_tails(tables: Sequence[Counts]) -> tuple[float, float]:
    """The two exact one-sided p values of the same: of at most, and at least, as many failures of the cell."""
    return _tails(tables)[:2]


def least_p(tables: Sequence[Counts]) -> float:
    """The smallest p value that the strata can have, however their failures are divided between both sides."""
    divided = []
    for failures, trials, base_failures, base_trials in tables:
        failed = failures + base_failures
        ours = max(0, failed - base_trials)
        divided.append((ours, trials, failed - ours, base_trials))
    return conditional_p(divided)


def _tails(tables: Sequence[Counts]) -> tuple[float, float, float]:
    """Chances of at most, at least, and just as many failures of the cell."""
    import numpy as np

    chances, least = np.ones(1), 0
    for failures, trials, base_failures, base_trials in tables:
        failed = failures + base_failures
        least += max(0, failed - base_trials)
        if 0 < failed < trials + base_trials and trials and base_trials:  # else it says nothing
            chances = np.convolve(chances, _hypergeometric(failed, trials, base_trials))
    seen = sum(table[0] for table in tables) - least
    return min(1.0, float(chances[: seen + 1].sum())), min(1.0, float(chances[seen:].sum())), float(chances[seen])


@lru_cache(maxsize=4096)
def _hypergeometric(failed: int, trials: int, base_trials: int) -> Numbers:
    """The chance of each number of failures of the cell, the least possible first, given those of both sides."""
    import numpy as np

    possible = range(max(0, failed - base_trials), min(failed, trials) + 1)
    every = comb(trials + base_trials, failed)
    return np.array([comb(trials, k) * comb(base_trials, failed - k) / every for k in possible])


def rate_below(trials: int) -> float:
    """The largest rate that is plausible after so many trials without a failure (Clopper & Pearson 1934, one-sided).

    About 3 / trials at 95 % ("rule of three").
    """
    return float(1 - _ALPHA ** (1 / trials)) if trials else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p values, in the order given: each may be compared with the level of the whole family.

    Holm 1979, "A simple sequentially rejective multiple test procedure". Valid whatever the dependence of the
    comparisons, such as a baseline that all of them share.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@lru_cache(maxsize=4096)
def more_trials(
    failures: int,
    trials: int,
    base_failures: int,
    base_trials: int,
    margin: Margin = MARGIN,
    comparisons: int = 1,
) -> int | None:
    """About how many more trials of this cell, and of its baseline, decide with a chance of 80 %.

    ``None`` where even 500 do not: then nothing is said, as observed rates are no promise. What is still possible is
    drawn (the predictive distribution): with the weight that the trials give it, both rates are equal, else each has a
    distribution of its own (Jeffreys's prior; before any trial, the odds of equal rates are 1 to 2, times the number of
    ``comparisons``, which share the level). Each of both that has a weight of 15 % has to be decided with a chance of
    70 %, as a mean over both may be right in one of them only. Further trials are judged as by tests that hold at any
    time, as they are a second look: their limits are about sqrt(2 log(2 / level) + log(trials)) standard errors wide.
    """
    import numpy as np

    if trials == 0 or base_trials == 0:
        return None
    sides = (failures, trials), (base_failures, base_trials)
    both = failures + base_failures, trials + base_trials
    shared = _log_chance(*both) - sum(_log_chance(*side) for side in sides)
    weight = 1 / (1 + exp(min(500.0, -shared)) / (_EQUAL * comparisons))

    def is_enough(more: int) -> bool:
        generator = np.random.default_rng([*sides[0], *sides[1]])
        equal = generator.beta(both[0] + 0.5, both[1] - both[0] + 0.5, _DRAWS)
        own = [generator.beta(failed + 0.5, number - failed + 0.5, _DRAWS) for failed, number in sides]
        chance = 0.0
        for share, rates in ((weight, (equal, equal)), (1 - weight, own)):
            cell, base = (
                (failed + generator.binomial(more, rate) + 0.5, number + more + 1.0)
                for (failed, number), rate in zip(sides, rates, strict=True)
            )
            decided = float(_are_decided(*cell, *base, margin, comparisons).mean())
            if share >= _PLAUSIBLE and decided < _POWER_OF_EACH:
                return False
            chance += share * decided
        return chance >= _POWER

    # The most are asked first: mostly even they do not decide.
    return _STEPS[bisect_left(_STEPS, True, key=is_enough)] if is_enough(_STEPS[-1]) else None


def _log_chance(failures: int, trials: int) -> float:
    """Of a series of trials, if any rate is possible (Jeffreys's prior)."""
    return lgamma(failures + 0.5) + lgamma(trials - failures + 0.5) - lgamma(trials + 1.0) - log(pi)


def _are_decided(
    failures: Numbers, trials: float, base_failures: Numbers, base_trials: float, margin: Margin, comparisons: int
) -> Numbers:
    """Whether there is a verdict, about: a difference, none within the margin, or that it is no cure."""
    import numpy as np

    rate, base = failures / trials, base_failures / base_trials
    fewer, difference = min(trials, base_trials), rate - base

    def width(alpha: float) -> float:
        return sqrt(2 * log(2 / alpha) + log(fewer))

    mean = (failures + base_failures) / (trials + base_trials)
    pooled = np.sqrt(mean * (1 - mean) * (1 / trials + 1 / base_trials))
    error = width(_ALPHA) * np.sqrt(rate * (1 - rate) / trials + base * (1 - base) / base_trials)
    of_log = _RATIO_WIDTH * width(1 - RATIO_LEVEL) * np.sqrt((1 - rate) / failures + (1 - base) / base_failures)
    ratio = np.log(rate / base)
    low, high = np.exp(ratio - of_log), np.exp(ratio + of_log)
    points, share = margin.points, margin.share
    is_within = np.abs(difference) + error <= points if points < 1 else np.ones(len(rate), dtype=bool)
    if share < 1:
        is_within &= (low >= 1 - share) & (high <= 1 + share)
    is_different = np.abs(difference) > width(_ALPHA / comparisons) * pooled
    found: Numbers = is_different | is_within | ((low > 0.5) & (difference <= 0))
    return found
