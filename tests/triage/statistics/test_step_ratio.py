"""The ratio of step times."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from pytest_aorta.triage.rates import Interval, step_time_ratio

times = st.lists(st.floats(0.01, 1e5), min_size=2, max_size=30)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(times, times)
def test_it_is_welchs_interval_of_the_logarithms(cell: list[float], base: list[float]) -> None:
    estimate = step_time_ratio(cell, base)
    assert estimate is not None
    reference = ttest_ind(np.log(cell), np.log(base), equal_var=False).confidence_interval(0.95)
    if np.isfinite(reference.low):
        assert estimate.interval.low == pytest.approx(exp(reference.low), rel=1e-6)
        assert estimate.interval.high == pytest.approx(exp(reference.high), rel=1e-6)
    assert log(estimate.ratio) == pytest.approx(np.mean(np.log(cell)) - np.mean(np.log(base)), abs=1e-9)


def test_a_slowdown_is_found_and_its_size_held() -> None:
    generator = np.random.default_rng(7)
    base = list(10 * np.exp(generator.normal(0, 0.05, 12)))
    cell = list(13 * np.exp(generator.normal(0, 0.05, 12)))
    estimate = step_time_ratio(cell, base)
    assert estimate is not None
    assert 1.15 < estimate.interval.low < 1.3 < estimate.interval.high


def test_equal_times_are_no_division_by_zero() -> None:
    estimate = step_time_ratio([12.0, 12.0, 12.0], [10.0, 10.0])
    assert estimate is not None
    assert estimate.ratio == pytest.approx(1.2)
    assert estimate.interval.low == pytest.approx(1.2)
    assert estimate.interval.high == pytest.approx(1.2)


def test_one_side_without_variance_still_has_an_interval() -> None:
    estimate = step_time_ratio([12.0, 13.0, 12.5], [10.0, 10.0])
    assert estimate is not None
    assert estimate.interval.low < estimate.ratio < estimate.interval.high


@pytest.mark.parametrize(
    ("cell", "base"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0]), ([0.0, 1.0], [1.0, 2.0])]
)
def test_none_where_there_is_nothing_to_compare(cell: list[float], base: list[float]) -> None:
    assert step_time_ratio(cell, base) is None


@given(times, times)
def test_exchanging_the_sides_inverts_it(cell: list[float], base: list[float]) -> None:
    estimate, inverse = step_time_ratio(cell, base), step_time_ratio(base, cell)
    assert estimate is not None
    assert inverse is not None
    turned = Interval(1 / inverse.interval.high, 1 / inverse.interval.low)
    assert (turned.low, turned.high) == pytest.approx((estimate.interval.low, estimate.interval.high))
