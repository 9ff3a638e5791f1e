"""Values of options and variables that make the cells of one table."""

from __future__ import annotations

import json

from support.stage import Stage

WORKLOAD = """
import os

class Lr:
    name = "lr"
    default_config = {"lr": 1.0, "steps": 1}

    def __init__(self, config):
        self.config = config

    def setup(self):
        pass

    def run(self):
        assert self.config["lr"] < 0.5 or os.environ.get("FIX") == "1"
        return {"passed": True}

    def cleanup(self):
        pass
"""

RECIPE = """
[[action]]
name = "matrix"
workload = "lr"
trials = 2
axes.lr = [0.9, 0.1]
axes.extra_env = [{}, {FIX = "1"}]
"""


def test_axes_of_a_recipe_are_cells_of_one_table(stage: Stage) -> None:
    stage.write(lr=WORKLOAD)
    stage.register(lr="lr:Lr")
    stage.write_file("aorta.toml", RECIPE)
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(["*local-config.lr=0.9 *2 of 2*baseline*", "*local-config.lr=0.1+FIX=1 *0 of 2*"])
    records = [json.loads(path.read_text()) for path in stage.path.glob("workspace/matrix/**/trial_?.json")]
    assert sorted(
        {(record["config"]["lr"], record["exit_status"]) for record in records if "FIX" not in record["cell"]}
    ) == [
        (0.1, "ok"),
        (0.9, "workload_failed"),
    ]
    again = stage.run_here("-v", "aorta.toml")
    assert stage.words(again)["matrix[local-config.lr=0.1-0]"] == ["KEPT"]


def test_a_test_has_no_options(stage: Stage) -> None:
    stage.write(test_it="def test_it(): pass")
    result = stage.run_here("test_it.py", "--aorta-vary", "config.lr=1,2", "--aorta-trials", "2")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*config.lr=1: a test has no options; config.NAME=VALUE is for workloads*"])


def test_a_condition_selects_the_value_of_an_axis(stage: Stage) -> None:
    stage.write(lr=WORKLOAD)
    stage.register(lr="lr:Lr")
    axis = ("--aorta-workload", "lr", "--aorta-vary", "config.lr=0.1,0.2,0.3", "--aorta-where", "/config/lr<0.25")
    stage.run_here(*axis).assert_outcomes(passed=2, deselected=1)
