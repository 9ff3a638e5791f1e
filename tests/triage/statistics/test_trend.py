"""Trends over run order, against all orders counted out."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from pytest_aorta.triage.checks import failure_trend_p, trend_p


def test_p_of_numbers_counts_the_orders_that_are_as_extreme() -> None:
    values = [10.0, 11.0, 10.5, 12.0, 13.0, 12.5, 14.0]

    def score(order: tuple[float, ...]) -> int:
        return sum((later > earlier) - (later < earlier) for earlier, later in combinations(order, 2))

    observed = score(tuple(values))
    scores = [score(order) for order in permutations(values)]
    assert trend_p(values) == pytest.approx(sum(abs(each) >= observed for each in scores) / len(scores))


def test_p_of_failures_counts_the_positions_that_are_as_extreme() -> None:
    failed = [0, 0, 0, 1, 0, 0, 1, 1, 1]

    def score(positions: tuple[int, ...]) -> float:
        others = set(range(9)) - set(positions)
        return sum((position > other) - (position < other) for position in positions for other in others)

    observed = score(tuple(index for index, one in enumerate(failed) if one))
    scores = [score(positions) for positions in combinations(range(9), 4)]
    assert failure_trend_p(failed) == pytest.approx(sum(abs(each) >= observed for each in scores) / len(scores))


def test_equal_values_and_no_order_are_no_trend() -> None:
    assert trend_p([2.0] * 50) == failure_trend_p([1] * 50) == failure_trend_p([0] * 50) == 1
    assert failure_trend_p([1, 0, 0, 1] * 6) > 0.9
    assert failure_trend_p([trial % 3 == 0 for trial in range(1000)]) > 0.5
