"""Rates and their differences, against published examples and against tests written out by hand."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, boschloo_exact

from pytest_aorta.triage.rates import Interval, difference_interval, difference_p, upper_bound, wilson

counts = st.integers(1, 60).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))


# Newcombe 1998, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17:857, table I.
@pytest.mark.parametrize(
    ("failures", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_is_the_published_one(failures: int, trials: int, low: float, high: float) -> None:
    interval = wilson(failures, trials)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


# The same table; the one-sided bound at 97.5 % is the end of the two-sided interval at 95 %.
@pytest.mark.parametrize(
    ("failures", "trials", "high"), [(81, 263, 0.3676), (15, 148, 0.1617), (0, 20, 0.1684), (1, 29, 0.1776)]
)
def test_upper_bound_is_the_published_clopper_pearson(failures: int, trials: int, high: float) -> None:
    assert round(upper_bound(failures, trials, 0.975), 4) == high


@settings(max_examples=40)
@given(counts, st.sampled_from([0.8, 0.95, 0.99]))
def test_intervals_of_a_rate_are_those_of_scipy(count: tuple[int, int], level: float) -> None:
    """Importing scipy.stats takes a second, so runs have the formulas."""
    interval, reference = wilson(*count, level), binomtest(*count).proportion_ci(level, method="wilson")
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=1e-9)
    one_sided = binomtest(*count, alternative="less").proportion_ci(level, method="exact")
    assert upper_bound(*count, level) == pytest.approx(one_sided.high, abs=1e-9)


def test_upper_bound_without_a_failure_follows_the_rule_of_three() -> None:
    assert upper_bound(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert upper_bound(0, 100) == pytest.approx(3 / 100, rel=0.02)
    assert upper_bound(5, 5) == 1
    assert upper_bound(0, 0) == 1


# Newcombe 1998, "Interval estimation for the difference between independent proportions", Statistics in Medicine
# 17:873, table II, method 10.
@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_difference_interval_is_the_published_one(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    interval = difference_interval(*first, *second)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_without_a_trial_anything_is_plausible() -> None:
    assert wilson(0, 0) == Interval(0, 1)
    assert difference_interval(0, 0, 3, 8) == Interval(-1, 1)
    assert difference_interval(3, 8, 0, 0) == Interval(-1, 1)
    assert difference_p(0, 0, 3, 8) == 1
    assert difference_p(3, 8, 0, 0) == 1


def test_boschloo_is_the_published_one() -> None:
    # The documentation of scipy.stats.boschloo_exact: columns 74, 43 and 31, 32; one-sided 0.0355.
    assert difference_p(74, 117, 31, 63) == pytest.approx(2 * 0.0355634, abs=1e-5)


@settings(max_examples=40)
@given(counts, counts)
def test_p_is_that_of_scipy(cell: tuple[int, int], base: tuple[int, int]) -> None:
    table = np.array([[cell[0], base[0]], [cell[1] - cell[0], base[1] - base[0]]])
    if cell[0] * base[1] != base[0] * cell[1]:
        # SciPy looks for the least favourable rate by a local search from some points, and may miss it.
        reference = float(boschloo_exact(table, n=64).pvalue)
        assert difference_p(*cell, *base) == pytest.approx(reference, abs=1e-5)


def test_one_failure_of_eight_against_none_says_nothing() -> None:
    assert difference_p(0, 8, 1, 8) > 0.5


def test_large_tables_are_tested_with_fisher() -> None:
    failures, base_failures, trials = 3, 12, 1200
    total = comb(2 * trials, failures + base_failures)
    chances = [comb(trials, k) * comb(trials, failures + base_failures - k) / total for k in range(16)]
    as_unlikely = sum(chance for chance in chances if chance <= chances[failures] * (1 + 1e-7))
    assert difference_p(failures, trials, base_failures, trials) == pytest.approx(as_unlikely)


@given(counts, st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_of_a_rate_holds_the_rate_and_is_mirrored(count: tuple[int, int], level: float) -> None:
    failures, trials = count
    interval = wilson(failures, trials, level)
    assert 0 <= interval.low <= failures / trials <= interval.high <= 1
    assert upper_bound(failures, trials, level) >= failures / trials
    mirrored = wilson(trials - failures, trials, level)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((interval.low, interval.high))


@given(counts, counts)
def test_difference_holds_the_estimate_and_changes_sign_when_sides_are_exchanged(
    cell: tuple[int, int], base: tuple[int, int]
) -> None:
    interval, exchanged = difference_interval(*cell, *base), difference_interval(*base, *cell)
    assert interval.low - 1e-12 <= cell[0] / cell[1] - base[0] / base[1] <= interval.high + 1e-12
    assert -1 <= interval.low <= interval.high <= 1
    assert (-exchanged.high, -exchanged.low) == pytest.approx((interval.low, interval.high))


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(0, n), st.just(n))))
def test_p_is_the_same_with_sides_exchanged_and_outcomes_mirrored(table: tuple[int, int, int, int]) -> None:
    failures, trials, base_failures, base_trials = table
    p = difference_p(*table)
    assert 0 < p <= 1
    assert difference_p(base_failures, base_trials, failures, trials) == p
    mirrored = difference_p(trials - failures, trials, base_trials - base_failures, base_trials)
    assert mirrored == pytest.approx(p, abs=1e-6)


def test_boschloo_of_many_trials_is_a_little_more_powerful_than_fisher() -> None:
    assert 0.7 < difference_p(20, 1000, 37, 1000) / difference_p(20, 1001, 37, 1001) < 1


def test_p_falls_as_the_difference_grows() -> None:
    values = [difference_p(failures, 20, 14, 20) for failures in range(14, -1, -1)]
    assert values == sorted(values, reverse=True)
