"""Directories and their values are read again when something new is there, and not before."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from pytest_aorta.settings import RequestError
from pytest_aorta.workspace.index.directories import Directories
from pytest_aorta.workspace.index.source_changes import SourceChanges

LONG_AGO = 10**9 * (time.time_ns() // 10**9 - 1000)


def listing(folder: Path, *without: str) -> Directories:
    """The directories of ``folder/workspace``."""
    return Directories(folder / ".aorta", folder / "workspace", Path("v.json"), without)


def make(folder: Path, name: str, value: object = None, *, at: int | None = LONG_AGO) -> None:
    """A directory with a value; the workspace has changed at ``at`` (ns)."""
    directory = folder / "workspace" / name
    directory.mkdir(parents=True)
    (directory / "v.json").write_text(json.dumps(value))
    if at is not None:
        os.utime(folder / "workspace", ns=(at, at))


def forbid_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing from now on is an error."""

    def scandir(path: object) -> None:
        raise AssertionError(f"{path} is listed")

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_workspace_that_is_unchanged_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", "matrix", "\udcff \n"):
        make(tmp_path, name)
    (tmp_path / "workspace" / "a file").touch()
    os.utime(tmp_path / "workspace", ns=(LONG_AGO, LONG_AGO))
    expected = ["a", "b", "\udcff \n"]
    assert listing(tmp_path, "matrix").names == expected
    forbid_listing(monkeypatch)
    assert listing(tmp_path, "matrix").names == expected
    assert listing(tmp_path).names == ["a", "b", "matrix", "\udcff \n"]


def test_a_workspace_that_has_just_changed_is_listed_again(tmp_path: Path) -> None:
    now = time.time_ns()
    make(tmp_path, "a", at=now)
    assert listing(tmp_path).names == ["a"]
    make(tmp_path, "b", at=now)  # within one tick of the clock: the time of modification is the same
    assert listing(tmp_path).names == ["a", "b"]


def test_values_of_new_directories_only_are_read(tmp_path: Path) -> None:
    make(tmp_path, "a", 1)
    first = listing(tmp_path)
    assert first.value_of("a") == 1
    first.save()
    make(tmp_path, "b", 2, at=LONG_AGO + 1)
    (tmp_path / "workspace" / "a" / "v.json").write_text("[7, 7]")
    second = listing(tmp_path)
    assert [second.value_of(name) for name in second.names] == [1, 2]
    second.refresh_values()
    assert [second.value_of(name) for name in second.names] == [[7, 7], 2]
    second.save()
    assert listing(tmp_path).value_of("a") == [7, 7]
    for path in (tmp_path / ".aorta").iterdir():
        path.write_text("{")
    assert listing(tmp_path).value_of("a") == [7, 7]


def test_no_workspace_and_no_value_file(tmp_path: Path) -> None:
    assert listing(tmp_path).names == []
    (tmp_path / "workspace").touch()
    with pytest.raises(RequestError, match=r"workspace .* cannot be read: Not a directory"):
        _ = listing(tmp_path).names
    (tmp_path / "workspace").unlink()
    make(tmp_path, "a")
    (tmp_path / "workspace" / "a" / "v.json").unlink()
    with pytest.raises(RequestError, match=r"'a' cannot be read: No such file or directory: .*/a/v.json"):
        listing(tmp_path).value_of("a")
    assert Directories(tmp_path / ".aorta", tmp_path / "workspace").value_of("a") is None


def test_sources_are_read_only_when_size_or_time_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_aorta.trials.sources import file_digest
    from pytest_aorta.workspace.index import source_changes

    source = tmp_path / "w.py"
    source.write_text("one")
    os.utime(source, ns=(LONG_AGO, LONG_AGO))
    before = {str(source): str(file_digest(source))}
    changes = SourceChanges(tmp_path / ".aorta")
    assert not changes.have_changed(before)
    assert changes.have_changed({**before, str(tmp_path / "gone.py"): "d"})
    changes.save()
    monkeypatch.setattr(source_changes, "file_digest", lambda path: pytest.fail(f"{path} is read"))
    assert not SourceChanges(tmp_path / ".aorta").have_changed(before)
    monkeypatch.undo()
    source.write_text("two")
    assert SourceChanges(tmp_path / ".aorta").have_changed(before)
    source.write_text("one")  # again, and too lately for its time to say that
    changes = SourceChanges(tmp_path / ".aorta")
    assert not changes.have_changed(before)
    source.write_text("six")
    changes.save()
    assert SourceChanges(tmp_path / ".aorta").have_changed(before)
