"""Cases of Row's ``tests/cli.rs`` on the workflow of those tests; docs/row.md lists the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.projects import command, complete, short_status
from support.stage import Stage

#: As ``setup_sample_workflow`` writes it.
WORKFLOW = """
[workspace]
value_file = "v.json"

[[action]]
name = "one"
command = "touch workspace/{directory}/one"
products = ["one"]

[[action]]
name = "two"
command = "touch workspace/{directory}/two"
products = ["two"]
previous_actions = ["one"]

[[action]]
name = "three"
command = "touch workspace/{directory}/three"
products = ["three"]
[[action.group.include]]
condition = ["/v", "<", 0]
"""


@pytest.fixture
def project(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage.write_file("workflow.toml", WORKFLOW)
    for number in range(10):
        stage.write_file(f"workspace/dir{number}/v.json", json.dumps({"v": number, "v2": number // 2}))
    monkeypatch.chdir(stage.path)
    return stage


def staged(project: Stage) -> list[Path]:
    return list((project.path / ".aorta" / "staged").glob("*"))


def test_a_subcommand_is_required_and_help_names_them() -> None:
    missing, asked = command(), command("--help")
    assert (missing.exit_code, asked.exit_code) == (2, 0)
    for result in (missing, asked):
        assert "Usage: main [OPTIONS] COMMAND" in result.output
        assert {"init", "status", "show", "scan", "clean"} <= set(result.output.split())


def test_what_is_run_is_completed_and_what_follows_is_eligible(project: Stage) -> None:
    assert short_status("--all") == {
        "one": [0, 0, 0, 0, 10, 0],
        "two": [0, 0, 0, 0, 0, 10],
        "three": [0, 0, 0, 0, 0, 0],
    }
    project.run_here("workflow.toml", "-k", "one").assert_outcomes(passed=10, deselected=10)
    assert short_status() == {"one": [10, 0, 0, 0, 0, 0], "two": [0, 0, 0, 0, 10, 0]}
    assert list(short_status("--completed")) == ["one"]


def test_one_run_completes_all_actions_in_their_order(project: Stage) -> None:
    project.run_here("workflow.toml").assert_outcomes(passed=20)
    assert short_status("--all") == {
        "one": [10, 0, 0, 0, 0, 0],
        "two": [10, 0, 0, 0, 0, 0],
        "three": [0, 0, 0, 0, 0, 0],
    }
    assert {path.name for path in (project.path / "workspace" / "dir4").iterdir()} == {"v.json", "one", "two"}


def test_a_run_stages_one_file_which_the_next_status_folds(project: Stage) -> None:
    """In Row that is what a scan does at the end of each job."""
    complete(project.path, "one", 8)
    complete(project.path, "two", 4)
    assert staged(project) == []
    project.run_here("workflow.toml", "-k", "one").assert_outcomes(passed=10, deselected=10)
    assert len(staged(project)) == 1
    assert short_status()["one"] == [10, 0, 0, 0, 0, 0]
    assert staged(project) == []
    command("scan")
    assert short_status() == {"one": [10, 0, 0, 0, 0, 0], "two": [4, 0, 0, 0, 6, 0]}


def test_a_table_without_its_heading(project: Stage) -> None:
    for words in (["status"], ["show", "directories", "-a", "one"]):
        heading, *lines = command(*words).stdout.splitlines()
        assert command(*words, "--no-header").stdout.splitlines() == lines
        assert heading
