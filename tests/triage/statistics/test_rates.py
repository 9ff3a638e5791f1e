"""Rates, p values and forecasts are those of publications and of SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, boschloo_exact, fisher_exact, hypergeom

from pytest_aorta.triage import MARGIN, Margin
from pytest_aorta.triage.rates import (
    Interval,
    arms,
    conditional_p,
    difference_interval,
    difference_p,
    holm,
    least_p,
    more_trials,
    rate_below,
    ratio_interval,
    wilson,
)
from pytest_aorta.triage.sequential import SequentialTest


def newcombe(*counts: int) -> Interval:
    """Of one table."""
    failures, trials, base_failures, base_trials = counts
    return difference_interval(*arms([(failures, trials, base_failures, base_trials)]))


counts = st.integers(1, 60).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials)))


@settings(max_examples=40)
@given(counts, st.sampled_from([0.8, 0.95, 0.99]))
def test_intervals_of_a_rate_are_those_of_scipy(count: tuple[int, int], level: float) -> None:
    """Importing scipy.stats takes a second, so runs have the formulas."""
    interval, reference = wilson(*count, level), binomtest(*count).proportion_ci(level, method="wilson")
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=1e-9)
    one_sided = binomtest(0, count[1], alternative="less").proportion_ci(0.95, method="exact")
    assert rate_below(count[1]) == pytest.approx(one_sided.high, abs=1e-9)


# Newcombe 1998, "Interval estimation for the difference between independent proportions", Statistics in Medicine
# 17:873, table II, method 10.
def test_difference_interval_is_the_published_one() -> None:
    cases: list[tuple[tuple[int, int], tuple[int, int], float, float]] = [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ]
    for first, second, low, high in cases:
        interval = newcombe(*first, *second)
        assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


def test_without_a_trial_anything_is_plausible() -> None:
    assert wilson(0, 0) == Interval(0, 1)
    assert rate_below(0) == 1
    assert newcombe(0, 0, 3, 8) == Interval(-1, 1)
    assert newcombe(3, 8, 0, 0) == Interval(-1, 1)
    assert difference_p(0, 0, 3, 8) == 1
    assert difference_p(3, 8, 0, 0) == 1


@settings(max_examples=40)
@given(counts, counts)
def test_p_is_that_of_scipy(cell: tuple[int, int], base: tuple[int, int]) -> None:
    table = np.array([[cell[0], base[0]], [cell[1] - cell[0], base[1] - base[0]]])
    if cell[0] * base[1] != base[0] * cell[1]:
        # SciPy looks for the least favourable rate by a local search from some points, and may miss it.
        reference = float(boschloo_exact(table, n=64).pvalue)
        assert difference_p(*cell, *base) == pytest.approx(reference, abs=1e-5)


def test_large_tables_are_tested_with_fisher() -> None:
    reference = fisher_exact(np.array([[3, 1197], [12, 1188]])).pvalue
    assert difference_p(3, 1200, 12, 1200) == pytest.approx(float(reference))


def test_corrected_p_values_are_those_of_holm() -> None:
    # Wikipedia, "Holm-Bonferroni method", example; the numbers are those of R's p.adjust(p, "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.2, 0.8]) == pytest.approx([1, 0.6, 1])


def test_a_guess_of_more_trials_is_right_four_times_of_five() -> None:
    """Of rates as the guess takes them to be: equal ones in a third of all tables."""
    generator = np.random.default_rng(5)
    said = right = 0
    for _ in range(250):
        rate, base = generator.beta(0.5, 0.5, 2)
        rate = base if generator.random() < 1 / 3 else rate
        failures, base_failures = (int(generator.binomial(12, each)) for each in (rate, base))
        more = more_trials(failures, 12, base_failures, 12)
        if more is not None and difference_p(failures, 12, base_failures, 12) >= 0.05:
            said += 1
            test, trials = SequentialTest(MARGIN), 12 + more
            fails = (generator.permutation([1.0] * each + [0.0] * (12 - each)) for each in (base_failures, failures))
            further = (generator.random(more) < each for each in (base, rate))
            test.pairs += zip(*(map(float, [*a, *b]) for a, b in zip(fails, further, strict=True)), strict=True)
            found = test.comparison()
            lower = sum(cell for _, cell in test.pairs) <= sum(base for base, _ in test.pairs)
            is_within = found.interval.within(-0.1, 0.1) and found.ratio.within(0.5, 1.5)
            right += found.p < 0.05 or is_within or (found.ratio.low > 0.5 and lower)
            assert trials <= 512
    assert said >= 38
    assert 0.7 <= right / said <= 0.97


def test_a_clearer_difference_needs_fewer_trials_and_more_comparisons_more() -> None:
    found = [more_trials(0, 20, failed, 20) for failed in (4, 5, 7)]
    assert found[-1] is not None
    assert [each or 1000 for each in found] == sorted((each or 1000 for each in found), reverse=True)
    assert (more_trials(0, 20, 7, 20, comparisons=10) or 1000) > found[-1]


def test_none_where_it_cannot_be_said() -> None:
    assert more_trials(0, 0, 3, 8) is None
    assert more_trials(3, 8, 0, 0) is None
    assert more_trials(10, 20, 10, 20) is None  # equal rates of one half take more than 500
    assert more_trials(50, 100, 50, 100, Margin(points=0.001)) is None


def test_pairs_are_compared_as_mcnemar_does_with_mid_p() -> None:
    for better, worse in [(0, 0), (5, 0), (0, 6), (7, 2), (30, 12)]:
        pairs = better + worse
        both = [(1, 1, 1, 1)] * 4 + [(0, 1, 0, 1)] * 9  # which say nothing
        tables = [*both, *[(0, 1, 1, 1)] * better, *[(1, 1, 0, 1)] * worse]
        exact = binomtest(better, pairs).pvalue if pairs else 1.0
        assert conditional_p(tables) == pytest.approx(min(1.0, exact - binom.pmf(better, pairs, 0.5)) if pairs else 1)
        assert least_p(tables) == pytest.approx(0.5**pairs)


@pytest.mark.parametrize(("rounds", "cells"), [(20, 1), (40, 3), (80, 3)])
def test_where_rates_drift_alike_pairs_of_rounds_call_none_of_the_cells_different_in_95_percent(
    rounds: int, cells: int
) -> None:
    """Exactly, over all numbers of rounds in which both differ, with Bonferroni's bound on the family."""
    rates = 0.4 + 0.35 * np.sin(2 * np.pi * np.arange(rounds) / rounds)
    chances = np.ones(1)
    for differ in 2 * rates * (1 - rates):
        chances = np.convolve(chances, [1 - differ, differ])
    error = 0.0
    for pairs, chance in enumerate(chances):
        fewest = next(
            better
            for better in range(pairs + 1)
            if better > pairs // 2
            or cells * conditional_p([*[(0, 1, 1, 1)] * better, *[(1, 1, 0, 1)] * (pairs - better)]) >= 0.05
        )
        error += chance * 2 * float(binom.cdf(fewest - 1, pairs, 0.5))
    assert 0.01 < cells * error <= 0.05


def test_one_stratum_is_fishers_test_with_twice_the_smaller_tail_and_mid_p() -> None:
    for table in [(0, 10, 7, 10), (3, 20, 9, 20), (12, 20, 5, 17)]:
        failures, trials, base_failures, base_trials = table
        counts = np.array([[failures, trials - failures], [base_failures, base_trials - base_failures]])
        tails = [fisher_exact(counts, alternative=side).pvalue for side in ("less", "greater")]
        seen = hypergeom.pmf(failures, trials + base_trials, trials, failures + base_failures)
        assert conditional_p([table]) == pytest.approx(min(1, 2 * min(tails) - seen))


def test_a_bad_device_is_no_effect_of_a_cell_that_ran_elsewhere() -> None:
    """All of a device's trials fail: pooled, the cell that had fewer of them looks better."""
    strata = [(10, 10, 2, 2), (0, 2, 0, 10)]
    assert conditional_p(strata) == 1
    assert conditional_p([(10, 12, 2, 12)]) < 0.01


def test_the_interval_of_the_ratio_holds_it() -> None:
    cases: list[tuple[float, float]] = [(0.5, 0.1), (0.9, 0.5), (0.3, 0.3), (0.1, 0.02)]
    for base, cell in cases:
        trials, missed = 60, 0.0
        for base_failures in range(trials + 1):
            for failures in range(trials + 1):
                interval = ratio_interval(*arms([(failures, trials, base_failures, trials)]))
                if not interval.low <= cell / base <= interval.high:
                    missed += binom.pmf(base_failures, trials, base) * binom.pmf(failures, trials, cell)
        assert missed < 0.06
