"""A status that is asked for again is read from one file, unless something has changed that it was made from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_distributions import install
from support.projects import COMMANDS, MATRIX, command, project, short_status

from pytest_aorta.cli import project as project_module
from pytest_aorta.cli import status as module
from pytest_aorta.cli.project import Project
from pytest_aorta.trials.loading import file_digest
from pytest_aorta.workspace.index.completions import CommandCompletion, TrialCompletion
from pytest_aorta.workspace.index.journal import Journal

LONG_AGO = 10**9 * (time.time_ns() // 10**9 - 1000)


def age(folder: Path) -> None:
    """As if nothing had changed for a while."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, ns=(LONG_AGO, LONG_AGO))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with commands and a matrix; its status has been asked for."""
    install(monkeypatch, tmp_path, "tiny", {"aorta.workloads": {"tiny": "tiny:Tiny"}})
    monkeypatch.setenv("PYTEST_AORTA_REGISTRY_FILE", str(tmp_path / "registry.json"))
    (tmp_path / "registry.json").write_text('{"version": 1, "mitigations": {"mine": {"MINE": "1"}}}')
    here = project(tmp_path / "project", COMMANDS + MATRIX.replace('"none",', '"none", "mine",'), 3)
    monkeypatch.chdir(here)
    source = tmp_path / "tiny.py"
    source.write_text("source")
    request = project_module.open_project().overview.requests["matrix"]["local-none"].digest
    with Journal(here / ".aorta" / "staged") as journal:
        journal.add(TrialCompletion("matrix", "local-none", 0, "ok", request, {str(source): str(file_digest(source))}))
        journal.add(CommandCompletion("one", "dir0", "completed"))
    for _ in range(2):  # the first makes files of the index
        age(tmp_path)
        assert command("status").exit_code == 0
    return here


def test_nothing_is_worked_out_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = command("status").output
    rows = short_status("-a", "o*")
    monkeypatch.setattr(module, "open_project", lambda files: pytest.fail("the recipe is read"))
    assert command("status").output == before
    assert short_status("-a", "o*") == rows == {"one": [1, 0, 0, 0, 2, 0]}


def edit_source(folder: Path) -> None:
    """Of a trial."""
    (folder.parent / "tiny.py").write_text("other")


def edit_registry(folder: Path) -> None:
    """What a mitigation sets."""
    (folder.parent / "registry.json").write_text('{"version": 1, "mitigations": {"mine": {"MINE": "22"}}}')


def edit_recipe(folder: Path) -> None:
    """One more trial in each cell."""
    recipe = folder / "aorta.toml"
    recipe.write_text(recipe.read_text().replace("trials = 3", "trials = 11"))


def add_directory(folder: Path) -> None:
    """With its value."""
    (folder / "workspace" / "more").mkdir()
    (folder / "workspace" / "more" / "v.json").write_text('{"v": 1}')


def add_completion(folder: Path) -> None:
    """By a run that goes on."""
    with Journal(folder / ".aorta" / "staged") as journal:
        journal.add(CommandCompletion("one", "dir1", "completed"))


def submit(folder: Path) -> None:
    """A job."""
    (folder / ".aorta" / "submitted.json").write_text('{"one": {"dir2": "delta/1"}}')


def install_package(folder: Path) -> None:
    """Beside the workload."""
    (folder.parent / "site-tiny" / "other-1.0.dist-info").mkdir()


@pytest.mark.parametrize(
    "change",
    [edit_source, edit_registry, edit_recipe, add_directory, add_completion, submit, install_package],
    ids=lambda change: change.__name__,
)
def test_what_has_changed_is_looked_at(
    folder: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def open_project(files: tuple[str, ...]) -> Project:
        asked.append(files)
        return project_module.open_project(files)

    monkeypatch.setattr(module, "open_project", open_project)
    assert command("status").exit_code == 0
    assert not asked
    change(folder)
    result = command("status", "--short")
    assert (result.exit_code, len(asked)) == (0, 1)
    (folder / ".aorta" / "status.json").unlink(missing_ok=True)
    assert command("status", "--short").output == result.output


def test_what_has_just_changed_is_looked_at_again(folder: Path) -> None:
    (folder / ".aorta" / "status.json").unlink()
    edit_recipe(folder)
    assert command("status").exit_code == 0
    assert not (folder / ".aorta" / "status.json").exists()


def test_a_damaged_answer_is_none(folder: Path) -> None:
    before = short_status()
    for text in ("", "[]", "{}", '{"asked": 1}'):
        (folder / ".aorta" / "status.json").write_text(text)
        assert short_status() == before
