"""Whether something changed while a run went on: a machine that warms up, a disk that fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

# Fewer cannot give a p value that would mean anything: three values have six orders, two of them monotone.
_FEWEST = 6
_MOST_EXACT = 200


@dataclass(frozen=True)
class Trend:
    """A change over run order.

    ``tau`` is from -1 (always falling) over 0 (no order) to 1 (always rising), ``p`` the two-sided p value of "no
    trend"; ``first`` and ``last`` are the median (of failures: the rate) of the first and of the last third of the
    run.
    """

    tau: float
    p: float
    first: float
    last: float


def trend(values: Sequence[float]) -> Trend | None:
    """Mann-Kendall test of numbers in run order (Mann 1945, Kendall's tau-b); None of fewer than six or of equal ones.

    Independent of the shape of the distribution, and of a monotone change of scale; single outliers hardly count.
    """
    if len(values) < _FEWEST or min(values) == max(values):
        return None
    from scipy.stats import kendalltau

    result = kendalltau(range(len(values)), values)
    third = len(values) // 3
    return Trend(float(result.statistic), float(result.pvalue), median(values[:third]), median(values[-third:]))


def failure_trend(failed: Sequence[bool]) -> Trend | None:
    """Whether failures gather at one end of the run; None of fewer than six trials, or where all ended alike.

    Mann-Whitney test (1947) of the positions of the failures against those of the others: exact up to 200 trials.
    ``tau`` is the rank-biserial correlation, 1 where all failures come after all others.
    """
    late = [index for index, one in enumerate(failed) if one]
    early = [index for index, one in enumerate(failed) if not one]
    if len(failed) < _FEWEST or not late or not early:
        return None
    from scipy.stats import mannwhitneyu

    result = mannwhitneyu(late, early, method="exact" if len(failed) <= _MOST_EXACT else "asymptotic")
    tau = 2 * float(result.statistic) / (len(late) * len(early)) - 1
    third = len(failed) // 3
    return Trend(tau, min(1.0, float(result.pvalue)), fmean(failed[:third]), fmean(failed[-third:]))
