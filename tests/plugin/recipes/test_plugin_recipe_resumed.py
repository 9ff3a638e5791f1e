"""After a change of a recipe, what the change is about runs again."""

from __future__ import annotations

import json

import pytest
from support.projects import short_status
from support.stage import Stage

#: Each trial that runs appends a line.
SOURCE = """
import os

class Logged:
    default_config = {"lr": 0.1}
    def __init__(self, config): self.lr = config["lr"]
    def setup(self): pass
    def run(self):
        with open("ran", "a") as log:
            print(self.lr, os.environ.get("FIXED", "-"), os.environ["AORTA_TRIAL_INDEX"], file=log)
        return {"passed": True}
"""

RECIPE = """
[[action]]
name = "first"
workload = "logged"
trials = 4
mitigations = ["none", "fix"]

[[action]]
name = "second"
workload = "logged"
trials = 2
config = {lr = 0.5}
previous_actions = ["first"]
"""


@pytest.fixture
def recipe(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage.write(work=SOURCE)
    stage.register(logged="work:Logged")
    stage.write_registry(mitigations={"fix": {"FIXED": "1"}})
    stage.write_file("aorta.toml", RECIPE)
    monkeypatch.setenv("PYTEST_AORTA_REGISTRY_FILE", str(stage.path / "registry.json"))
    monkeypatch.chdir(stage.path)
    monkeypatch.syspath_prepend(stage.path)
    return stage


def ran(stage: Stage) -> list[str]:
    """What has run since the last look: ``LR FIXED INDEX`` of each trial."""
    log = stage.path / "ran"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


@pytest.mark.slow
def test_a_changed_value_runs_what_it_is_about_and_status_said_so_before(recipe: Stage) -> None:
    recipe.run_here("aorta.toml").assert_outcomes(passed=10)
    assert len(ran(recipe)) == 10
    recipe.write_file("aorta.toml", RECIPE.replace("lr = 0.5", "lr = 0.25"))
    assert short_status() == {"first": [8, 0, 0, 0, 0, 0], "second": [0, 0, 2, 0, 0, 0]}
    recipe.run_here("aorta.toml").assert_outcomes(passed=10)
    assert ran(recipe) == ["0.25 - 0", "0.25 - 1"]
    recipe.write_registry(mitigations={"fix": {"FIXED": "2"}})
    assert short_status() == {"first": [4, 0, 4, 0, 0, 0], "second": [2, 0, 0, 0, 0, 0]}
    recipe.run_here("aorta.toml").assert_outcomes(passed=10)
    assert ran(recipe) == [f"0.1 2 {index}" for index in range(4)]
    assert short_status() == {"first": [8, 0, 0, 0, 0, 0], "second": [2, 0, 0, 0, 0, 0]}
    histories = [json.loads(path.read_text()) for path in (recipe.path / "workspace").rglob(".history/**/trial_*.json")]
    assert len(histories) == 6
