"""Failure rates of a fixed number of trials: one rate, and two compared."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from statistics import NormalDist

from pytest_aorta.triage.statistics.interval import Interval

# Beyond so many on a side, the tables that Boschloo's test goes through take more than a tenth of a second and 10 MB.
_MOST_TRIALS_OF_BOSCHLOO = 1000


def wilson(failures: int, trials: int, level: float = 0.95) -> Interval:
    """The score interval of a rate (Wilson 1927; without continuity correction); all of 0 to 1 without a trial."""
    if trials == 0:
        return Interval(0.0, 1.0)
    z = _normal_quantile(level)
    rate = failures / trials
    middle = (failures + z * z / 2) / (trials + z * z)
    half = z * sqrt(trials * rate * (1 - rate) + z * z / 4) / (trials + z * z)
    # Rounding must neither leave the range of a rate nor put the estimate outside of its own interval.
    return Interval(max(0.0, min(rate, middle - half)), min(1.0, max(rate, middle + half)))


def difference_interval(
    failures: int, trials: int, base_failures: int, base_trials: int, level: float = 0.95
) -> Interval:
    """An interval of the cell's rate less the baseline's; all of -1 to 1 without a trial on either side.

    Newcombe 1998, "Interval estimation for the difference between independent proportions", method 10: the
    square-and-add of two Wilson intervals.
    """
    if trials == 0 or base_trials == 0:
        return Interval(-1.0, 1.0)
    rate, base_rate = failures / trials, base_failures / base_trials
    cell, base = wilson(failures, trials, level), wilson(base_failures, base_trials, level)
    difference = rate - base_rate
    return Interval(
        difference - sqrt((rate - cell.low) ** 2 + (base.high - base_rate) ** 2),
        difference + sqrt((cell.high - rate) ** 2 + (base_rate - base.low) ** 2),
    )


def difference_p(failures: int, trials: int, base_failures: int, base_trials: int) -> float:
    """The two-sided p value of "both rates are equal"; 1 without a trial on either side.

    Boschloo 1970, "Raised conditional level of significance for the 2 x 2-table when testing the equality of two
    probabilities": exact, and never weaker than Fisher's test. Twice the smaller of the two one-sided p values, at
    most 1. With more than 1,000 trials on a side Fisher's exact test.
    """
    if trials == 0 or base_trials == 0:
        return 1.0
    if failures * base_trials == base_failures * trials:
        return 1.0
    # In one order, so that exchanging cell and baseline gives the same number to the last digit.
    (first, first_trials), (second, second_trials) = sorted([(failures, trials), (base_failures, base_trials)])
    return _equal_rates_p(first, first_trials, second, second_trials)


@lru_cache(maxsize=65536)
def _equal_rates_p(failures: int, trials: int, other_failures: int, other_trials: int) -> float:
    if max(trials, other_trials) > _MOST_TRIALS_OF_BOSCHLOO:
        import numpy as np
        from scipy.stats import fisher_exact

        table = np.array([[failures, other_failures], [trials - failures, other_trials - other_failures]])
        return min(1.0, float(fisher_exact(table).pvalue))
    from pytest_aorta.triage.statistics.boschloo import boschloo_less

    lower = boschloo_less(failures, trials, other_failures, other_trials)
    higher = boschloo_less(other_failures, other_trials, failures, trials)
    return min(1.0, 2 * min(lower, higher))


def upper_bound(failures: int, trials: int, level: float = 0.95) -> float:
    """The largest rate that is plausible after a fixed number of trials (Clopper & Pearson 1934, one-sided).

    Without a failure it is ``1 - (1 - level) ** (1 / trials)``, about 3 / trials at 95 % ("rule of three").
    """
    if failures >= trials:
        return 1.0
    if failures == 0:
        return float(1 - (1 - level) ** (1 / trials))
    from scipy.special import betaincinv

    return float(betaincinv(failures + 1, trials - failures, level))


@lru_cache(maxsize=64)
def _normal_quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
