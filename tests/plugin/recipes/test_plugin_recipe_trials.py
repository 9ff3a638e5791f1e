"""Recipes with workloads: smoke, then a matrix, then commands on its cells."""

from __future__ import annotations

import json
import os
import re

import numpy  # noqa: F401  (a stage takes back what was imported on it, and numpy cannot be imported twice)
import pytest
import scipy.special  # noqa: F401  (as numpy)
from support.projects import short_status
from support.recipes import noted
from support.stage import Stage
from support.terminal import Terminal, finish, start_pytest
from support.workloads import SHAKY, shaky_project

from pytest_aorta.triage.reading import Results

RECIPE = """
[[action]]
name = "smoke"
workload = "shaky"
config = {bad = 0}

[[action]]
name = "matrix"
workload = "shaky"
trials = 2
mitigations = ["none", "fix"]
previous_actions = ["smoke"]

[[action]]
name = "compare"
each = "cell"
command = '''
ls {folder} > {folder}/listing
echo {/environment} {/mitigations} {/config} >> log
'''
products = ["listing"]
previous_actions = ["matrix"]
"""


@pytest.fixture(autouse=True)
def shaky(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    shaky_project(stage, monkeypatch, RECIPE)


def change(stage: Stage, old: str, new: str) -> None:
    text = (stage.path / "aorta.toml").read_text()
    assert old in text
    stage.write_file("aorta.toml", text.replace(old, new))


@pytest.mark.slow
def test_each_action_has_its_results_and_commands_see_them(stage: Stage) -> None:
    result = stage.run_here("-v", "aorta.toml")
    result.assert_outcomes(passed=5, failed=2)
    assert [path for path in stage.files("workspace") if path.endswith(".json")] == [
        "matrix/shaky/local-fix/trial_0.json",
        "matrix/shaky/local-fix/trial_1.json",
        "matrix/shaky/local-none/trial_0.json",
        "matrix/shaky/local-none/trial_1.json",
        "smoke/shaky/trial_0.json",
    ]
    assert "trial_1.json" in (stage.path / "workspace/matrix/shaky/local-fix/listing").read_text()
    assert (stage.path / "log").read_text().splitlines() == ['local ["fix"] {}', 'local ["none"] {}']
    assert noted(stage.path)["matrix"] == {
        **{f"local-none/{index}": "workload_failed" for index in range(2)},
        **{f"local-fix/{index}": "ok" for index in range(2)},
    }
    # A second run shows again what is there.
    before = stage.trials("workspace")
    result = stage.run_here("-v", "aorta.toml")
    assert stage.words(result) == {
        "smoke[local-none-0]": ["KEPT"],
        **{f"matrix[local-none-{index}]": ["FAILED"] for index in range(2)},
        **{f"matrix[local-fix-{index}]": ["KEPT"] for index in range(2)},
        "compare[local-fix]": ["KEPT"],
        "compare[local-none]": ["KEPT"],
    }
    assert stage.trials("workspace") == before


def test_a_matrix_is_skipped_with_the_reason_where_the_smoke_test_failed(stage: Stage) -> None:
    change(stage, "bad = 0", "bad = 1")
    result = stage.run_here("-rs", "aorta.toml")
    result.assert_outcomes(failed=1, skipped=6)
    result.stdout.fnmatch_lines(["SKIPPED*: smoke[[]local-none-0[]] failed"])
    change(stage, "bad = 1", "bad = 0")
    stage.run_here("aorta.toml").assert_outcomes(passed=5, failed=2)


@pytest.mark.slow
def test_what_is_expected_to_fail_passes_when_it_does_and_fails_when_not(stage: Stage) -> None:
    change(stage, "config = {bad = 0}", 'expect = "fail"')
    result = stage.run_here("-v", "aorta.toml", "-k", "smoke or matrix")
    result.stdout.fnmatch_lines(["*smoke?local-none-0? REPRODUCED*"])
    result.assert_outcomes(passed=3, failed=2, deselected=2)
    assert stage.trial("smoke/shaky/trial_0.json", "workspace")["exit_status"] == "workload_failed"
    change(stage, 'expect = "fail"', 'expect = "fail"\nconfig = {bad = 0}')
    result = stage.run_here("aorta.toml", "-k", "smoke or matrix")
    result.assert_outcomes(failed=1, skipped=4, deselected=2)
    result.stdout.fnmatch_lines(['the trial is ok, and expected to fail (expect = "fail")'])


def test_a_command_on_each_trial_follows_only_those_that_are_ok(stage: Stage) -> None:
    change(stage, 'each = "cell"', 'each = "trial"')
    change(stage, "{/config}", "{/trial}")
    result = stage.run_here("-rs", "aorta.toml")
    result.assert_outcomes(passed=5, failed=2, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*compare?local-none-1?: matrix?local-none-1? failed"])
    assert (stage.path / "workspace/matrix/shaky/local-fix/trial_1/listing").exists()


@pytest.mark.slow
def test_a_changed_value_runs_what_it_is_about_and_status_said_so_before(stage: Stage) -> None:
    stage.run_here("aorta.toml").assert_outcomes(passed=5, failed=2)
    known = stage.trials("workspace")

    def run_again() -> list[str]:
        before = {**known}
        stage.run_here("aorta.toml").assert_outcomes(passed=5, failed=2)
        known.update((path, stage.trial(path, "workspace")) for path in before)
        return [path for path in before if known[path] != before[path]]

    cells = {name: [f"matrix/shaky/local-{name}/trial_{index}.json" for index in (0, 1)] for name in ("fix", "none")}
    stage.write_registry(mitigations={"fix": {"FIXED": "2"}})
    assert short_status() == {"smoke": [1, 0, 0, 0, 0, 0], "matrix": [0, 2, 2, 0, 0, 0], "compare": [2, 0, 0, 0, 0, 0]}
    assert run_again() == cells["fix"]
    change(stage, "trials = 2", "trials = 2\nconfig = {bad = 2}")
    assert short_status() == {"smoke": [1, 0, 0, 0, 0, 0], "matrix": [0, 0, 4, 0, 0, 0], "compare": [0, 0, 2, 0, 0, 0]}
    assert run_again() == [*cells["fix"], *cells["none"]]
    assert short_status() == {"smoke": [1, 0, 0, 0, 0, 0], "matrix": [2, 2, 0, 0, 0, 0], "compare": [2, 0, 0, 0, 0, 0]}
    assert len(list((stage.path / "workspace").rglob(".history/**/trial_*.json"))) == 6


@pytest.mark.slow
def test_under_xdist_what_runs_follows_complete_actions_and_the_next_run_does_the_rest(stage: Stage) -> None:
    first = stage.run("-n", "2", "--dist", "load", "-rs", "aorta.toml")
    first.stdout.fnmatch_lines(["SKIPPED*smoke?local-none-0? is not complete*; next: pytest --aorta-slots 2 *toml"])
    stage.run("aorta.toml").assert_outcomes(passed=5, failed=2)
    assert noted(stage.path)["compare"] == {"local-none": "completed", "local-fix": "completed"}


@pytest.mark.slow
def test_under_xdist_the_baseline_is_the_first_cell_of_the_recipe_and_not_of_those_that_end(stage: Stage) -> None:
    action = 'command = "sh -c \'sleep $PAUSE\'"\ntrials = 2\nmitigations = ["PAUSE=1", "PAUSE=0"]\n'
    stage.write_file("aorta.toml", action)
    # The controller learns of the recipe from its workers: no option or variable says that trials come.
    unset = {name: "" for name in stage.environ() if name.startswith("PYTEST_AORTA_")}
    result = stage.run("-n", "2", "--dist", "load", env=unset)
    result.assert_outcomes(passed=4)
    assert [line.split()[0] for line in result.outlines if line.endswith("baseline")] == ["local-PAUSE=1"]


@pytest.mark.slow
def test_trials_of_a_recipe_are_in_the_live_view(stage: Stage) -> None:
    held = "def setup(self):\n        while not os.path.exists('go'): pass"
    stage.write(work=SHAKY.replace("def setup(self): pass", held))
    change(stage, 'previous_actions = ["smoke"]\n', "")
    terminal = Terminal()
    process = start_pytest(stage, terminal, "aorta.toml", "-k", "matrix", "--aorta-slots", "2")
    shown = terminal.wait_until(lambda lines: sum("[local-" in line for line in lines) == 2)
    assert any(line.startswith("aorta: 0/4 done eta ") for line in shown)
    (stage.path / "go").touch()
    left = finish(process, terminal)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert any("trials of matrix" in line for line in left)
    assert not [line for line in left if re.match(r"aorta: \d+/\d+ done|  (slot|gw)\d", line)]
    terminal.close()


# Keys that judge the trials


def matrix(stage: Stage, *lines: str) -> None:
    """A recipe of one action with these keys besides."""
    keys = ['name = "matrix"', 'workload = "shaky"', "trials = 2", 'mitigations = ["none", "fix"]', *lines]
    stage.write_file("aorta.toml", "\n".join(["[[action]]", *keys]))


def test_a_gate_on_a_reproduction_excuses_trials_that_are_ok(stage: Stage) -> None:
    matrix(stage, 'expect = "fail"', 'gate = ["failure_rate(none)>=0.5"]')
    result = stage.run_here("-v", "aorta.toml")
    assert result.ret == 0
    assert {name: words[0] for name, words in stage.words(result).items()} == {
        **{f"matrix[local-none-{index}]": "REPRODUCED" for index in range(2)},
        **{f"matrix[local-fix-{index}]": "FAILED" for index in range(2)},
    }


LANES = """
import os

class Lanes:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        if int(os.environ["AORTA_TRIAL_INDEX"]) % 2:
            raise OSError("left lane is down")
        raise RuntimeError("retrained 3 times\\nright lane is slow")
"""


def ways(stage: Stage) -> list[str]:
    content = json.loads((stage.path / "workspace/lanes/matrix.json").read_text())
    return [way["signature"]["message"] for cell in content["cells"] for way in cell["signatures"]]


def test_a_recipe_names_ways_to_fail(stage: Stage) -> None:
    stage.write(lanes=LANES)
    stage.register(shaky="work:Shaky", lanes="lanes:Lanes")
    action = '[[action]]\nname = "lanes"\nworkload = "lanes"\ntrials = 4\n'
    stage.write_file("aorta.toml", action)
    stage.run_here("aorta.toml")
    assert ways(stage) == ["retrained # times", "left lane is down"]
    stage.write_file("aorta.toml", action + '[signatures]\n"bad lane" = "lane is (down|slow)"\n')
    result = stage.run_here("aorta.toml")
    assert ways(stage) == ["bad lane"]
    result.stdout.fnmatch_lines(["*4x bad lane*"])
    read = [trial.facts.signature for trial in Results(stage.path / "workspace/lanes")]
    assert [signature and signature.message for signature in read] == 4 * ["bad lane"]


@pytest.mark.slow
def test_a_new_run_keeps_no_trial_and_makes_again_what_is_made_of_them(stage: Stage) -> None:
    stage.run_here("aorta.toml", "-q")
    before = {path: trial["started_at"] for path, trial in stage.trials("workspace").items()}
    listed = stage.path / "log"
    lines = len(listed.read_text().splitlines())
    again = stage.aorta("run", "--new", "-a", "[!s]*")
    again.stdout.fnmatch_lines(["4 earlier results not kept: it is of an earlier run"])
    now = stage.trials("workspace")
    current = {path: trial["started_at"] for path, trial in now.items() if ".history" not in path}
    assert {path for path in current if current[path] > before[path]} == {path for path in before if "matrix" in path}
    earlier = [trial["started_at"] for path, trial in now.items() if ".history" in path]
    assert sorted(earlier) == sorted(time for path, time in before.items() if "matrix" in path)
    assert len(listed.read_text().splitlines()) == lines + 2
    shown = stage.aorta("report", "workspace/matrix", "--over-time")
    shown.stdout.fnmatch_lines(["Cell *", "* local-none *", "*", "* local-fix *", "*", "picture: over-time.svg"])
    stage.aorta("run")
    assert {path: stage.trial(path, "workspace")["started_at"] for path in current} == current


@pytest.mark.slow
def test_a_weekly_action_is_stale_in_the_next_week_and_runs_again(stage: Stage) -> None:
    change(stage, 'name = "matrix"', 'name = "matrix"\nevery = "week"')
    stage.run_here("aorta.toml", "-q")
    assert short_status()["matrix"][:3] == [2, 2, 0]
    for path, trial in stage.trials("workspace").items():
        file = stage.path / "workspace" / path
        file.write_text(json.dumps({**trial, "started_at": "2001-02-03T04:05:06.007+00:00"}))
        os.utime(file, (981173106, 981173106))
    assert short_status()["matrix"] == [0, 0, 4, 0, 0, 0]
    stage.run_here("aorta.toml", "-q")
    assert short_status()["matrix"][:3] == [2, 2, 0]
    assert short_status()["smoke"][:3] == [1, 0, 0]
    started = {path: trial["started_at"][:4] for path, trial in stage.trials("workspace").items()}
    assert [year for path, year in started.items() if path.startswith("smoke")] == ["2001"]
    assert sorted(started.values()).count("2001") == 5  # four of them in the history
