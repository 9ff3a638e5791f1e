"""Step times of trials: which steps count, and what is said of those that do."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

#: Part of a trial's steps that counts as warm-up, at least one step: allocators, caches and compilers settle there.
WARM_UP = 0.1

#: Trials with fewer steps have no warm-up: too little would be left.
_FEWEST = 3


@dataclass(frozen=True)
class TrialSteps:
    """The steps of one trial after its warm-up, in ms, ascending."""

    sorted_ms: array[float]

    @property
    def median_ms(self) -> float:
        """Of the steps that count."""
        return statistics.median(self.sorted_ms)


@dataclass(frozen=True)
class StepSummary:
    """The steps of all trials of a cell together, in ms.

    Attributes:
        mean_ms: of the steps.
        std_ms: their standard deviation (of a sample); 0 for a single step.
        min_ms, max_ms: the fastest and the slowest.
        median_ms, p90_ms, p99_ms: percentiles (nearest rank) of the steps.
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
    """The steps of a trial without the first tenth (at least one); ``None`` where nothing was measured per step."""
    times = [float(each) for each in step_times_ms if isinstance(each, int | float) and math.isfinite(each)]
    if len(times) >= _FEWEST:
        times = times[max(1, int(len(times) * WARM_UP)) :]
    return TrialSteps(array("d", sorted(times))) if times else None


def summary_of(trials: Sequence[TrialSteps]) -> StepSummary | None:
    """The steps of several trials; ``None`` where there are none."""
    if not trials:
        return None
    pooled = sorted(each for trial in trials for each in trial.sorted_ms)
    mean = math.fsum(pooled) / len(pooled)
    return StepSummary(
        mean_ms=mean,
        std_ms=math.sqrt(math.fsum((each - mean) ** 2 for each in pooled) / max(1, len(pooled) - 1)),
        min_ms=pooled[0],
        max_ms=pooled[-1],
        median_ms=statistics.median(pooled),
        p90_ms=_percentile(pooled, 0.90),
        p99_ms=_percentile(pooled, 0.99),
        steps=len(pooled),
        trial_medians_ms=tuple(trial.median_ms for trial in trials),
    )


def _percentile(ascending: Sequence[float], part: float) -> float:
    return ascending[max(0, math.ceil(part * len(ascending)) - 1)]
