"""An index that is damaged, or cannot be written, is named; its answers are those of the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.projects import COMMANDS, command, complete, project, short_status

EXPECTED = {"one": [3, 0, 0, 0, 2, 0], "two": [0, 0, 0, 0, 3, 2]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with five directories, three of them complete; its index is known."""
    here = project(tmp_path / "project", COMMANDS, 5)
    monkeypatch.chdir(here)
    complete(here, "one", 3)
    assert command("scan").exit_code == 0
    assert short_status() == EXPECTED
    return here


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is damaged, or of another version"),
        ('{"version": 7}', "is damaged, or of another version"),
    ],
)
def test_a_damaged_index_is_named_once_and_made_again(folder: Path, text: str, why: str) -> None:
    file = folder / ".aorta" / "state.json"
    file.write_text(text)
    result = command("status", "--short")
    assert result.stderr.splitlines() == [
        f"warning: {file} {why}; results and products are looked for on disk, failed commands are forgotten"
    ]
    assert short_status() == EXPECTED
    assert command("status").stderr == ""
    file.write_text(text)
    assert command("scan").stdout == "index: 3 new or changed\n"
    assert command("status").stderr == ""


def test_a_damaged_journal_is_named_once_and_what_it_may_have_said_is_looked_for(folder: Path) -> None:
    complete(folder, "one", 4)
    journal = folder / ".aorta" / "staged" / "1-hostile\x1b[31m.jsonl"
    journal.parent.mkdir(exist_ok=True)
    journal.write_bytes(b"\xff\n" * 3)
    result = command("status", "--short")
    assert "hostile" in result.stderr
    assert "\x1b" not in result.stderr
    assert "has 3 lines that cannot be read" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert short_status() == {"one": [4, 0, 0, 0, 1, 0], "two": [0, 0, 0, 0, 4, 1]}
    assert command("status").stderr == ""


def test_a_damaged_index_that_cannot_be_written_is_answered_from_the_disk(folder: Path) -> None:
    (folder / ".aorta" / "state.json").unlink()
    (folder / ".aorta" / "state.json").mkdir()
    for _ in range(2):
        assert "cannot be read: Is a directory" in command("status").stderr
        assert short_status() == EXPECTED
