"""How much longer a step takes in a cell than in its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, variance

from pytest_aorta.triage.statistics.interval import Interval


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio of step times, cell to baseline; 1.2 says that steps take 20 % longer."""

    ratio: float
    interval: Interval


def step_time_ratio(cell: Sequence[float], base: Sequence[float], level: float = 0.95) -> RatioEstimate | None:
    """The ratio of the geometric means of step times, with its interval; None with fewer than two trials on a side.

    ``cell`` and ``base`` hold one number per trial, the median of its step times in milliseconds, above 0. The trial
    is the unit because the steps of a trial share its process, its clocks and its neighbours: counted one by one they
    would feign precision. Welch's t interval (Welch 1947) of the difference of the mean logarithms, taken back to a
    ratio.
    """
    if len(cell) < 2 or len(base) < 2 or min(*cell, *base) <= 0:
        return None
    cell_logs, base_logs = [log(time) for time in cell], [log(time) for time in base]
    difference = fmean(cell_logs) - fmean(base_logs)
    half = _half_width(variance(cell_logs) / len(cell), variance(base_logs) / len(base), len(cell), len(base), level)
    return RatioEstimate(exp(difference), Interval(exp(difference - half), exp(difference + half)))


def _half_width(cell_error: float, base_error: float, cell_trials: int, base_trials: int, level: float) -> float:
    """Of Welch's interval, from the squared standard errors of both means."""
    error = cell_error + base_error
    # As a share of their sum, so that errors as small as rounding do not underflow when squared.
    if error <= 0 or error < 1e-300:
        return 0.0
    cell_share, base_share = cell_error / error, base_error / error
    freedom = 1 / (cell_share**2 / (cell_trials - 1) + base_share**2 / (base_trials - 1))
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2)) * sqrt(error)
