"""``--where``: rows of ``pytest-aorta status`` and ``show`` of what meets conditions."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.projects import COMMANDS, MATRIX, command, project, short_status
from support.stage import Stage


@pytest.fixture
def folder(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with directories, and a matrix, as the working directory."""
    stage.register(tiny="work:Tiny")
    monkeypatch.syspath_prepend(stage.path)
    monkeypatch.chdir(project(stage.path, COMMANDS + MATRIX, 10))
    return stage.path


def names(*arguments: str) -> list[str]:
    """The names that are shown."""
    result = command("show", *arguments, "--short")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_counts_of_what_meets_conditions(folder: Path) -> None:
    command("status")  # what is remembered is of all
    # Conditions on directories and on trials: neither has what the other has.
    assert short_status("--where", "/v<3") == {"one": [0, 0, 0, 0, 3, 0], "two": [0, 0, 0, 0, 0, 3]}
    assert short_status("--where", "/v<3", "--where", "/half==1", "-a", "one") == {"one": [0, 0, 0, 0, 1, 0]}
    assert short_status("--where", "/trial==0", "-a", "matrix") == {"matrix": [0, 0, 0, 0, 2, 0]}
    assert short_status("-a", "one", "dir1", "dir2", "--where", "/v<2") == {"one": [0, 0, 0, 0, 1, 0]}
    assert short_status()["one"] == [0, 0, 0, 0, 10, 0]


def test_names_of_what_meets_conditions(folder: Path) -> None:
    assert names("directories", "--where", "/v>=8") == ["dir8", "dir9"]
    assert names("directories", "-a", "one", "--where", "/half==4") == ["dir8", "dir9"]
    assert names("trials", "--where", '/mitigations==["none"]', "--where", "/trial>0") == [
        "local-none/1",
        "local-none/2",
    ]
    assert names("cells", "--where", '/mitigations==["none"]') == ["local-none"]
    assert names("trials", "local-none", "--where", "/trial==2") == ["local-none/2"]


@pytest.mark.parametrize(
    "words",
    [["status"], ["show", "trials"], ["show", "cells"], ["show", "directories", "-a", "one"], ["show", "directories"]],
    ids=" ".join,
)
def test_what_nothing_could_meet_is_refused(folder: Path, words: list[str]) -> None:
    result = command(*words, "--where", "/learning_rate<1")
    assert result.exit_code == 2
    assert "--where '/learning_rate<1': no trial or directory has /learning_rate; there are /" in result.stderr
    result = command(*words, "--where", "lr")
    assert (result.exit_code, result.stderr[:45]) == (2, "Error: --where: 'lr' is not valid; expected P")
