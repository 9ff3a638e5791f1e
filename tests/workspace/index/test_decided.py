"""Decisions on cells: what several processes find out of one action is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_aorta.workspace.atomic import locked
from pytest_aorta.workspace.index import decided
from pytest_aorta.workspace.index.decided import DecidedCells, note_decided, read_decided


def test_decisions_of_two_processes_on_one_action_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_decided(tmp_path, "matrix", DecidedCells("asked", {"a": "decided before"}))

    @contextlib.contextmanager
    def locked_after_another(folder: Path) -> Iterator[None]:
        monkeypatch.undo()
        note_decided(tmp_path, "matrix", DecidedCells("asked", {"b": "by another process"}))
        with locked(folder):
            yield

    monkeypatch.setattr(decided, "locked", locked_after_another)
    note_decided(tmp_path, "matrix", DecidedCells("asked", {"c": "by this one"}))
    assert read_decided(tmp_path)["matrix"].cells.keys() == {"a", "b", "c"}


def test_decisions_on_another_request_are_replaced(tmp_path: Path) -> None:
    note_decided(tmp_path, "matrix", DecidedCells("asked", {"a": "decided"}))
    note_decided(tmp_path, "matrix", DecidedCells("asked otherwise", {"b": "decided"}))
    assert dict(read_decided(tmp_path)["matrix"].cells) == {"b": "decided"}
