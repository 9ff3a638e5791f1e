"""A recipe that is one command with trials, what ``pytest-aorta init`` writes, and what a recipe without items says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from support.recipes import noted
from support.stage import Stage

from pytest_aorta.cli.project import init

SCRIPT = "import os\nassert os.environ.get('FIX') == '1', 'not fixed'\nprint('loss nan')\n"

RECIPE = """
command = "python train.py"
trials = 2
mitigations = ["none", "FIX=1"]
fail_on = "loss [0-9]"
gate = "failure_rate(FIX=1)<=10%"
"""


def test_a_command_with_trials_at_the_top_is_run_in_the_folder_of_its_recipe(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write_file("below/train.py", SCRIPT)
    stage.write_file("below/aorta.toml", RECIPE)
    result = stage.run_here("below")
    result.assert_outcomes(passed=2, failed=2)
    assert result.ret == 0  # which the gate decides
    result.stdout.fnmatch_lines(["*trials of train*", "holds: train: failure_rate(FIX=1)<=10%"])
    monkeypatch.chdir(stage.path / "below")
    assert noted(stage.path / "below")["train"] == {
        **{f"local-none/{index}": "workload_failed" for index in range(2)},
        **{f"local-FIX=1/{index}": "ok" for index in range(2)},
    }
    again = stage.run_here("-v", "aorta.toml")  # what was run from above is complete
    assert stage.words(again)["train[local-FIX=1-0]"] == ["KEPT"]
    stage.write_file("below/train.py", f"{SCRIPT}print('loss 1')\n")
    stage.run_here("aorta.toml", "-k", "FIX").assert_outcomes(failed=2)  # the script has changed


def test_what_init_writes_runs_as_it_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stage.path)
    CliRunner().invoke(init, ["."], catch_exceptions=False)
    outcomes = stage.run_here("aorta.toml").parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("failed", 0) == 10
    assert "errors" not in outcomes


def test_a_recipe_without_items_says_why(stage: Stage) -> None:
    stage.write_file("aorta.toml", "")
    stage.write_file("some.aorta.toml", '[[action]]\nname = "one"\ncommand = "ls {directory}"\nproducts = ["x"]\n')
    result = stage.run_here("aorta.toml", "some.aorta.toml")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        [
            "collected 0 items",
            "aorta.toml: it has no action; command = *",
            "some.aorta.toml: one: a command runs on each directory of */workspace, and there is none",
        ]
    )
