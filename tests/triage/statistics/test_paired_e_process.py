"""The e-processes: fair under every null, exactly; and those of the authors of the method, reproduced."""

from __future__ import annotations

from itertools import product
from math import exp

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from pytest_aorta.triage.e_process import Bets, PairedEProcess, log_ratios, nearest_in_null

NULLS = [-0.9, -0.5, -0.1, 0.0, 0.1, 0.5, 0.9]

# The vignette "contingency tables" of R's safestats 0.8.7: set.seed(19012022); rbinom(95, 1, 0.2); rbinom(95, 1, 0.5).
VIGNETTE_A = "00000110000010000000100000010000001000001001000010001000001100000000000000000000000001001010001"
VIGNETTE_B = "10000010011100011011100110111111010010000111100110111101010111011011010110001011000101110010001"


def test_published_e_value_of_safestats() -> None:
    # "e-value = 48222": the alternatives are the posterior means under Beta(0.18, 0.18), the null is equality.
    log_e, a_successes, b_successes = 0.0, 0, 0
    for pairs, (a, b) in enumerate(zip(VIGNETTE_A, VIGNETTE_B, strict=True)):
        a1 = np.array([(a_successes + 0.18) / (pairs + 0.36)])
        b1 = np.array([(b_successes + 0.18) / (pairs + 0.36)])
        on_a, on_b = log_ratios(a1, b1, np.array([0.0]))
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
        on_a, on_b = log_ratios(a1, a1 + 0.3, np.array([0.0]))
        log_e += float(on_a[int(a), 0] + on_b[int(b), 0])
        weights = weights * (a_rates if a == "1" else 1 - a_rates)
        weights = weights * (a_rates + 0.3 if b == "1" else 0.7 - a_rates)
    assert round(exp(log_e)) == 337447


def test_nearest_rates_are_those_that_a_search_finds() -> None:
    generator = np.random.default_rng(3)
    for a1, b1, difference in generator.uniform([0.001, 0.001, -0.95], [0.999, 0.999, 0.95], (200, 3)):

        def divergence(a0: float, a1: float = a1, b1: float = b1, difference: float = difference) -> float:
            b0 = a0 + difference
            parts = [(a1, a0), (1 - a1, 1 - a0), (b1, b0), (1 - b1, 1 - b0)]
            return float(sum(p * np.log(p / q) for p, q in parts))

        edges = (max(0, -difference) + 1e-12, min(1, 1 - difference) - 1e-12)
        found = minimize_scalar(divergence, bounds=edges, method="bounded", options={"xatol": 1e-12})
        nearest = nearest_in_null(np.array([a1]), np.array([b1]), np.array([difference]))
        assert nearest[0] == pytest.approx(found.x, abs=1e-6)


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
    on_cell = Bets([], [-0.1]).gains(np.array([5]), np.array([3]), np.array([1]))[1]
    # The ratio of both outcomes gives away the rate: r / r0 if it fails, (1 - r) / (1 - r0) if not.
    failed, ended_well = exp(on_cell[1, 0, 0]), exp(on_cell[0, 0, 0])
    null_rate = (1 - ended_well) / (failed - ended_well)
    assert failed * null_rate == pytest.approx(cell_rate)


def test_every_bet_is_fair_or_worse_for_all_rates_within_its_null() -> None:
    """Exactly, not by simulation: the expected capital after a pair is at most what it was, whatever came before."""
    states = [(n, a, b) for n in range(13) for a in range(n + 1) for b in range(n + 1)]
    states += [(n, a, b) for n in (50, 400) for a in (0, 1, n // 2, n) for b in (0, n // 3, n)]
    pairs, base_failures, cell_failures = (np.array(column) for column in zip(*states, strict=True))
    on_base, on_cell = (np.exp(part) for part in Bets(NULLS, NULLS).gains(pairs, base_failures, cell_failures))
    assert float(np.abs(on_base - 1).max()) > 0.5
    for index, difference in enumerate([*NULLS, *NULLS]):
        at_most = index < len(NULLS)
        for a, b in product(np.linspace(0, 1, 21), np.linspace(0, 1, 21)):
            if (b - a <= difference + 1e-9) if at_most else (b - a >= difference - 1e-9):
                expected_base = a * on_base[1, :, index] + (1 - a) * on_base[0, :, index]
                expected_cell = b * on_cell[1, :, index] + (1 - b) * on_cell[0, :, index]
                assert float((expected_base * expected_cell).max()) <= 1 + 1e-9


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (0.2, 0.2), (0.9, 0.9), (0.05, 0.05), (0.3, 0.6)])
def test_capital_after_some_pairs_is_expected_to_be_at_most_one(a: float, b: float) -> None:
    """All sequences of four pairs, each with its probability."""
    expected = np.zeros(2)
    for outcomes in product([(False, False), (False, True), (True, False), (True, True)], repeat=4):
        probability = 1.0
        for base, cell in outcomes:
            probability *= (a if base else 1 - a) * (b if cell else 1 - b)
        process = PairedEProcess([0.3], [b - a])
        process.extend(*zip(*outcomes, strict=True))
        expected += probability * np.exp(process.log_capital)
    assert expected.max() <= 1 + 1e-9
    assert expected.min() > 0.2


def test_pairs_may_come_one_by_one_or_together() -> None:
    generator = np.random.default_rng(11)
    base, cell = (generator.random(300) < 0.4).tolist(), (generator.random(300) < 0.1).tolist()
    together, one_by_one = PairedEProcess(NULLS, NULLS), PairedEProcess(NULLS, NULLS)
    together.extend(base, cell)
    for pair in zip(base, cell, strict=True):
        one_by_one.extend([pair[0]], [pair[1]])
    np.testing.assert_allclose(together.log_capital, one_by_one.log_capital, rtol=1e-9)
    for ours, theirs in zip(together.peaks, one_by_one.peaks, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_numbers_stay_finite_when_the_data_contradict_everything() -> None:
    process = PairedEProcess([-0.99, 0.0, 0.99], [-0.99, 0.0, 0.99])
    process.extend([True] * 3000 + [False] * 3000, [False] * 3000 + [True] * 3000)
    assert np.isfinite(process.log_capital).all()
    assert np.isfinite(process.peaks).all()
