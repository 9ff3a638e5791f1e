"""Holm's correction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.triage.rates import holm


def test_published_example() -> None:
    # Wikipedia, "Holm-Bonferroni method", example; the numbers are those of R's p.adjust(p, "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_none_and_one() -> None:
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_it_rejects_what_the_procedure_of_holm_rejects(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        rejected: set[int] = set()
        order = sorted(range(len(p_values)), key=lambda index: p_values[index])
        for step, index in enumerate(order):
            if (len(p_values) - step) * p_values[index] > level:
                break
            rejected.add(index)
        assert {index for index, p in enumerate(adjusted) if p <= level} == rejected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_it_keeps_the_order_and_never_makes_smaller(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [after for _, after in pairs] == sorted(adjusted)
    assert all(before <= after <= 1 for before, after in pairs)
