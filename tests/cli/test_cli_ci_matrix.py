"""``pytest-aorta ci-matrix``: jobs that together run everything."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.projects import MATRIX, ONE, command, project
from support.records import record
from support.stage import Stage

BOTH = """
[[action]]
name = "both"
command = "touch {directories}"
products = ["both"]
previous_actions = ["one"]
[action.group]
maximum_size = 2
"""


def jobs(*arguments: str | Path) -> list[dict[str, Any]]:
    """The jobs as JSON."""
    result = command("ci-matrix", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["jobs"]
    assert isinstance(found, list)
    return found


def write_durations(results: Path, **seconds: float) -> None:
    """One trial of each mitigation."""
    for mitigation, each in seconds.items():
        file = results / "tiny" / f"local-{mitigation}" / "trial_0.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(record(workload="tiny", cell=f"local-{mitigation}", wall_clock_sec=each)))


@pytest.fixture
def folder(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a matrix of two cells, and three directories, as the working directory."""
    stage.write(
        work="class Tiny:\n    def __init__(self, config): pass\n    def setup(self): pass\n"
        "    def run(self): return {'passed': True}\n"
    )
    stage.register(tiny="work:Tiny")
    monkeypatch.syspath_prepend(stage.path)
    monkeypatch.chdir(project(stage.path, MATRIX.replace("steps = 2\n", "") + ONE + BOTH, 3))
    return stage.path


def test_jobs_of_a_recipe_have_all_of_its_items(folder: Path, stage: Stage) -> None:
    found = jobs("--jobs", "3")
    assert [job["shard"] for job in found] == ["1/3", "2/3", "3/3"]
    names = []
    for job in found:
        result = stage.run_here("--collect-only", "-q", *shlex.split(job["arguments"]))
        own = [line for line in result.outlines if "::" in line]
        assert len(own) == job["items"]
        names += own
    whole = [line for line in stage.run_here("--collect-only", "-q", "aorta.toml").outlines if "::" in line]
    assert sorted(names) == sorted(whole)


def test_no_more_jobs_than_there_is_to_do(folder: Path) -> None:
    """A trial and its followers are one, and so are the directories of a group, and each command on a cell."""
    assert len(jobs("--jobs", "50")) == 6 + 2 + 2


def test_jobs_are_balanced_by_the_durations_of_earlier_results(folder: Path) -> None:
    write_durations(folder / "workspace/matrix", none=100, **{"tf32_off+omp_1": 10})
    result = command("ci-matrix", "--jobs", "2")
    assert result.stderr.startswith("the durations of 2 cells are known; with --durations FILE, the jobs are balanced")
    found = jobs("--jobs", "2", "--durations", "d.json")
    assert all(":d.json" in job["arguments"] for job in found)
    known = json.loads((folder / "d.json").read_text())["seconds"]
    assert known == {"matrix[local-none]": 100, "matrix[local-tf32_off+omp_1]": 10}
    times = [job["expected_sec"] for job in found]
    assert abs(times[0] - times[1]) <= 100 + 55
    # Another workspace says as much.
    (folder / "workspace/matrix").rename(folder / "earlier")
    (folder / "old").mkdir()
    (folder / "earlier").rename(folder / "old/matrix")
    assert [job["expected_sec"] for job in jobs("--jobs", "2", "--durations", "e.json", "--results", "old")] == times


def test_jobs_of_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = jobs("--jobs", "2", "--", "--aorta-workload", "tiny", "-k", "a b")
    assert [job["arguments"] for job in found] == [
        f"--aorta-workload tiny -k 'a b' --aorta-shard {number}/2" for number in (1, 2)
    ]
    assert found[0]["items"] is None
    assert found[0]["expected_sec"] is None
    write_durations(tmp_path / "results", none=7)
    found = jobs("--jobs", "2", "--results", "results", "--durations", "d.json", "--", "--aorta-workload", "tiny")
    assert [job["expected_sec"] for job in found] == [7, 0]
    # The file is enough the next time, and is there from the first time on.
    again = jobs("--jobs", "2", "--durations", "d.json", "--", "--aorta-workload", "tiny")
    assert [job["arguments"] for job in again] == [job["arguments"] for job in found]
    assert "--aorta-shard 1/2:new.json" in jobs("--jobs", "2", "--durations", "new.json", "--", "x")[0]["arguments"]
    assert json.loads((tmp_path / "d.json").read_text())["seconds"] == {"tiny[local-none]": 7}


def test_for_github_and_as_a_table(folder: Path) -> None:
    github = command("ci-matrix", "--jobs", "2", "--github").stdout
    assert len(github.splitlines()) == 1
    assert json.loads(github)["include"] == jobs("--jobs", "2")
    shown = command("ci-matrix", "--jobs", "2").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["Shard", "1/2", "2/2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "0"], "Invalid value for '--jobs': 0 is not in the range x>=1."),
        (["--jobs", "2", "--gitub"], "No such option"),
        (["--jobs", "2", "--results", "none", "--", "x"], "--results none: there is no such folder"),
        (["--jobs", "2"], "no aorta.toml or workflow.toml in"),
    ],
)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = command("ci-matrix", *words)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    "words", [["ci-matrix", "--jobs", "2"], ["merge", "old", "new"], ["env", "--json"]], ids=lambda words: words[0]
)
def test_neither_torch_nor_pytest_is_imported(folder: Path, words: list[str]) -> None:
    write_durations(folder / "old", none=1)
    code = (
        "import sys\nfrom pytest_aorta.cli.main import main\n"
        f"main({words!r}, standalone_mode=False)\n"
        "assert not {'torch', 'pytest', '_pytest', 'numpy'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
