"""Lists of names in messages are cut after the first few."""

from __future__ import annotations

from pytest_aorta.common.texts import first_names


def test_the_first_names_and_how_many_more_there_are() -> None:
    assert first_names([], 2) == []
    assert first_names(("a", "b"), 2) == ["a", "b"]
    assert first_names(["a", "b", "c", "d"], 2) == ["a", "b", "2 more"]
