"""A process takes the place of its trial: its variables, and the folder that ``tempfile`` uses from then on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_aorta.trials.execution import NAMES, note_tmp, take_place


@pytest.fixture
def ambient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The TMPDIR of a process that imports a workload."""
    folder = tmp_path / "ambient"
    folder.mkdir()
    for name in NAMES:
        monkeypatch.setenv(name, "")  # else what a test sets would stay
        monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    note_tmp()
    yield folder
    monkeypatch.undo()
    note_tmp()


def test_what_the_import_of_the_workload_has_chosen_stays(
    ambient: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/chosen")
    take_place({"TMPDIR": str(tmp_path)})
    assert tempfile.gettempdir() == "/chosen"

    monkeypatch.setenv("TMPDIR", "/chosen too")
    take_place({"TMPDIR": str(tmp_path)})
    assert os.environ["TMPDIR"] == "/chosen too"


def test_a_folder_that_is_missing_here_as_in_a_container_is_made(ambient: Path, tmp_path: Path) -> None:
    folders = {"TMPDIR": str(tmp_path / "a" / "tmp"), "AORTA_TRIAL_DIR": str(tmp_path / "b" / "files")}
    take_place(folders)
    assert all(map(os.path.isdir, folders.values()))
    assert tempfile.gettempdir() == folders["TMPDIR"]
