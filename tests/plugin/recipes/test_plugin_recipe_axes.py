"""Values of options and variables that make the cells of one table."""

from __future__ import annotations

import json

import pytest
from support.stage import Stage

WORKLOAD = """
import os

class Lr:
    name = "lr"
    default_config = {"lr": 1.0, "steps": 1}

    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self):
        assert self.config["lr"] < 0.5 or os.environ.get("FIX") == "1"
        return {"passed": True}
"""


@pytest.fixture(autouse=True)
def lr(stage: Stage) -> None:
    stage.write(lr=WORKLOAD)
    stage.register(lr="lr:Lr")


RECIPE = """
[[action]]
name = "matrix"
workload = "lr"
trials = 2
axes.lr = [0.9, 0.1]
axes.extra_env = [{}, {FIX = "1"}]
"""


def test_axes_of_a_recipe_are_cells_of_one_table(stage: Stage) -> None:
    stage.write_file("aorta.toml", RECIPE)
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(["*config.lr=0.9 *2 of 2*baseline*", "*config.lr=0.1 FIX=1 *0 of 2*"])
    records = [json.loads(path.read_text()) for path in stage.path.glob("workspace/matrix/**/trial_?.json")]
    assert sorted(
        {(record["config"]["lr"], record["exit_status"]) for record in records if "FIX" not in record["cell"]}
    ) == [
        (0.1, "ok"),
        (0.9, "workload_failed"),
    ]
    again = stage.run_here("-v", "aorta.toml")
    assert stage.words(again)["matrix[local-config.lr=0.1-0]"] == ["KEPT"]


NAMED = """
workload = "lr"
trials = 3
mitigations = ["none", "small", "large"]
environments = ["local", "boxed"]
cell_trials = {"local-none" = 5}
extra_env = {OTHER = "1"}
[mitigation.small]
"config.lr" = 0.1
[mitigation.large]
"config.lr" = 0.9
FIX = "1"
[environment.boxed]
docker = "rocm/pytorch:6.4"
"""


@pytest.mark.slow
def test_a_recipe_names_mitigations_with_options_and_environments_of_its_own(stage: Stage) -> None:
    stage.write_file("aorta.toml", NAMED)
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(passed=12, failed=8)
    # What differs in an option is no second baseline.
    result.stdout.fnmatch_lines(
        ["*local-none *5 of 5*baseline*", "*local-small *0 of 3 *", "*boxed-none*3 of 3*", "*boxed-large *0 of 3*"]
    )
    result.stdout.no_fnmatch_line("*second baseline*")
    trial = json.loads((stage.path / "workspace/lr/lr/boxed-small/trial_0.json").read_text())
    assert (trial["config"]["lr"], trial["execution_env"]["image"]) == (0.1, "rocm/pytorch:6.4")
    status = stage.aorta("status")
    status.stdout.fnmatch_lines(["lr *12 *8 *0 *"])

    stage.write_file("aorta.toml", NAMED.replace('"local-none" = 5', '"local-non" = 5'))
    stage.run_here("aorta.toml").stdout.fnmatch_lines(["*cell_trials: there is no cell 'local-non', but local-none, *"])
    stage.write_file("aorta.toml", NAMED.replace('FIX = "1"', "FIX = 1"))
    stage.run_here("aorta.toml").stdout.fnmatch_lines(["*aorta.toml:9: mitigation.large.FIX: the value must be a*"])
    stage.write_file("aorta.toml", NAMED.replace("mitigation.large", "mitigation.omp_1"))
    stage.run_here("aorta.toml").stdout.fnmatch_lines(["*the mitigation name 'omp_1' is offered twice*"])


@pytest.mark.slow
def test_failures_end_the_trials_of_a_cell(stage: Stage) -> None:
    recipe = 'workload = "lr"\ntrials = 6\nstop_after = 2\nmitigations = ["config.lr=0.9", "config.lr=0.1"]\n'
    stage.write_file("aorta.toml", recipe)
    result = stage.run_here("aorta.toml")
    result.assert_outcomes(failed=2, passed=6, skipped=4)
    result.stdout.fnmatch_lines(["lr: 1 cell ended by failures, 4 trials saved (--aorta-stop=failures=2)"])
    stage.aorta("status").stdout.fnmatch_lines(["lr *6 *2 *0 *0 *0 *0 *"])
    # More are asked for: earlier ends are none.
    stage.write_file("aorta.toml", recipe.replace("stop_after = 2", "stop_after = 3"))
    stage.aorta("status").stdout.fnmatch_lines(["lr *6 *2 *0 *0 *4 *"])
    ended = stage.run("aorta.toml", "-n2").parseoutcomes()
    assert (ended["passed"], ended["failed"] + ended["skipped"]) == (6, 6)
    assert ended["failed"] in (3, 4)  # one may run when another is the third

    options = ("--aorta-workload", "lr", "--aorta-config", "lr=0.9", "--aorta-trials", "5")
    stage.run_here(*options, "--aorta-stop", "failures=1").assert_outcomes(failed=1, skipped=4)
    refused = stage.run_here(*options, "--aorta-stop", "failures=0")
    assert refused.ret == 4


def test_a_test_has_no_options(stage: Stage) -> None:
    stage.write(test_it="def test_it(): pass")
    result = stage.run_here("test_it.py", "--aorta-vary", "config.lr=1,2", "--aorta-trials", "2")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*config.lr=1: a test has no options; config.NAME is for workloads*"])


def test_a_condition_selects_the_value_of_an_axis(stage: Stage) -> None:
    axis = ("--aorta-workload", "lr", "--aorta-vary", "config.lr=0.1,0.2,0.3", "--aorta-where", "/config/lr<0.25")
    stage.run_here(*axis).assert_outcomes(passed=2, deselected=1)


def test_a_baseline_without_a_trial_yet_is_no_obstacle_for_a_report(stage: Stage) -> None:
    stage.write_file("aorta.toml", 'workload = "lr"\nmitigations = ["none", "FIX=1"]\nbaseline = "none"\n')
    stage.run_here("aorta.toml::lr[local-FIX=1-0]").assert_outcomes(passed=1)
    done = stage.aorta("report", "workspace/lr")
    assert done.ret == 0, done.stderr.str()


@pytest.mark.slow
def test_a_recipe_varies_variables_as_the_option_does(stage: Stage) -> None:
    script = "import os, sys; sys.exit(os.environ['A'] == os.environ['B'] == '1')"
    stage.write(**{"both": script})
    recipe = """
[[action]]
name = "matrix"
command = "python both.py"
trials = 6
vary = ["A=0,1", "B=0,1"]
"""
    stage.write_file("aorta.toml", recipe)
    result = stage.run_here("aorta.toml")
    result.stdout.fnmatch_lines(["It needs both A=1 and B=1: 6 of 6 failed, 0 of 18 otherwise (p = 0.0*).*"])
    matrix = json.loads((stage.path / "workspace/matrix/matrix.json").read_text())
    assert matrix["factorials"][0]["findings"][0]["kind"] == "needs"
    stage.write_file("aorta.toml", recipe.replace("A=0,1", "A"))
    wrong = stage.run_here("aorta.toml")
    wrong.stdout.fnmatch_lines(["*vary*expected a variable and at least two values*"])
