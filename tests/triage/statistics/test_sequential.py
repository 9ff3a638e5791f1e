"""Comparisons that may be looked at any time, and the e-processes they are made of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import exp, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from pytest_aorta.triage import Margin
from pytest_aorta.triage.rates import Interval
from pytest_aorta.triage.sequential import (
    DIFFERENCE,
    RATIO,
    Contrast,
    PairedEProcess,
    SequentialComparison,
    SequentialTest,
    log_ratios,
    nearest_of_difference,
    rate_upper_bound_sequential,
)

POINTS = Margin(inf, 0.1)
pairs_of_outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


def _compare(outcomes: list[tuple[bool, bool]]) -> SequentialComparison:
    """Of a baseline and a cell whose trials are all known."""
    test = SequentialTest(POINTS)
    test.pairs += outcomes
    return test.comparison()


def test_a_cure_is_found_and_nothing_before_the_first_pair() -> None:
    assert _compare([]) == SequentialComparison(1, Interval(-1, 1), Interval(0, inf))
    generator = np.random.default_rng(5)
    base = (generator.random(60) < 0.5).tolist()
    comparison = _compare([(failed, False) for failed in base])
    assert comparison.p < 1e-4
    assert comparison.interval.low < -0.5 < comparison.interval.high < -0.1


def test_equivalence_is_shown_by_enough_pairs() -> None:
    assert _compare([(False, False)] * 60).interval.within(-0.1, 0.1)
    few = _compare([(False, False)] * 10)
    assert not few.interval.within(-0.1, 0.1)


@settings(max_examples=40)
@given(pairs_of_outcomes)
def test_exchanging_the_sides_changes_the_sign(outcomes: list[tuple[bool, bool]]) -> None:
    ours, theirs = _compare(outcomes), _compare([(cell, base) for base, cell in outcomes])
    assert theirs.p == pytest.approx(ours.p)
    assert (-theirs.interval.high, -theirs.interval.low) == (ours.interval.low, ours.interval.high)


@settings(max_examples=20)
@given(pairs_of_outcomes)
def test_evidence_only_grows_whenever_it_is_looked_at(outcomes: list[tuple[bool, bool]]) -> None:
    test = SequentialTest(POINTS)
    before = test.comparison()
    for base, cell in outcomes:
        test.pairs.append((base, cell))
        now = test.comparison()
        assert now.p <= before.p
        assert before.interval.low <= now.interval.low
        assert now.interval.high <= before.interval.high
        before = now
    at_once = _compare(outcomes)
    assert at_once.interval == before.interval
    assert at_once.p == pytest.approx(before.p)


def test_the_interval_holds_the_difference_at_all_times_at_once() -> None:
    generator = np.random.default_rng(21)
    missed = 0
    for _ in range(60):
        # The interval never grows: if the last one holds the difference, all did.
        comparison = _compare((generator.random((80, 2)) < [0.5, 0.2]).tolist())
        missed += not comparison.interval.low <= -0.3 <= comparison.interval.high
        assert (comparison.p < 0.05) == (comparison.interval.high <= 0)
    assert missed / 60 < 0.05


def test_upper_bound_of_a_rate_is_wider_than_that_of_a_fixed_number_of_trials() -> None:
    from scipy.stats import binomtest

    for failures, trials in [(0, 10), (0, 100), (3, 20), (19, 20), (50, 200)]:
        bound = rate_upper_bound_sequential(failures, trials)
        fixed = binomtest(failures, trials, alternative="less").proportion_ci(0.95, method="exact")
        assert fixed.high < bound < 1
    assert rate_upper_bound_sequential(0, 0) == 1
    assert rate_upper_bound_sequential(7, 7) == 1
    assert rate_upper_bound_sequential(0, 200) < 0.02


def test_upper_bound_of_a_rate_holds_at_all_times_at_once() -> None:
    generator = np.random.default_rng(22)
    missed = 0
    for _ in range(200):
        failures = np.cumsum(generator.random(100) < 0.1)
        bounds = [rate_upper_bound_sequential(int(count), trial) for trial, count in enumerate(failures, 1)]
        missed += min(bounds) < 0.1
    assert missed / 200 < 0.06


# The vignette "contingency tables" of R's safestats 0.8.7: set.seed(19012022); rbinom(95, 1, 0.2); rbinom(95, 1, 0.5).
VIGNETTE_A = "00000110000010000000100000010000001000001001000010001000001100000000000000000000000001001010001"
VIGNETTE_B = "10000010011100011011100110111111010010000111100110111101010111011011010110001011000101110010001"


def test_published_e_value_of_safestats() -> None:
    # "e-value = 48222": the alternatives are the posterior means under Beta(0.18, 0.18), the null is equality.
    log_e, a_successes, b_successes = 0.0, 0, 0
    for pairs, (a, b) in enumerate(zip(VIGNETTE_A, VIGNETTE_B, strict=True)):
        a1 = np.array([(a_successes + 0.18) / (pairs + 0.36)])
        b1 = np.array([(b_successes + 0.18) / (pairs + 0.36)])
        on_a, on_b = log_ratios(a1, b1, *nearest_of_difference(a1, b1, np.array([0.0])))
        log_e += float(on_a[int(a), 0] + on_b[int(b), 0])
        a_successes += int(a)
        b_successes += int(b)
    assert round(exp(log_e)) == 48222


def test_published_e_value_of_safestats_for_a_stated_difference() -> None:
    # "e-value = 337447": alternatives of the difference 0.3, with a prior for the rate of a on a grid of 1000.
    grid = np.linspace(0.001, 0.999, 1000)
    weights = grid ** (0.18 - 1) * (1 - grid) ** (0.18 - 1)
    a_rates = grid * 0.7
    log_e = 0.0
    for a, b in zip(VIGNETTE_A, VIGNETTE_B, strict=True):
        a1 = np.array([float(weights @ a_rates / weights.sum())])
        on_a, on_b = log_ratios(a1, a1 + 0.3, *nearest_of_difference(a1, a1 + 0.3, np.array([0.0])))
        log_e += float(on_a[int(a), 0] + on_b[int(b), 0])
        weights = weights * (a_rates if a == "1" else 1 - a_rates)
        weights = weights * (a_rates + 0.3 if b == "1" else 0.7 - a_rates)
    assert round(exp(log_e)) == 337447


def test_alternatives_are_posterior_means_of_what_the_null_excludes() -> None:
    from scipy.stats import beta

    rates = beta.ppf((np.arange(24) + 0.5) / 24, 0.35, 0.35)
    weight, cell_rate = 0.0, 0.0
    for base, cell in product(rates, rates):
        if cell < base - 0.1:
            likelihood = base**3 * (1 - base) ** 2 * cell * (1 - cell) ** 4
            weight += likelihood
            cell_rate += likelihood * cell
    cell_rate /= weight
    on_cell = PairedEProcess([-0.1]).gains(np.array([5]), np.array([3]), np.array([1]))[1]
    # The ratio of both outcomes gives away the rate: r / r0 if it fails, (1 - r) / (1 - r0) if not.
    failed, ended_well = exp(on_cell[1, 0, 1]), exp(on_cell[0, 0, 1])
    null_rate = (1 - ended_well) / (failed - ended_well)
    assert failed * null_rate == pytest.approx(cell_rate)


#: Contrasts with nulls, and the rate of a cell that has a contrast with its baseline.
CONTRASTS = pytest.mark.parametrize(
    ("contrast", "nulls", "cell_rate"),
    [
        (DIFFERENCE, [-0.9, -0.5, -0.1, 0.0, 0.1, 0.5, 0.9], float.__add__),
        (RATIO, [0.01, 0.5, 1.0, 1.5, 5.0], float.__mul__),
    ],
    ids=["difference", "ratio"],
)


@CONTRASTS
def test_every_bet_is_fair_or_worse_for_all_rates_within_its_null(
    contrast: Contrast, nulls: list[float], cell_rate: Callable[[float, float], float]
) -> None:
    """Exactly, not by simulation: the expected capital after a pair is at most what it was, whatever came before."""
    states = [(n, a, b) for n in range(13) for a in range(n + 1) for b in range(n + 1)]
    states += [(n, a, b) for n in (50, 400) for a in (0, 1, n // 2, n) for b in (0, n // 3, n)]
    pairs, base_failures, cell_failures = (np.array(column) for column in zip(*states, strict=True))
    bets = PairedEProcess(nulls, contrast).gains(pairs, base_failures, cell_failures)
    on_base, on_cell = (np.exp(part) for part in bets)
    assert float(np.abs(on_base - 1).max()) > 0.5
    for index, null in enumerate([*nulls, *nulls]):
        at_most = index < len(nulls)
        for a, b in product(np.linspace(0, 1, 21), np.linspace(0, 1, 21)):
            above = b - cell_rate(float(a), null)
            if above <= 1e-9 if at_most else above >= -1e-9:
                expected_base = a * on_base[1, :, index] + (1 - a) * on_base[0, :, index]
                expected_cell = b * on_cell[1, :, index] + (1 - b) * on_cell[0, :, index]
                assert float((expected_base * expected_cell).max()) <= 1 + (1e-9 if contrast is DIFFERENCE else 1e-6)


@CONTRASTS
def test_nearest_rates_are_those_that_a_search_finds(
    contrast: Contrast, nulls: list[float], cell_rate: Callable[[float, float], float]
) -> None:
    generator = np.random.default_rng(3)
    least, most = min(nulls), max(nulls)
    for a1, b1, null in generator.uniform([0.001, 0.001, least], [0.999, 0.999, most], (200, 3)):

        def divergence(a0: float, a1: float = a1, b1: float = b1, null: float = float(null)) -> float:
            b0 = cell_rate(float(a0), null)
            parts = [(a1, a0), (1 - a1, 1 - a0), (b1, b0), (1 - b1, 1 - b0)]
            return float(sum(p * np.log(p / q) for p, q in parts))

        edges = (max(0, -null), min(1, 1 - null)) if contrast is DIFFERENCE else (0, min(1, 1 / null))
        inside = (edges[0] + 1e-12, edges[1] - 1e-12)
        found = minimize_scalar(divergence, bounds=inside, method="bounded", options={"xatol": 1e-12})
        nearest = contrast.nearest(np.array([a1]), np.array([b1]), np.array([null]))
        assert nearest[0][0] == pytest.approx(found.x, abs=1e-6)


def test_numbers_stay_finite_when_the_data_contradict_everything() -> None:
    process = PairedEProcess([-0.99, 0.0, 0.99])
    process.extend([(True, False)] * 3000 + [(False, True)] * 3000)
    assert np.isfinite(process.log_capital).all()
    assert np.isfinite(process.peaks).all()
