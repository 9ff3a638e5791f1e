"""What a user of Row types: directories by their names, actions by patterns, and the options of its commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.projects import COMMANDS, command, complete, project, short_status
from support.stage import Stage

from pytest_aorta.cli.main import main

RECIPE = """
[workspace]
value_file = "v.json"

[[action]]
name = "hello"
command = "echo {directory} >> log && touch workspace/{directory}/hello"
products = ["hello"]
[[action.group.include]]
condition = ["/v", "<", 11]

[[action]]
name = "sum"
command = "echo sum {directories} >> log; for d in {directories}; do touch workspace/$d/sum; done"
products = ["sum"]
previous_actions = ["hello"]
"""


def log(folder: Path) -> list[str]:
    found = (folder / "log").read_text().splitlines()
    (folder / "log").unlink()
    return found


def test_named_directories_are_run_and_no_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    project(stage.path, RECIPE, directories=12)
    monkeypatch.chdir(stage.path)

    def run(*arguments: str) -> pytest.RunResult:
        return stage.aorta("run", *arguments)

    waits = run("dir1", "-a", "sum")
    waits.stdout.fnmatch_lines(["SKIPPED * hello[[]dir1] is not complete, and not selected in this run"])
    assert not (stage.path / "log").exists()
    run("dir1", "dir3", "-a", "hello").assert_outcomes(passed=2)
    assert log(stage.path) == ["dir1", "dir3"]  # and neither dir10 nor dir11
    run("dir3", "-a", "s*", "--", "-n", "1").assert_outcomes(passed=1)
    assert log(stage.path) == ["sum dir3"]  # and not the whole group
    assert short_status() == {"hello": [2, 0, 0, 0, 9, 0], "sum": [1, 0, 0, 0, 1, 10]}
    assert "no action matches 'x'; there are hello, sum" in run("-a", "x").stderr.str()


def test_a_run_stages_what_it_completes_and_the_next_status_folds_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Row that is what a scan does at the end of each job."""
    monkeypatch.chdir(project(stage.path, COMMANDS, 10))
    staged = stage.path / ".aorta" / "staged"
    assert short_status("--all") == {
        "one": [0, 0, 0, 0, 10, 0],
        "two": [0, 0, 0, 0, 0, 10],
        "three": [0, 0, 0, 0, 0, 0],
    }
    complete(stage.path, "two", 4)
    stage.run_here("aorta.toml", "-k", "one").assert_outcomes(passed=10, deselected=10)
    assert len(list(staged.iterdir())) == 1
    assert short_status() == {"one": [10, 0, 0, 0, 0, 0], "two": [0, 0, 0, 0, 10, 0]}
    assert list(short_status("--completed")) == ["one"]
    assert list(staged.iterdir()) == []
    command("scan")
    assert short_status()["two"] == [4, 0, 0, 0, 6, 0]
    stage.run_here("aorta.toml").assert_outcomes(passed=20)
    assert short_status() == {"one": [10, 0, 0, 0, 0, 0], "two": [10, 0, 0, 0, 0, 0]}
    assert {path.name for path in (stage.path / "workspace" / "dir4").iterdir()} == {"v.json", "one", "two"}


def test_a_directory_that_an_earlier_action_leaves_out_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(stage.path, RECIPE, directories=12))
    result = stage.run_here("aorta.toml", "-q")
    result.assert_outcomes(passed=12)  # eleven, and a group
    assert short_status() == {"hello": [11, 0, 0, 0, 0, 0], "sum": [11, 0, 0, 0, 0, 1]}
    assert log(stage.path)[-1] == "sum dir0 dir1 dir10 dir2 dir3 dir4 dir5 dir6 dir7 dir8 dir9"
    alone = stage.aorta("run", "dir11")
    alone.stdout.fnmatch_lines(["SKIPPED * hello does not include dir11, and is not complete there"])


def test_a_changed_command_or_value_makes_completed_directories_stale(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(stage.path, RECIPE, directories=3)
    monkeypatch.chdir(stage.path)
    stage.run_here("aorta.toml").assert_outcomes(passed=4)
    stage.write_file("aorta.toml", RECIPE.replace('"echo {directory}', '"echo now {directory}').replace(">> log;", ";"))
    assert short_status() == {"hello": [0, 0, 3, 0, 0, 0], "sum": [0, 0, 3, 0, 0, 0]}
    assert "to keep it: pytest-aorta scan --accept -a hello dir1" in command("why", "dir1").stdout
    assert command("scan", "--accept", "-a", "sum").exit_code == 0
    command("scan", "--accept", "dir1", "-a", "hello")
    command("scan")  # by itself, it accepts nothing
    assert short_status() == {"hello": [1, 0, 2, 0, 0, 0], "sum": [3, 0, 0, 0, 0, 0]}
    log(stage.path)
    stage.run_here("aorta.toml").assert_outcomes(passed=4)
    assert log(stage.path) == ["now dir0", "now dir2"]
    assert short_status() == {"hello": [3, 0, 0, 0, 0, 0], "sum": [3, 0, 0, 0, 0, 0]}
    stage.write_file("workspace/dir2/v.json", json.dumps({"v": 5}))
    command("scan")
    assert short_status()["hello"] == [2, 0, 1, 0, 0, 0]


def test_why_an_action_is_in_its_state(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = RECIPE.replace('"echo {directory}', '"echo no such file {directory}; test {directory} != dir1 && echo')
    project(stage.path, fails, directories=12)
    monkeypatch.chdir(stage.path)
    assert command("why", "dir0").stdout.splitlines() == [
        *("hello on dir0: eligible", "  nothing keeps it from being run"),
        *("sum on dir0: waiting", "  hello has not run on dir0"),
    ]
    stage.run_here("-q", "aorta.toml").assert_outcomes(passed=11, failed=1)
    assert command("why", "dir1", "dir11").stdout.splitlines() == [
        *(
            "hello on dir1: failed",
            "  | no such file dir1",
            "  | the command ended with exit status 1; no hello in dir1",
        ),
        "  the next run and the next submission try it again",
        "hello on dir11: not run, because hello does not include it",
        *("sum on dir1: waiting", "  hello has failed on dir1"),
        *("sum on dir11: waiting", "  hello does not include dir11, and is not complete there"),
    ]


def test_options_and_variables_of_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path / "old", RECIPE + "group = {maximum_size = 2}\n", directories=5))
    grouped = command("show", "directories", "-a", "sum", "-n", "2").stdout.splitlines()
    assert [line.split()[0] if line else "" for line in grouped] == ["Directory", "dir0", "dir1", "", "dir2", "dir3"]
    together = command("show", "directories", "-a", "sum", "--n-groups", "2", "--no-separate-groups")
    assert together.stdout.splitlines() == [line for line in grouped if line]
    green = CliRunner().invoke(main, ["status", "--color", "always"]).stdout
    assert "\x1b[34m       5\x1b[0m" in green
    assert "\x1b[36m      5\x1b[0m" in green
    assert "\x1b" not in CliRunner(env={"ROW_COLOR": "never"}).invoke(main, ["status"]).stdout
    monkeypatch.chdir(tmp_path)
    made = command("init", "--signac", "new")
    assert 'value_file = "signac_statepoint.json"' in (tmp_path / "new/aorta.toml").read_text(), made.output
    assert command("init", "--signac", "-w", "x", "new2").exit_code == 2


def test_clusters_and_launchers_are_shown() -> None:
    assert 'name = "anvil"' in command("show", "cluster", "--cluster", "anvil").stdout
    assert command("show", "cluster").stdout.startswith('[[cluster]]\nname = "none"')
    names = command("show", "cluster", "--all", "--short").stdout.splitlines()
    assert {"andes", "anvil", "delta", "frontier", "greatlakes"} < set(names)
    assert names[-1] == "none"
    assert "[openmp" in command("show", "launchers").stdout
    assert {"mpi", "openmp"} <= set(command("show", "launchers", "--all", "--short").stdout.splitlines())


def test_names_and_actions_are_completed_by_the_shell(stage: Stage) -> None:
    project(stage.path, RECIPE, directories=12)
    words = {"COMP_CWORD": "2", "_PYTEST_AORTA_COMPLETE": "bash_complete"}
    found = stage.command("pytest-aorta", env={**words, "COMP_WORDS": "pytest-aorta status dir1"})
    assert found.stdout.lines == ["plain,dir1", "plain,dir10", "plain,dir11"]
    found = stage.command("pytest-aorta", env={**words, "COMP_CWORD": "3", "COMP_WORDS": "pytest-aorta run -a h"})
    assert found.stdout.lines == ["plain,hello"]
