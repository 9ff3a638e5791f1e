from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.triage.facts import steady_steps, summary_of

TIMES = st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=300)


def steady(times: list[object]) -> list[float]:
    found = steady_steps(times)
    return [] if found is None else list(found.sorted_ms)


@pytest.mark.parametrize(
    ("steps", "left"), [(0, 0), (1, 1), (2, 1), (3, 2), (10, 9), (19, 18), (20, 18), (100, 90), (1000, 900)]
)
def test_the_first_tenth_of_a_trial_is_warm_up_and_at_least_one_step(steps: int, left: int) -> None:
    assert len(steady([1.0] * steps)) == left


def test_what_is_no_time_was_not_measured() -> None:
    assert steady([9.0, math.nan, -1.0, 0.0, math.inf, "NaN", None, True, 5]) == [5.0]
    assert steady([math.nan, 5.0, 5.0]) == [5.0, 5.0]  # the first step was slow, whatever it was measured as
    assert steady([math.nan, -1.0]) == []


def test_without_steps_there_is_no_summary() -> None:
    assert steady_steps([]) is None
    assert summary_of([]) is None


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_percentiles_are_those_of_numpy(trials: list[list[float]]) -> None:
    found = [each for each in map(steady_steps, trials) if each is not None]
    summary = summary_of(found)
    pooled = np.concatenate([each[max(1, len(each) // 10) :] if len(each) > 1 else each for each in trials])
    assert summary is not None
    assert summary.steps == len(pooled)
    assert summary.median_ms == pytest.approx(float(np.median(pooled)), rel=1e-12)
    assert summary.mean_ms == pytest.approx(float(np.mean(pooled)), rel=1e-12)
    assert summary.std_ms == pytest.approx(float(np.std(pooled, ddof=1)) if len(pooled) > 1 else 0.0, abs=1e-6)
    assert (summary.min_ms, summary.max_ms) == (pooled.min(), pooled.max())
    assert summary.p90_ms == np.percentile(pooled, 90, method="inverted_cdf")
    assert summary.p99_ms == np.percentile(pooled, 99, method="inverted_cdf")
    assert summary.trial_medians_ms == tuple(each.median_ms for each in found)
