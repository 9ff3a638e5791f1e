"""What a number of trials can show is what trials show that are drawn with that failure rate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, fisher_exact

from pytest_aorta.triage.rates import arms, paired_p, ratio_of, smallest_fault, stratified_p


@pytest.mark.parametrize(("trials", "comparisons"), [(8, 1), (20, 1), (20, 7), (120, 3)])
def test_the_forecast_is_the_power_of_fishers_test(trials: int, comparisons: int) -> None:
    rate = smallest_fault(trials, comparisons)
    assert rate is not None

    def power(rate: float) -> float:
        significant = [
            fisher_exact(np.array([[0, failures], [trials, trials - failures]])).pvalue * comparisons < 0.05
            for failures in range(trials + 1)
        ]
        return float(sum(binom.pmf(failures, trials, rate) for failures in range(trials + 1) if significant[failures]))

    assert power(rate) >= 0.9 > power(rate - 0.002)


def test_three_trials_show_no_cure() -> None:
    assert smallest_fault(3) is None


def test_pairs_with_the_same_seeds_are_compared_as_mcnemar_does() -> None:
    from scipy.stats import binomtest

    for better, worse in [(0, 0), (5, 0), (0, 6), (7, 2), (30, 12)]:
        pairs = better + worse
        assert paired_p(better, worse) == pytest.approx(binomtest(better, pairs).pvalue if pairs else 1.0)


def test_one_stratum_is_fishers_test_with_twice_the_smaller_tail() -> None:
    for table in [(0, 10, 7, 10), (3, 20, 9, 20), (12, 20, 5, 17)]:
        failures, trials, base_failures, base_trials = table
        counts = np.array([[failures, trials - failures], [base_failures, base_trials - base_failures]])
        tails = [fisher_exact(counts, alternative=side).pvalue for side in ("less", "greater")]
        assert stratified_p([table]) == pytest.approx(min(1, 2 * min(tails)))


def test_a_bad_device_is_no_effect_of_a_cell_that_ran_elsewhere() -> None:
    """All of a device's trials fail: pooled, the cell that had fewer of them looks better."""
    strata = [(10, 10, 2, 2), (0, 2, 0, 10)]
    assert stratified_p(strata) == 1
    assert stratified_p([(10, 12, 2, 12)]) < 0.01


@pytest.mark.parametrize(("base", "cell"), [(0.5, 0.1), (0.9, 0.5), (0.3, 0.3), (0.1, 0.02)])
def test_the_interval_of_the_ratio_holds_it(base: float, cell: float) -> None:
    trials, missed = 60, 0.0
    for base_failures in range(trials + 1):
        for failures in range(trials + 1):
            interval = ratio_of(*arms([(failures, trials, base_failures, trials)]))
            if not interval.low <= cell / base <= interval.high:
                missed += binom.pmf(base_failures, trials, base) * binom.pmf(failures, trials, cell)
    assert missed < 0.06
