"""Lists of numbers as the kernel writes them."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.common.texts import format_ranges, parse_ranges


@pytest.mark.parametrize(("numbers", "text"), [(set(), ""), ({3}, "3"), ({0, 1, 2, 5, 7, 8}, "0-2,5,7-8")])
def test_successive_numbers_are_written_as_a_range(numbers: set[int], text: str) -> None:
    assert format_ranges(numbers) == text


@given(st.sets(st.integers(0, 10**6), min_size=1))
def test_what_was_written_reads_back(numbers: set[int]) -> None:
    assert set(chain(*parse_ranges(format_ranges(numbers)))) == numbers


def test_the_order_and_overlaps_of_the_text_are_kept() -> None:
    assert parse_ranges("4, 1-2 ,2\n") == [range(4, 5), range(1, 3), range(2, 3)]


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "-1", "3-1", "0-", "1.0", "0x1", "٣", "1 2", "1" * 100_000])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        parse_ranges(text)
