"""The index of a workspace: journals of any number of writers, folded into one cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_aorta.workspace.index.cache import Index, load_cache, read_index, write_cache
from pytest_aorta.workspace.index.completions import CommandCompletion, TrialCompletion
from pytest_aorta.workspace.index.journal import Journal, has_ended, journals


def trial(number: int, status: str = "ok", request: str = "r1", **more: str) -> TrialCompletion:
    """A trial of one cell."""
    return TrialCompletion("matrix", more.get("cell", "local-none"), number, status, request, {"/w.py": "d1"})


def letters(index: Index, cell: str = "local-none") -> list[tuple[str, str]]:
    """Requests of a cell's records, and the letters of its trials."""
    return [(each.request, each.letters.decode()) for each in index.cells["matrix"][cell]]


def test_what_was_journaled_is_read_and_then_in_the_cache(tmp_path: Path) -> None:
    with Journal(tmp_path / "staged") as journal:
        journal.add(trial(0))
        journal.add(trial(2, "timeout"))
        journal.add(CommandCompletion("compare", "a b\nc", "completed"))
    index = read_index(tmp_path)
    assert letters(index) == [("r1", "o-t")]
    assert index.commands == {"compare": {"a b\nc": "completed"}}
    assert journals(tmp_path / "staged") == []
    assert read_index(tmp_path).cells == index.cells


def test_a_journal_that_may_still_grow_is_read_and_stays(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "staged")
    journal.add(trial(0))
    assert letters(read_index(tmp_path)) == [("r1", "o")]
    assert not (tmp_path / "index.json").exists()
    journal.add(trial(1, "workload_failed"))
    assert letters(read_index(tmp_path)) == [("r1", "of")]
    journal.close()
    assert letters(read_index(tmp_path)) == [("r1", "of")]
    assert journals(tmp_path / "staged") == []


def test_the_last_completion_of_a_trial_counts(tmp_path: Path) -> None:
    index = Index()
    for completion in [trial(0), trial(1), trial(1, "infrastructure_failed", "r2"), trial(0, "ok", "r2")]:
        index.add(completion)
    assert letters(index) == [("r2", "oi")]
    index.add(CommandCompletion("compare", "a", "failed"))
    index.add(CommandCompletion("compare", "a", None))
    assert index.commands == {"compare": {}}


def test_nothing_is_folded_twice_when_a_reader_was_killed_before_it_removed_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "staged") as journal:
        journal.add(trial(0, "timeout"))
    (path,) = journals(tmp_path / "staged")
    index = read_index(tmp_path)
    index.add(trial(0, "ok"))  # later, by another run
    write_cache(tmp_path, index)
    path.write_text(
        json.dumps(
            {
                "kind": "trial",
                "action": "matrix",
                "cell": "local-none",
                "trial": 0,
                "exit_status": "timeout",
                "request": "r1",
            }
        )
    )
    assert letters(read_index(tmp_path)) == [("r1", "o")]
    assert not path.exists()


def test_torn_lines_and_foreign_files_do_no_harm(tmp_path: Path) -> None:
    with Journal(tmp_path / "staged") as journal:
        journal.add(trial(0))
    (path,) = journals(tmp_path / "staged")
    with path.open("ab") as file:
        file.write(b'{"kind": "later"}\n[]\n{"kind": "trial", "trial": 1}\nnull\n{"kind": "tri')
    (tmp_path / "staged" / "notes.txt").write_text("x")
    assert letters(read_index(tmp_path)) == [("r1", "o")]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"version": 99}', '{"version": 1}', "\udcff", "[" * 100_000),
        '{"version": 1, "sources": [{}], "cells": {"m": {"c": [["r", 0, "oz"]]}}, "commands": {}, "folded": []}',
        '{"version": 1, "sources": [{}], "cells": {"m": {"c": [[{}, 0, "o"]]}}, "commands": {}, "folded": []}',
        '{"version": 1, "sources": [7], "cells": {}, "commands": {}, "folded": []}',
        '{"version": 1, "sources": [], "cells": {}, "commands": {"one": ["a"]}, "folded": []}',
        '{"version": 1, "sources": [], "cells": {}, "commands": {"one": {"a": 7}}, "folded": []}',
        '{"version": 1, "sources": [], "cells": {}, "commands": {"one": {"a": []}}, "folded": []}',
    ],
    ids=lambda text: text[:60],
)
def test_a_damaged_cache_counts_as_empty_and_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    found = load_cache(tmp_path)
    assert (found.cells, found.commands, list(found.damaged)) == ({}, {}, ["index.json"])


WRITER = """
import sys, time
from pathlib import Path
from pytest_aorta.workspace.index.completions import TrialCompletion
from pytest_aorta.workspace.index.journal import Journal
journal = Journal(Path(sys.argv[1]) / "staged")
for number in range(1_000_000):
    journal.add(TrialCompletion("matrix", sys.argv[2], number, "ok", "r1", {"/w.py": "d1"}))
    if number == 50:
        print("writes", flush=True)
    if number > 1000:
        time.sleep(0.001)
"""


def test_writers_that_are_killed_lose_no_line_that_they_have_written(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"cell{n}"], stdout=subprocess.PIPE)
        for n in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writes\n"
        assert not all(map(has_ended, journals(tmp_path / "staged")))
        read_index(tmp_path)  # while they write
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    index = read_index(tmp_path)
    for n in range(3):
        ((_, text),) = letters(index, f"cell{n}")
        assert len(text) > 50
        assert set(text) == {"o"}
    assert journals(tmp_path / "staged") == []


def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    with Journal(tmp_path / "staged") as journal:
        journal.add(trial(0))
    code = f"""
import os
from pathlib import Path
from pytest_aorta.workspace.index.cache import read_index  # the interpreter may be readable for root only
os.setgid(65534)
os.setuid(65534)
print(read_index(Path({str(tmp_path)!r})).cells["matrix"]["local-none"][0].letters.decode())
"""
    if os.getuid() != 0:
        pytest.skip("only root can give its rights up")
    for folder in [tmp_path / "staged", tmp_path, *tmp_path.parents]:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "o\n", done.stderr
    assert len(journals(tmp_path / "staged")) == 1
