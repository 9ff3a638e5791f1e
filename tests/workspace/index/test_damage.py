"""Journals that are torn, hostile or of another version; what can be read of them counts, and they are named."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.workspace.index.cache import read_index
from pytest_aorta.workspace.index.completions import CommandCompletion, TrialCompletion
from pytest_aorta.workspace.index.journal import Journal, journals, read_journal
from pytest_aorta.workspace.index.merging import completions_of, merge

TRIAL: dict[str, Any] = {
    "kind": "trial",
    "action": "m",
    "cell": "c",
    "trial": 1,
    "exit_status": "ok",
    "request": "r",
    "sources": {},
}
COMMAND: dict[str, Any] = {"kind": "command", "action": "one", "directory": "a", "outcome": "completed"}


def journal_of(folder: Path, *lines: bytes) -> Path:
    """A journal of these lines."""
    path = folder / "staged" / "00000000000000000001-x.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


OF_TRIALS: list[dict[str, Any]] = [
    *({"trial": -1}, {"trial": 10**12}, {"trial": "1"}, {"trial": 1.0}, {"trial": True}),
    *({"exit_status": "exploded"}, {"exit_status": ["ok"]}, {"request": None}, {"cell": {}}, {"action": ["m"]}),
    *({"sources": [1]}, {"sources": {"/w.py": 3}}, {"sources": None}, {"kind": "later"}, {"kind": []}, {"more": 1}),
]
OF_COMMANDS: list[dict[str, Any]] = [{"outcome": "exploded"}, {"outcome": []}, {"directory": {}}, {"action": None}]


@pytest.mark.parametrize(
    "line",
    [
        *(json.dumps({**TRIAL, **change}).encode() for change in OF_TRIALS),
        *(json.dumps({**COMMAND, **change}).encode() for change in OF_COMMANDS),
        *(b"null", b"[]", b"\xff\x00\xfe", b"[" * 100_000, b'{"kind": "tri', b"9" * 5000),
    ],
    ids=lambda line: line[:90].decode(errors="replace"),
)
def test_a_line_that_is_no_completion_is_left_out_and_its_journal_named(tmp_path: Path, line: bytes) -> None:
    path = journal_of(tmp_path, json.dumps(COMMAND).encode(), line, json.dumps(TRIAL).encode())
    index = read_index(tmp_path)
    assert index.damaged == {path.name: "has 1 line that cannot be read"}
    assert list(completions_of(index)) == [("m", "c", 1), ("one", "a")]
    assert read_index(tmp_path).damaged  # until a scan has found what it had said
    merge(tmp_path, index, read_index(tmp_path))
    assert list(completions_of(read_index(tmp_path))) == [("m", "c", 1), ("one", "a")]
    assert not read_index(tmp_path).damaged
    assert journals(tmp_path / "staged") == []


def test_a_journal_of_noise_does_no_harm(tmp_path: Path) -> None:
    journal_of(tmp_path, os.urandom(3_000_000), b"x" * 20_000_000, json.dumps(COMMAND).encode())
    index = read_index(tmp_path)
    assert list(completions_of(index)) == [("one", "a")]
    assert len(index.damaged) == 1


def test_folders_and_dangling_links_are_no_journals(tmp_path: Path) -> None:
    (tmp_path / "staged" / "1.jsonl").mkdir(parents=True)
    (tmp_path / "staged" / "2.jsonl").symlink_to("nowhere")
    assert journals(tmp_path / "staged") == []


def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = journal_of(tmp_path, json.dumps(COMMAND).encode())
    opened = Path.open

    def refuse(self: Path, *arguments: Any, **more: Any) -> Any:  # root may read any file
        if self == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(self, *arguments, **more)

    monkeypatch.setattr(Path, "open", refuse)
    assert read_index(tmp_path).damaged == {path.name: "cannot be read: Permission denied"}


def test_the_last_line_of_a_killed_writer_is_no_damage(tmp_path: Path) -> None:
    path = journal_of(tmp_path, json.dumps(COMMAND).encode())
    with path.open("ab") as file:
        file.write(json.dumps(TRIAL).encode()[:40])
    index = read_index(tmp_path)
    assert (index.damaged, list(completions_of(index))) == ({}, [("one", "a")])


def test_what_is_written_after_the_disk_was_full_is_whole(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path / "staged") as journal:
        journal.add(CommandCompletion("one", "a", "completed"))
        (path,) = journals(tmp_path / "staged")
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, hard))
        try:
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space left|File too large"):
                    journal.add(CommandCompletion("one", "lost", "completed"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        journal.add(CommandCompletion("one", "b", "completed"))
    assert list(completions_of(read_index(tmp_path))) == [("one", "a"), ("one", "b")]


def test_source_files_of_trials_are_written_when_they_are_others(tmp_path: Path) -> None:
    files = {f"/package/module_{number}.py": "0123456789abcdef" for number in range(100)}
    written = [TrialCompletion("m", "c", number, "ok", "r", dict(files)) for number in range(20)]
    written.append(TrialCompletion("m", "c", 20, "ok", "r", {}))
    written.append(TrialCompletion("m", "d", 21, "ok", "r", dict(files)))
    with Journal(tmp_path / "staged") as journal:
        for completion in written:
            journal.add(completion)
        (path,) = journals(tmp_path / "staged")
    assert list(read_journal(path)) == written
    assert path.read_text().count("module_7.py") == 2
