"""States of actions on their units, and what their followers wait for."""

from __future__ import annotations

import pytest

from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.recipe import ActionTable
from pytest_aorta.workflow.states import Open, Progress, State, classified, containing, failed_for, open_for

MATRIX = Action("matrix", ActionTable(workload="gemm"), 1)


def follower(each: str | None = None) -> Action:
    """A command on units of this kind, or else another matrix."""
    keys = {"workload": "gemm"} if each is None else {"command": "x {directory}", "each": each}
    return Action("after", ActionTable.model_validate(keys), 1)


def test_the_first_state_that_holds_counts() -> None:
    progress = Progress(["a", "b", "c", "d", "e", "f"], {"a"}, {"a", "b"}, set(), {"b", "c"}, {"c", "d"})
    states = classified(progress, [Open.of({"e"})])
    assert [states[unit] for unit in "abcdef"] == [
        State.COMPLETED,
        State.FAILED,
        State.SUBMITTED,
        State.SUBMITTED,
        State.WAITING,
        State.ELIGIBLE,
    ]


def test_units_contain_each_other_as_paths_do() -> None:
    assert list(containing("a-b/3")) == ["a-b/3", "a-b", ""]
    assert list(containing("")) == [""]
    cells = Open.of({"a/0", "b/1"})
    assert [cells.touches(unit) for unit in ["", "a", "a/0", "a/1", "ab", "b", "c"]] == [
        True,
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert Open.of({""}).touches("a/0")
    assert not Open.of(set()).touches("")


@pytest.mark.parametrize(
    ("each", "unit", "trials", "waits"),
    [
        # A comparison of a cell needs the results of that cell, failures among them.
        ("cell", "a", {"completed": ["a/0"], "failed": ["a/1"]}, False),
        ("cell", "b", {"completed": ["a/0"], "failed": ["a/1"]}, True),
        ("cell", "a", {"completed": ["a/0"], "failed": ["a/1"], "without_result": ["a/1"]}, True),
        ("matrix", "", {"completed": ["a/0", "b/0", "b/1"], "failed": ["a/1"]}, False),
        ("matrix", "", {"completed": ["a/0", "b/0"], "failed": ["a/1"]}, True),
        # What follows single trials, and a matrix after a matrix, need them to be as expected.
        ("trial", "a/0", {"completed": ["a/0"]}, False),
        ("trial", "a/1", {"completed": ["a/0"], "failed": ["a/1"]}, True),
        (None, "x/0", {"completed": ["a/0", "a/1", "b/0"], "failed": ["b/1"]}, True),
        (None, "x/0", {"completed": ["a/0", "a/1", "b/0", "b/1"]}, False),
    ],
)
def test_followers_of_a_matrix(each: str | None, unit: str, trials: dict[str, list[str]], waits: bool) -> None:
    progress = Progress(["a/0", "a/1", "b/0", "b/1"], **trials)
    left = open_for(follower(each), MATRIX, progress)
    assert left.touches(unit) == waits


def test_what_has_failed_is_known_to_its_followers() -> None:
    progress = Progress(["a/0", "b/0"], failed={"a/0"})
    assert failed_for(follower("trial"), MATRIX, progress).touches("a/0")
    assert not failed_for(follower("cell"), MATRIX, progress).touches("a")
    assert failed_for(follower("cell"), MATRIX, Progress(["a/0"], failed={"a/0"}, without_result={"a/0"})).touches("a")
