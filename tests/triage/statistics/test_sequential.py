"""The comparison that may be looked at any time."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.triage.e_process import PairedEProcess
from pytest_aorta.triage.rates import Interval
from pytest_aorta.triage.sequential import (
    SequentialComparison,
    SequentialTest,
    rate_upper_bound_sequential,
    sequential_comparison,
)

pairs_of_outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


def _compare(outcomes: list[tuple[bool, bool]]) -> SequentialComparison:
    return sequential_comparison([base for base, _ in outcomes], [cell for _, cell in outcomes], 0.1)


def test_nothing_is_known_before_the_first_pair() -> None:
    assert sequential_comparison([], [], 0.1) == SequentialComparison(1, Interval(-1, 1))


def test_a_cure_is_found() -> None:
    generator = np.random.default_rng(5)
    base = (generator.random(60) < 0.5).tolist()
    comparison = sequential_comparison(base, [False] * 60, 0.1)
    assert comparison.p < 1e-4
    assert comparison.interval.low < -0.5 < comparison.interval.high < -0.1


def test_harm_is_found() -> None:
    comparison = sequential_comparison([False] * 30, [True, True, False] * 10, 0.1)
    assert comparison.p < 0.002
    assert comparison.interval.low > 0.2


def test_equivalence_is_shown_by_enough_pairs() -> None:
    assert sequential_comparison([False] * 60, [False] * 60, 0.1).interval.within(-0.1, 0.1)
    few = sequential_comparison([False] * 10, [False] * 10, 0.1)
    assert not few.interval.within(-0.1, 0.1)


def test_what_one_side_has_more_is_not_used() -> None:
    base, cell = [True, False, True], [False, False, False, True, True]
    assert sequential_comparison(base, cell, 0.1) == sequential_comparison(base, cell[:3], 0.1)


def test_a_margin_that_is_no_difference_of_rates_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        SequentialTest(1.5)


@settings(max_examples=40)
@given(pairs_of_outcomes)
def test_exchanging_the_sides_changes_the_sign(outcomes: list[tuple[bool, bool]]) -> None:
    ours, theirs = _compare(outcomes), _compare([(cell, base) for base, cell in outcomes])
    assert theirs.p == pytest.approx(ours.p)
    assert (-theirs.interval.high, -theirs.interval.low) == (ours.interval.low, ours.interval.high)


@settings(max_examples=40)
@given(pairs_of_outcomes)
def test_mirroring_the_outcomes_changes_the_sign(outcomes: list[tuple[bool, bool]]) -> None:
    ours, theirs = _compare(outcomes), _compare([(not base, not cell) for base, cell in outcomes])
    assert theirs.p == pytest.approx(ours.p)
    assert (-theirs.interval.high, -theirs.interval.low) == (ours.interval.low, ours.interval.high)


@settings(max_examples=20)
@given(pairs_of_outcomes)
def test_evidence_only_grows_whenever_it_is_looked_at(outcomes: list[tuple[bool, bool]]) -> None:
    test = SequentialTest(0.1)
    before = test.comparison()
    for base, cell in outcomes:
        test.extend([base], [cell])
        now = test.comparison()
        assert now.p <= before.p
        assert before.interval.low <= now.interval.low
        assert now.interval.high <= before.interval.high
        before = now
    at_once = _compare(outcomes)
    assert at_once.interval == before.interval
    assert at_once.p == pytest.approx(before.p)


def test_looking_after_every_pair_finds_no_difference_that_is_not_there() -> None:
    generator = np.random.default_rng(20)
    runs, found = 400, 0
    for rate in (0.1, 0.5):
        for _ in range(runs // 2):
            process = PairedEProcess([0.0], [0.0])
            process.extend((generator.random(100) < rate).tolist(), (generator.random(100) < rate).tolist())
            found += min(1, 2 * exp(-max(peak[0] for peak in process.peaks))) < 0.05
    assert found / runs < 0.05


def test_the_interval_holds_the_difference_at_all_times_at_once() -> None:
    generator = np.random.default_rng(21)
    missed = 0
    for _ in range(120):
        # The interval never grows: if the last one holds the difference, all did.
        comparison = sequential_comparison(
            (generator.random(80) < 0.5).tolist(), (generator.random(80) < 0.2).tolist(), 0.1
        )
        missed += not comparison.interval.low <= -0.3 <= comparison.interval.high
    assert missed / 120 < 0.05


def test_upper_bound_of_a_rate_is_wider_than_that_of_a_fixed_number_of_trials() -> None:
    from pytest_aorta.triage.rates import upper_bound

    for failures, trials in [(0, 10), (0, 100), (3, 20), (19, 20), (50, 200)]:
        bound = rate_upper_bound_sequential(failures, trials)
        assert upper_bound(failures, trials) < bound < 1
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
