"""Step times of trials: which steps count, and what is said of those that do."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

#: Part of a trial's steps that counts as warm-up, at least one step: allocators, caches and compilers settle there.
WARM_UP = 0.1


@dataclass(frozen=True)
class TrialSteps:
    """The steps of one trial after its warm-up, in ms, ascending."""

    sorted_ms: array[float]

    @cached_property
    def median_ms(self) -> float:
        """Of the steps that count."""
        return statistics.median(self.sorted_ms)

    @cached_property
    def mean_ms(self) -> float:
        """Of the steps that count."""
        return math.fsum(self.sorted_ms) / len(self.sorted_ms)

    @cached_property
    def squares(self) -> float:
        """Sum of the squared deviations from the mean."""
        mean = self.mean_ms
        return math.fsum((each - mean) ** 2 for each in self.sorted_ms)


@dataclass(frozen=True)
class StepSummary:
    """The steps of all trials of a cell together, in ms.

    Attributes:
        mean_ms: of the steps.
        std_ms: their standard deviation (of a sample); 0 for a single step.
        min_ms, max_ms: the fastest and the slowest.
        median_ms: of the steps; the mean of the two in the middle, where their number is even.
        p90_ms, p99_ms: percentiles: the smallest step time that at least 90 % (99 %) of the steps do not exceed
            (nearest rank: numpy's ``inverted_cdf``, definition 1 of Hyndman and Fan 1996, "Sample Quantiles in
            Statistical Packages"), so that it is always one that was measured.
        steps: their number, without those of the warm-up.
        trial_medians_ms: of each trial; the steps of one trial are not independent of each other, its trials are.
    """

    mean_ms: float
    std_ms: float
    min_ms: float
    median_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    steps: int
    trial_medians_ms: tuple[float, ...]


def steady_steps(step_times_ms: Iterable[Any]) -> TrialSteps | None:
    """The steps of a trial after its warm-up, which is the first tenth, rounded down, and at least the first step.

    The only step of a trial counts. A time that is not a finite number above 0 was not measured, and is left out;
    ``None`` where no time is left.
    """
    times = list(step_times_ms)
    steady = times[max(1, int(len(times) * WARM_UP)) :] if len(times) > 1 else times
    measured = [float(time) for time in steady if _is_time(time)]
    return TrialSteps(array("d", sorted(measured))) if measured else None


def summary_of(trials: Sequence[TrialSteps]) -> StepSummary | None:
    """The steps of several trials; ``None`` where there are none."""
    if not trials:
        return None
    pooled = sorted(chain.from_iterable(trial.sorted_ms for trial in trials))
    mean = math.fsum(len(trial.sorted_ms) * trial.mean_ms for trial in trials) / len(pooled)
    # Within trials and between them, so that of a trial nothing is computed twice.
    squares = math.fsum(trial.squares + len(trial.sorted_ms) * (trial.mean_ms - mean) ** 2 for trial in trials)
    return StepSummary(
        mean_ms=mean,
        std_ms=math.sqrt(squares / max(1, len(pooled) - 1)),
        min_ms=pooled[0],
        max_ms=pooled[-1],
        median_ms=statistics.median(pooled),
        p90_ms=_percentile(pooled, 90),
        p99_ms=_percentile(pooled, 99),
        steps=len(pooled),
        trial_medians_ms=tuple(trial.median_ms for trial in trials),
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _percentile(ascending: Sequence[float], percent: int) -> float:
    return ascending[-(-percent * len(ascending) // 100) - 1]
