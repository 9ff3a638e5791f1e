"""``pytest-aorta merge``: what was run in several places, in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.projects import ONE, VALUES, command, project, short_status
from support.records import record

CELLS = {"none": ["none"], "omp_1": ["omp_1"]}


def write(results: Path, mitigation: str, trial: int, *, flat: bool = False, **changes: Any) -> Path:
    """The file of a trial, and an artifact."""
    cell = f"local-{mitigation}"
    folder = results / "probe" if flat else results / "probe" / cell
    (folder / f"trial_{trial}").mkdir(parents=True)
    (folder / f"trial_{trial}" / "stdout.log").write_text(f"{cell} {trial}")
    content = record(cell=cell, trial_index=trial, trial_id=f"probe_d0_m{mitigation != 'none':d}_t{trial}", **changes)
    content["mitigations_applied"] = [mitigation]
    file = folder / f"trial_{trial}.json"
    file.write_text(json.dumps(content, indent=1))
    return file


def tree(folder: Path) -> dict[str, bytes]:
    """All files by path, but the matrix and the index."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("matrix.") and ".aorta" not in path.parts
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two results directories, ``a`` and ``b``, of the same plan."""
    monkeypatch.chdir(tmp_path)
    for name, first in (("a", 0), ("b", 2)):
        for mitigation in CELLS:
            for trial in range(first, first + 2):
                write(tmp_path / name, mitigation, trial)
        (tmp_path / name / "packages-1.json").write_text("{}")
    return tmp_path


def test_trials_artifacts_and_history_of_all_sources(here: Path) -> None:
    write(here / "a/.history/20260101T000000.000000Z", "none", 0, host="earlier")
    asked = command("merge", "--dry-run", "a", "b", "all")
    assert (asked.exit_code, asked.output) == (0, "8 trials and 11 other files would be merged into all\n")
    assert not (here / "all").exists()
    for said in ("8 trials and 11 other files merged", "0 trials and 0 other files merged"):
        result = command("merge", "a", "b", "all")
        assert result.exit_code == 0
        assert result.output.startswith(f"{said} into all")
        assert tree(here / "all") == {**tree(here / "a"), **tree(here / "b")}
    assert result.output.endswith("; 8 there already\n")
    assert os.path.samefile(here / "a/probe/local-none/trial_0.json", here / "all/probe/local-none/trial_0.json")
    cells = {cell["cell"]: cell["seen"] for cell in json.loads((here / "all/matrix.json").read_text())["cells"]}
    assert cells == {"local-none": 4, "local-omp_1": 4}
    assert "8 trials in 2 cells" in (here / "all/matrix.md").read_text()
    (here / "a/.x1y2z3.tmp").write_text("of a writer that was killed")
    (here / "a/probe/local-none/trial_0/later.log").touch()  # which its record does not know
    assert command("merge", "a", "all").output.startswith("0 trials and 1 other file merged")


@pytest.mark.parametrize("existing", [False, True], ids=["among sources", "with the destination"])
def test_two_records_of_a_trial_that_differ_are_an_error(here: Path, existing: bool) -> None:
    write(here / "c", "none", 1, host="there")
    if existing:
        command("merge", "a", "all")
    before = tree(here / "all")
    result = command("merge", *([] if existing else ["a"]), "c", "b", "all")
    first = "all" if existing else "a"
    said = f"{first}/probe/local-none/trial_1.json and c/probe/local-none/trial_1.json differ"
    assert (result.exit_code, result.stderr) == (2, f"Error: {said}; nothing was merged\n")
    assert tree(here / "all") == before
    for name in ("a", "c"):
        (here / name / "notes.txt").write_text(name)
    assert "differ (and 1 other pair); nothing was merged" in command("merge", "a", "c", "other").stderr


def test_hosts_with_one_cell_each(here: Path) -> None:
    """In a folder of its own for each cell: a folder has the trials of one cell."""
    for name, mitigation in (("x", "none"), ("y", "omp_1"), ("z", "none")):
        write(here / name, mitigation, int(name == "z"), flat=True)
    command("merge", "x", "xyz")
    assert (here / "xyz/probe/trial_0.json").exists()
    assert command("merge", "z", "xyz").exit_code == 0
    assert (here / "xyz/probe/trial_1.json").exists()
    assert command("merge", "y", "xyz").exit_code == 0
    assert sorted(path for path in tree(here / "xyz") if path.endswith(".json")) == [
        "probe/local-none/trial_0.json",
        "probe/local-none/trial_1.json",
        "probe/local-omp_1/trial_0.json",
    ]
    assert (here / "xyz/probe/local-none/trial_0/stdout.log").read_text() == "local-none 0"
    assert command("merge", "x", "y", "z", "xyz").output.endswith("3 there already\n")


@pytest.mark.parametrize("allowed", [0, 12])
def test_a_killed_merge_is_repeated(here: Path, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it has done so far: a record is there only with all of its artifacts."""
    code = (
        "import itertools, os\n"
        f"left = itertools.count({allowed}, -1)\n"
        "real = os.rename\n"
        "def rename(temporary, target):\n"
        "    if not next(left): os._exit(9)\n"
        "    real(temporary, target)\n"
        "os.rename = rename\n"
        "def refuse(*paths, **options): raise OSError(18, 'other file system')\n"
        "os.link = refuse\n"
        "from pytest_aorta.cli.main import main\n"
        "main(['merge', 'a', 'b', 'all'])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    for path in (here / "all").rglob("trial_?.json"):
        assert (path.with_suffix("") / "stdout.log").exists()

    def refuse(*paths: object, **options: object) -> None:
        raise OSError(18, "other file system")

    monkeypatch.setattr(os, "link", refuse)
    assert command("merge", "a", "b", "all").exit_code == 0
    assert tree(here / "all") == {**tree(here / "a"), **tree(here / "b")}
    cells = {cell["cell"]: cell["seen"] for cell in json.loads((here / "all/matrix.json").read_text())["cells"]}
    assert cells == {"local-none": 4, "local-omp_1": 4}


def test_a_merge_that_was_killed_before_the_matrix(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*paths: object) -> None:
        raise KeyboardInterrupt

    command("merge", "a", "all")
    with monkeypatch.context() as patched:
        patched.setattr("pytest_aorta.triage.matrix.write_merged_matrix", killed)
        assert command("merge", "b", "all").exit_code == 1
    assert command("merge", "b", "all").exit_code == 0
    assert "8 trials in 2 cells" in (here / "all/matrix.md").read_text()
    assert not list((here / "all").glob(".*"))


def test_workspaces_of_a_recipe_and_their_index(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, done in (("one", "dir0"), ("two", "dir1")):
        folder = project(here / name, VALUES + ONE, 3)
        (folder / "workspace" / done / "one").write_text(name)
    project(here / "whole", VALUES + ONE)
    result = command("merge", "one", "two/workspace", "whole")
    assert (result.exit_code, result.stderr) == (0, "")
    assert tree(here / "whole/workspace") == {**tree(here / "one/workspace"), **tree(here / "two/workspace")}
    monkeypatch.chdir(here / "whole")
    assert short_status() == {"one": [2, 0, 0, 0, 1, 0]}
    # Products are copies: a command may write into them again.
    assert not os.path.samefile(here / "one/workspace/dir0/one", here / "whole/workspace/dir0/one")
    (here / "one/workspace/dir0/one").write_text("other")
    result = command("merge", here / "one", ".")
    assert result.exit_code == 2
    assert "differ; nothing was merged" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "all"], "nowhere: there is no such folder; expected a results directory, or a workspace"),
        (["a", "a"], "a is the destination, a"),
        (["a", "a/below"], "a and the destination, a/below, lie in each other"),
        (["a", "b", "a/packages-1.json"], "a/packages-1.json is no folder"),
    ],
)
def test_what_cannot_be_merged(here: Path, words: list[str], message: str) -> None:
    result = command("merge", *words)
    assert (result.exit_code, result.stderr) == (2, f"Error: {message}\n")


def test_links_stay_links_and_hostile_names_are_harmless(here: Path) -> None:
    artifacts = here / "a/probe/local-none/trial_0"
    (artifacts / "loop").symlink_to(".")
    (artifacts / "gone").symlink_to("/nowhere")
    os.mkfifo(artifacts / "fifo\x1b[31m")
    (artifacts / "odd \n\udcff").write_text("x")
    result = command("merge", "a", "all")
    assert result.exit_code == 0
    assert "\x1b" not in result.stderr
    assert os.readlink(here / "all/probe/local-none/trial_0/loop") == "."
    assert os.readlink(here / "all/probe/local-none/trial_0/gone") == "/nowhere"
    assert (here / "all/probe/local-none/trial_0/odd \n\udcff").read_text() == "x"
    assert command("merge", "a", "all").exit_code == 0
