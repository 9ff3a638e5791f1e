"""Trends over run order, against all orders counted out."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from pytest_aorta.triage.checks import failure_trend, trend


def test_p_of_numbers_counts_the_orders_that_are_as_extreme() -> None:
    values = [10.0, 11.0, 10.5, 12.0, 13.0, 12.5, 14.0]

    def score(order: tuple[float, ...]) -> int:
        return sum((later > earlier) - (later < earlier) for earlier, later in combinations(order, 2))

    observed = score(tuple(values))
    scores = [score(order) for order in permutations(values)]
    found = trend(values)
    assert found is not None
    assert found.tau == pytest.approx(observed / 21)
    assert found.p == pytest.approx(sum(abs(each) >= observed for each in scores) / len(scores))
    assert (found.first, found.last) == (10.5, 13.25)


def test_p_of_failures_counts_the_positions_that_are_as_extreme() -> None:
    failed = [False, False, False, True, False, False, True, True, True]

    def score(positions: tuple[int, ...]) -> float:
        others = set(range(9)) - set(positions)
        return sum((position > other) - (position < other) for position in positions for other in others)

    observed = score(tuple(index for index, one in enumerate(failed) if one))
    scores = [score(positions) for positions in combinations(range(9), 4)]
    found = failure_trend(failed)
    assert found is not None
    assert found.tau == pytest.approx(observed / 20)
    assert found.p == pytest.approx(sum(abs(each) >= observed for each in scores) / len(scores))
    assert (found.first, found.last) == (0, 1)


def test_a_drift_is_found_in_either_direction() -> None:
    rising = trend([10 + 0.1 * trial + (trial * 7 % 5) * 0.2 for trial in range(30)])
    assert rising is not None
    assert rising.tau > 0.5
    assert rising.p < 1e-4
    falling = failure_trend([True] * 10 + [False, True] * 5 + [False] * 10)
    assert falling is not None
    assert falling.tau < -0.5
    assert falling.p < 1e-3


def test_no_order_is_no_trend() -> None:
    alternating = failure_trend([True, False, False, True] * 6)
    assert alternating is not None
    assert alternating.p > 0.9


@pytest.mark.parametrize("values", [[], [1.0] * 5, [2.0] * 50])
def test_too_few_or_equal_numbers_have_no_trend(values: list[float]) -> None:
    assert trend(values) is None


@pytest.mark.parametrize("failed", [[], [True, False], [True] * 50, [False] * 50])
def test_too_few_or_equal_outcomes_have_no_trend(failed: list[bool]) -> None:
    assert failure_trend(failed) is None


def test_a_thousand_trials_are_no_burden() -> None:
    found = failure_trend([trial % 3 == 0 for trial in range(1000)])
    assert found is not None
    assert found.p > 0.5
