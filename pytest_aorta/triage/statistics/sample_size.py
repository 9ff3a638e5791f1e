"""About how many more trials a decision takes."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, log, sqrt
from statistics import NormalDist

_MOST = 10_000
_NORMAL = NormalDist()


def more_trials(
    failures: int,
    trials: int,
    base_failures: int,
    base_trials: int,
    margin: float,
    level: float = 0.95,
    power: float = 0.8,
    comparisons: int = 1,
    sequential: bool = False,
) -> int | None:
    """About how many more trials of this cell, and of its baseline, until a decision; at least 1.

    A guess to plan with, not a promise: it takes the rates as they were observed (half a failure added to both
    outcomes, so that none is exactly 0 or 1), and asks for the number of trials that would then decide with
    probability ``power``. Where they differ by more than the margin, the decision is "there is a difference", at
    ``level`` shared by all ``comparisons``; else it is "the difference lies within the margin", which takes about
    twice as many trials where the decision is ``sequential``. None without a trial on either side, and when it would be
    more than 10,000.
    """
    if trials == 0 or base_trials == 0:
        return None
    rate, base_rate = (failures + 0.5) / (trials + 1), (base_failures + 0.5) / (base_trials + 1)
    if abs(rate - base_rate) > margin:
        needed = _to_tell_apart(rate, base_rate, (1 - level) / comparisons, power)
    else:
        needed = _to_show_equivalence(rate, base_rate, margin, level, power, sequential)
    more = max(1, needed - min(trials, base_trials))
    return more if more <= _MOST else None


def _to_tell_apart(rate: float, base_rate: float, alpha: float, power: float) -> int:
    """Trials per side of a two-sided test of two rates, with continuity correction.

    Fleiss, Levin & Paik 2003, "Statistical Methods for Rates and Proportions", section 4.2. The correction brings it
    close to what exact tests need.
    """
    difference, mean = abs(rate - base_rate), (rate + base_rate) / 2
    root = _NORMAL.inv_cdf(1 - alpha / 2) * sqrt(2 * mean * (1 - mean))
    root += _NORMAL.inv_cdf(power) * sqrt(rate * (1 - rate) + base_rate * (1 - base_rate))
    uncorrected = (root / difference) ** 2
    return ceil(uncorrected / 4 * (1 + sqrt(1 + 4 / (uncorrected * difference))) ** 2)


def _to_show_equivalence(
    rate: float, base_rate: float, margin: float, level: float, power: float, sequential: bool
) -> int:
    """Trials per side until the interval of the difference lies within the margin, by the normal approximation.

    A sequential interval is about sqrt(2 log(2 / (1 - level)) + log(trials)) standard errors wide on either side: a bet
    on what is still to be learned loses about half of log(trials), and the rest is what refutes.
    """
    difference = abs(rate - base_rate)
    spread = sqrt(rate * (1 - rate) + base_rate * (1 - base_rate))
    fixed_width = _NORMAL.inv_cdf((1 + level) / 2)

    def width(trials: int) -> float:
        return sqrt(2 * log(2 / (1 - level)) + log(trials)) if sequential else fixed_width

    def shown(trials: int) -> bool:
        error = spread / sqrt(trials)
        inside = _NORMAL.cdf((margin - difference) / error - width(trials))
        return inside + _NORMAL.cdf((margin + difference) / error - width(trials)) - 1 >= power

    # With fewer, not even two rates of zero have an interval within the margin.
    if margin <= 0:
        return 2 * _MOST
    fewest = ceil(fixed_width**2 * (1 - margin) / margin)  # Wilson's upper end is z^2 / (n + z^2)
    return fewest + bisect_left(range(fewest, fewest + 3 * _MOST), True, key=shown)
