"""``pytest-aorta ci-matrix``: jobs that together run everything."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.projects import MATRIX, ONE, command, project
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
    result = command("ci-matrix", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["jobs"]
    assert isinstance(found, list)
    return found


def test_jobs_of_a_recipe_have_all_of_its_items(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.write(
        work="class Tiny:\n    def __init__(self, config): pass\n    def setup(self): pass\n"
        "    def run(self): return {'passed': True}\n"
    )
    stage.register(tiny="work:Tiny")
    monkeypatch.syspath_prepend(stage.path)
    monkeypatch.chdir(project(stage.path, MATRIX.replace("steps = 2\n", "") + ONE + BOTH, 3))
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
    # A trial and its followers are one, and so are the directories of a group, and each command on a cell.
    assert len(jobs("--jobs", "50")) == 6 + 2 + 2
    github = command("ci-matrix", "--jobs", "3", "--github").stdout
    assert len(github.splitlines()) == 1
    assert json.loads(github)["include"] == found
    shown = command("ci-matrix", "--jobs", "3").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["Shard", "1/3", "2/3", "3/3"]


def test_jobs_of_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = jobs("--jobs", "2", "--", "--aorta-workload", "tiny", "-k", "a b")
    assert [job["arguments"] for job in found] == [
        f"--aorta-workload tiny -k 'a b' --aorta-shard {number}/2" for number in (1, 2)
    ]
    assert found[0]["items"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "0"], "Invalid value for '--jobs': 0 is not in the range x>=1."),
        (["--jobs", "2", "--gitub"], "No such option"),
        (["--jobs", "2"], "no aorta.toml or workflow.toml in"),
    ],
)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = command("ci-matrix", *words)
    assert result.exit_code == 2
    assert message in result.stderr
