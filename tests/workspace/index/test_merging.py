"""A scan is merged into the index; what was completed while it ran is newer."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.workspace.index.cache import Index, read_index
from pytest_aorta.workspace.index.completions import CommandCompletion, Completion, TrialCompletion
from pytest_aorta.workspace.index.journal import Journal
from pytest_aorta.workspace.index.merging import Merged, completions_of, merge


def index_of(*completions: Completion) -> Index:
    """An index of these."""
    index = Index()
    for each in completions:
        index.add(each)
    return index


def trial(number: int, status: str = "ok", request: str = "r") -> TrialCompletion:
    """A trial of one cell."""
    return TrialCompletion("matrix", "a", number, status, request, {"/w.py": "d"})


def journal(folder: Path, *completions: Completion) -> None:
    """What a run has left."""
    with Journal(folder / "staged") as writer:
        for each in completions:
            writer.add(each)


def test_all_completions_of_an_index() -> None:
    found: list[Completion] = [
        trial(0),
        trial(3, "timeout"),
        trial(4, "ok", "r2"),
        CommandCompletion("one", "d", "failed"),
    ]
    assert list(completions_of(index_of(*found)).values()) == found


def test_what_has_changed_during_the_search_stays(tmp_path: Path) -> None:
    journal(tmp_path, trial(0, "timeout"), trial(1), CommandCompletion("one", "d", "failed"))
    before = read_index(tmp_path)
    journal(tmp_path, trial(0, "workload_failed"), CommandCompletion("one", "new", "failed"))
    found = index_of(
        trial(0), trial(2), CommandCompletion("one", "d", "completed"), CommandCompletion("one", "new", "completed")
    )
    assert merge(tmp_path, before, found) == Merged(2, 0)
    assert completions_of(read_index(tmp_path)) == completions_of(
        index_of(
            trial(0, "workload_failed"),
            trial(1),
            trial(2),
            CommandCompletion("one", "d", "completed"),
            CommandCompletion("one", "new", "failed"),
        )
    )
    assert merge(tmp_path, read_index(tmp_path), index_of(trial(2)), lambda key: key[0] == "matrix") == Merged(0, 2)
    assert list(completions_of(read_index(tmp_path))) == [("matrix", "a", 2), ("one", "d"), ("one", "new")]


def test_journals_are_folded_in_the_order_of_time(tmp_path: Path) -> None:
    for number in range(20):
        journal(tmp_path, trial(0, "ok" if number % 2 else "timeout"), trial(1, "timeout" if number % 2 else "ok"))
    assert read_index(tmp_path).cells["matrix"]["a"][0].letters == b"ot"
