"""Statistics for a number of trials that was set before: rates with intervals, p values, guesses of more trials.

A *rate* is always a rate of failures; a *difference* is the cell's rate minus the baseline's, so a negative one is an
improvement. The short formulas are written out, because importing ``scipy.stats`` or ``statsmodels`` would cost a
second at the end of every run. The tests compare them with both.
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

#: With more trials on a side, the tables of Boschloo's test take more than a tenth of a second and 10 MB.
_MOST_TRIALS_OF_BOSCHLOO = 1000

#: Boschloo's test looks for the least favourable common rate among so many, then among as many around the best. They
#: are evenly spaced in the arc sine of their square root, where binomial distributions are equally wide.
_RATES = 256

#: Forecasts: level of the tests, and the chance with which they have to decide.
_ALPHA, _POWER = 0.05, 0.8

#: Level of intervals of a ratio, which are asked besides the test of the difference.
RATIO_LEVEL = 0.99

#: A guess of more trials than this is not useful.
MOST_MORE = 500

#: Possible guesses of more trials, and the number of draws for each.
_STEPS = (2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, MOST_MORE)
_DRAWS = 500

#: Prior odds that both rates are equal, in one comparison. A hypothesis (equal, or not) with at least the second
#: probability has to be decided with at least the third.
_EQUAL, _PLAUSIBLE, _POWER_OF_EACH = 0.5, 0.15, 0.7

#: Limits of a ratio that hold at any time are wider than normal ones by this factor.
_RATIO_WIDTH = 1.2

_NORMAL = NormalDist()

#: Failures and trials of a cell, failures and trials of its baseline.
Counts = tuple[int, int, int, int]


@dataclass(frozen=True)
class Interval:
    """A range of plausible values with both ends."""

    low: float
    high: float

    def within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


def wilson(failures: float, trials: float, level: float = 0.95) -> Interval:
    """The score interval of a rate (Wilson 1927, no continuity correction); 0 to 1 without a trial."""
    if trials == 0:
        return Interval(0.0, 1.0)
    z = _NORMAL.inv_cdf((1 + level) / 2)
    rate = failures / trials
    middle = (failures + z * z / 2) / (trials + z * z)
    half = z * sqrt(trials * rate * (1 - rate) + z * z / 4) / (trials + z * z)
    # Rounding must not leave 0 to 1, nor exclude the estimate.
    return Interval(max(0.0, min(rate, middle - half)), min(1.0, max(rate, middle + half)))


@dataclass(frozen=True)
class Estimate:
    """A rate with the ends of its interval."""

    rate: float
    low: float
    high: float


def arms(tables: Sequence[tuple[float, float, float, float]], level: float = 0.95) -> tuple[Estimate, Estimate]:
    """The rates of a cell and of its baseline: means over strata with common weights.

    The weights are by Cochran, Mantel & Haenszel; the ends are recovered from the Wilson intervals of the strata
    (Zou & Donner 2008, "Construction of confidence limits about effect measures: a general approach"). With one
    stratum, these are the rate and its Wilson interval.
    """
    weights = [trials * base / (trials + base) if trials and base else 0.0 for _, trials, _, base in tables]
    total = sum(weights)
    if not total:
        return Estimate(0.5, -0.5, 1.5), Estimate(0.5, -0.5, 1.5)
    estimates = []
    for side in (0, 2):
        rate = below = above = 0.0
        for table, weight in zip(tables, weights, strict=True):
            if weight:
                share, own = weight / total, table[side] / table[side + 1]
                interval = wilson(table[side], table[side + 1], level)
                rate += share * own
                below += (share * (own - interval.low)) ** 2
                above += (share * (interval.high - own)) ** 2
        estimates.append(Estimate(rate, rate - sqrt(below), rate + sqrt(above)))
    return estimates[0], estimates[1]


def difference_interval(cell: Estimate, base: Estimate) -> Interval:
    """The interval of the difference of both rates; -1 to 1 without a trial on either side.

    Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10: the
    square-and-add of two Wilson intervals.
    """
    difference = cell.rate - base.rate
    return Interval(
        max(-1.0, difference - sqrt((cell.rate - cell.low) ** 2 + (base.high - base.rate) ** 2)),
        min(1.0, difference + sqrt((cell.high - cell.rate) ** 2 + (base.rate - base.low) ** 2)),
    )


def ratio_interval(cell: Estimate, base: Estimate) -> Interval:
    """The interval of the cell's rate divided by the baseline's; 0 to infinity if nothing is known.

    Donner & Zou 2012, "Closed-form confidence intervals for functions of the normal mean and standard deviation": the
    ratios for which the interval of (cell - ratio * baseline) contains 0.
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

    Boschloo's exact test (1970), never weaker than Fisher's: twice the smaller one-sided p value. Fisher's test with
    more than 1,000 trials on a side.
    """
    if trials == 0 or base_trials == 0 or failures * base_trials == base_failures * trials:
        return 1.0
    # Sorted, so that exchanging cell and baseline gives the same number to the last digit.
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

    Boschloo 1970: the chance of a table whose one-sided Fisher p value is as small as the observed one, at the common
    rate that makes this chance largest. As ``scipy.stats.boschloo_exact``, but parts that depend only on the numbers of
    trials are cached: most cells of a table have equally many, and at 200 trials SciPy takes a tenth of a second.
    """
    import numpy as np

    angles, distributions, fisher = _tables(trials, other_trials)
    # Fisher's p value falls as the other side fails more often. For each number of failures of this side, count how
    # many failures of the other side make a table extreme. Rounding must not tell equal values apart.
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
    # One column per total number of failures; then sums from the fewest failures of the first side.
    by_total = np.zeros((trials + 1, trials + other_trials + 1))
    by_total[first, first + other] = np.exp(ways - _log_ways(trials + other_trials)[first + other])
    fisher = np.cumsum(by_total, axis=0)[first, first + other]
    return angles, _distributions(trials, other_trials, angles), fisher


def _distributions(trials: int, other_trials: int, angles: Numbers) -> tuple[Numbers, Numbers]:
    """Per rate: the chance of each number of failures of the first side, and of at least so many of the other."""
    import numpy as np

    rates = np.sin(angles)[:, None] ** 2

    def binomial(number: int) -> Numbers:
        failed = np.arange(number + 1)
        chances: Numbers = np.exp(_log_ways(number) + failed * np.log(rates) + (number - failed) * np.log1p(-rates))
        return chances

    at_least = np.cumsum(binomial(other_trials)[:, ::-1], axis=1)[:, ::-1]
    return binomial(trials), np.concatenate([at_least, np.zeros((len(angles), 1))], axis=1)


def _log_ways(trials: int) -> Numbers:
    """The logarithm of the binomial coefficient, for each number of failures."""
    import numpy as np

    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    return np.asarray(factorials[-1] - factorials - factorials[::-1])


def conditional_p(tables: Sequence[Counts]) -> float:
    """The two-sided mid-p value of "within each stratum both rates are equal"; strata may have different rates.

    The exact conditional counterpart of the test of Cochran, Mantel & Haenszel (Birch 1964): given the failures and the
    trials of each stratum, such as a host or a round, the cell's failures are a sum of hypergeometric numbers. For
    pairs this is McNemar's test. Twice the smaller tail, with half the chance of the observed table (Lancaster 1961;
    Fagerland, Lydersen & Laake 2013, "The McNemar test for binary matched-pairs data: mid-p and asymptotic are better
    than exact conditional").
    """
    lower, upper, seen = _tails(tables)
    return min(1.0, 2 * min(lower, upper) - seen)


def stratified_tails(tables: Sequence[Counts]) -> tuple[float, float]:
    """The two exact one-sided p values of ``conditional_p``: at most, and at least, as many failures of the cell."""
    return _tails(tables)[:2]


def least_p(tables: Sequence[Counts]) -> float:
    """The smallest p value that any division of the failures between both sides can have."""
    divided = []
    for failures, trials, base_failures, base_trials in tables:
        failed = failures + base_failures
        ours = max(0, failed - base_trials)
        divided.append((ours, trials, failed - ours, base_trials))
    return conditional_p(divided)


def _tails(tables: Sequence[Counts]) -> tuple[float, float, float]:
    """Chances of at most, at least, and exactly as many failures of the cell."""
    import numpy as np

    chances, least = np.ones(1), 0
    for failures, trials, base_failures, base_trials in tables:
        failed = failures + base_failures
        least += max(0, failed - base_trials)
        if 0 < failed < trials + base_trials and trials and base_trials:  # other strata carry no information
            chances = np.convolve(chances, _hypergeometric(failed, trials, base_trials))
    seen = sum(table[0] for table in tables) - least
    return min(1.0, float(chances[: seen + 1].sum())), min(1.0, float(chances[seen:].sum())), float(chances[seen])


@lru_cache(maxsize=4096)
def _hypergeometric(failed: int, trials: int, base_trials: int) -> Numbers:
    """The chance of each possible number of failures of the cell, ascending, given the total ``failed``."""
    import numpy as np

    possible = range(max(0, failed - base_trials), min(failed, trials) + 1)
    every = comb(trials + base_trials, failed)
    return np.array([comb(trials, k) * comb(base_trials, failed - k) / every for k in possible])


def p_text(p: float) -> str:
    """``p = 0.023``, ``p < 0.0001``."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def rate_below(trials: int) -> float:
    """Upper 95 % bound on the rate after trials without a failure (Clopper & Pearson 1934, one-sided).

    About 3 / trials ("rule of three").
    """
    return float(1 - _ALPHA ** (1 / trials)) if trials else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values so that each may be compared with the level of the whole family; in the order given.

    Holm 1979, "A simple sequentially rejective multiple test procedure". Valid for any dependence, such as a baseline
    that all comparisons share.
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
    """Guess how many more trials of this cell, and of its baseline, decide with a chance of 80 %.

    ``None`` if 500 are not enough. Further results are drawn from their predictive distribution: either both rates are
    equal, weighted by the trials so far, or each has a distribution of its own (Jeffreys's prior; the prior odds of
    equal rates are 1 to 2, times the number of ``comparisons``, which share the level). Each hypothesis that has a
    weight of 15 % has to be decided with a chance of 70 %, because a mean over both may hide that one is never decided.
    Further trials are judged by tests that hold at any time, since they are a second look: the limits are about
    sqrt(2 log(2 / level) + log(trials)) standard errors wide.
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

    # Ask for the largest number first: usually not even it decides.
    return _STEPS[bisect_left(_STEPS, True, key=is_enough)] if is_enough(_STEPS[-1]) else None


def _log_chance(failures: int, trials: int) -> float:
    """Log chance of a series of trials with Jeffreys's prior for the rate."""
    return lgamma(failures + 0.5) + lgamma(trials - failures + 0.5) - lgamma(trials + 1.0) - log(pi)


def _are_decided(
    failures: Numbers, trials: float, base_failures: Numbers, base_trials: float, margin: Margin, comparisons: int
) -> Numbers:
    """Approximate whether there is a verdict: different, equal within the margin, or no cure."""
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
    decided: Numbers = is_different | is_within | ((low > 0.5) & (difference <= 0))
    return decided
