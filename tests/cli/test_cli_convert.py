"""``pytest-aorta convert`` makes a recipe of a sweep recipe of AORTA's, and says what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.projects import command
from support.recipes import recipe_of
from support.stage import Stage

from pytest_aorta.registry import Environment, Mitigation
from pytest_aorta.workflow.recipe import Recipe

pytest.importorskip("yaml", reason="a sweep recipe is YAML, which pytest-aorta[sweeps] reads")

#: After the quick reference of AORTA's documentation of recipes.
SWEEP = """
schema_version: 1
ticket: EXAMPLE-001
workload: tiny
trials: 2
steps: 5
trial_isolation: auto
save_logs: false
extra_env:
  GLOBAL_DEBUG_FLAG: "1"
confound:
  threshold: 1.15
  baseline_cell: baseline-local
cells:
  - name: baseline-local
    mitigations: [none]
    environment: local
  - name: tf32_off-local
    mitigations: [tf32_off]
    environment: local
    collect: []
  - name: stack-local
    mitigations: [tf32_off, omp_1]
    environment: local
    trials: 3
  - name: custom-env
    mitigations: [tf32_off]
    environment: local
    extra_env:
      MY_DEBUG_FLAG: "1"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path


def converted(text: str, *words: str) -> tuple[Recipe, str]:
    """What becomes of a sweep, and what is said of it."""
    Path("sweep.yaml").write_text(text)
    result = command("convert", "sweep.yaml", "-o", "-", *words)
    assert result.exit_code == 0, result.stderr
    return recipe_of(result.stdout), result.stderr


def sweep_of(*cells: str) -> str:
    lines = "".join(f"  - {{{cell}}}\n" for cell in cells)
    return f"schema_version: 1\nworkload: tiny\ntrials: 1\nsteps: 1\ncells:\n{lines}"


def test_cells_that_differ_in_mitigations_variables_or_trials_are_one_action(folder: Path) -> None:
    result = command("convert", "sweep.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "recipe: aorta.toml; pytest aorta.toml\n", "")
    text = (folder / "aorta.toml").read_text()
    (action,) = recipe_of(text).actions
    table = action.table
    assert (action.name, table.workload, table.steps, table.environments) == ("sweep", "tiny", 5, ("local",))
    assert table.mitigations == ("none", "tf32_off", "tf32_off,omp_1", "tf32_off,MY_DEBUG_FLAG=1")
    assert (table.trials, table.cell_trials) == (2, {"local-tf32_off+omp_1": 3})
    assert (dict(table.extra_env), table.baseline) == ({"GLOBAL_DEBUG_FLAG": "1"}, "none")
    assert "# ticket: EXAMPLE-001\n" in text
    assert "# stack-local: local-tf32_off+omp_1\n" in text
    assert command("convert", "sweep.yaml").stderr == "Error: aorta.toml is there already; -o FILE names another one\n"
    assert command("convert", "sweep.yaml", "-o", "-").stdout == text
    assert "would not collect it" in command("convert", "sweep.yaml", "-o", "other.toml").stderr


def test_cells_that_differ_in_steps_are_actions_of_their_own(folder: Path) -> None:
    recipe, said = converted(SWEEP.replace("    trials: 3", "    steps: 3"))
    assert {action.name: action.table.steps for action in recipe.actions} == {"baseline-local": 5, "stack-local": 3}
    assert re.findall("comparison of (.*) with baseline-local", said) == ["stack-local"]


def test_what_no_text_of_an_axis_can_hold_has_a_name_of_its_own(folder: Path) -> None:
    recipe, _ = converted(SWEEP.replace('MY_DEBUG_FLAG: "1"', 'DEVICES: "0,1"\n      API_TOKEN: hush'))
    assert recipe.actions[0].table.mitigations[-1] == "tf32_off,custom-env"
    (named,) = recipe.names
    assert isinstance(named, Mitigation)
    assert (named.name, named.env) == ("custom-env", {"DEVICES": "0,1", "API_TOKEN": "hush"})

    image = "environment: {docker: 'rocm/pytorch:6.4', env: {A: '1'}}"
    recipe, _ = converted(SWEEP.replace("environment: local", image))
    (named,) = recipe.names
    assert isinstance(named, Environment)
    assert (named.name, named.docker, named.env) == ("pytorch_6.4", "rocm/pytorch:6.4", {"A": "1"})
    assert [action.table.environments for action in recipe.actions] == [("pytorch_6.4",)]


def test_environments_with_the_same_mitigations_and_options_are_axes(folder: Path) -> None:
    cells = (
        f"name: {name}-{place}, mitigations: [{name}], environment: {place}"
        for place in ("local", "old")
        for name in ("none", "omp_1")
    )
    recipe, said = converted(sweep_of(*cells))
    (action,) = recipe.actions
    assert action.table.environments == ("local", "old")
    assert action.table.mitigations == ("none", "omp_1")
    assert (action.table.baseline, said) == ("local-none", "")

    options = ("{lr: 0.1, kind: a}", "{lr: 0.1, kind: b}", "{lr: 0.1, kind: '1', depth: 2}")
    cells = (
        f"name: c{number}, mitigations: [none], environment: local, workload_config: {each}"
        for number, each in enumerate(options)
    )
    recipe, _ = converted(sweep_of(*cells))
    (action,) = recipe.actions
    assert action.table.config == {"lr": 0.1}
    assert action.table.mitigations == ("config.kind=a", "config.kind=b", 'config.kind="1",config.depth=2')
    assert action.table.baseline == "config.kind=a"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("save_logs: false", "save_log: false", 8, "unknown key 'save_log'; did you mean 'save_logs'? valid: cells, "),
        ("    trials: 3", "    trial: 3", 25, "cells[2]: unknown key 'trial'; did you mean 'trials'?"),
        ("name: custom-env", "name: stack-local", 26, "two cells have the name 'stack-local'"),
        ("baseline_cell: baseline-local", "baseline_cell: base", 13, "confound.baseline_cell = 'base': there are base"),
        ("steps: 5", "steps: 5\nsteps: 6", 7, "steps is there twice"),
        ("steps: 5\n", "", 1, "key 'steps' is missing\n"),
        (
            "mitigations: [none]",
            "mitigations: []",
            16,
            "cells[0].mitigations = []: expected an array that is not empty\n",
        ),
        ("name: stack-local", "name: 's l'", 22, "cells[2].name = 's l': expected a string that matches ^["),
        ('GLOBAL_DEBUG_FLAG: "1"', '1: "1"', 9, "extra_env: key 1: expected a string\n"),
        ("cells:", "cells: [", 14, "is not valid YAML"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_wrong_is_named_with_file_and_line(folder: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in SWEEP
    (folder / "sweep.yaml").write_text(SWEEP.replace(old, new, 1))
    result = command("convert", "sweep.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(rf"Error: sweep.yaml:(\d+): {re.escape(message)}", result.stderr), result.stderr
    assert line <= int(result.stderr.split(":")[2]) <= line + (2 if "YAML" in message else 0)
    assert not (folder / "aorta.toml").exists()


def test_options_keep_their_types_and_what_toml_cannot_have_is_named(folder: Path) -> None:
    config = r"""workload_config: {text: "a\"b\n\u00e9\x7f", "odd key": [1, 2.5, true], deep: {x: .inf}, none: 3}"""
    recipe, _ = converted(SWEEP + config)
    assert recipe.actions[0].table.config == {
        "text": 'a"b\né\x7f',
        "odd key": [1, 2.5, True],
        "deep": {"x": float("inf")},
        "none": 3,
    }
    (folder / "sweep.yaml").write_text(SWEEP + "workload_config: {when: null}\n")
    assert "31: workload_config.when is null: TOML has no such value" in command("convert", "sweep.yaml").stderr
    for text in ("", "[]", "5", "text"):
        (folder / "sweep.yaml").write_text(text)
        said = command("convert", "sweep.yaml").stderr
        assert re.search(r"Error: sweep.yaml:1: the file .*: expected a table\n$", said), said


def test_what_has_no_counterpart_is_said_and_events_end_the_trials_of_a_cell(folder: Path) -> None:
    sweep = SWEEP.replace("threshold: 1.15", "threshold: 1.3").replace("isolation: auto", "isolation: process")
    events = "stop_after: {events: 3, max_trials: 9, event_verdict: error}\n"
    recipe, said = converted(f"{sweep}{events}")
    assert [line.split(": ")[2] for line in said.splitlines()][:1] == ["stop_after"]
    assert {(action.table.speed_margin, action.table.isolation) for action in recipe.actions} == {(0.3, "spawn")}
    recipe, said = converted(SWEEP + events.replace(", event_verdict: error", ""))
    (action,) = recipe.actions
    assert (action.table.trials, action.table.stop_after, action.table.cell_trials, said) == (9, 3, {}, "")


def test_collectors_are_converted_with_their_options_or_refused(folder: Path) -> None:
    options = 'collect: {rocprof: {trace: "kernel, hip", pmc: SQ_WAVES GRBM_COUNT, stats: "true"}, layer_numerics: {}}'
    recipe, said = converted(f"{SWEEP}{options}\n")
    rocprof = "rocprof:trace=kernel+hip:pmc=SQ_WAVES+GRBM_COUNT:stats=true"
    assert (rocprof, "numerics") in {action.table.collect for action in recipe.actions}
    assert "collect" not in said
    for options, why in (
        ("rocprof: {mode: x}", "rocprof has no option 'mode'"),
        ("proton: {mode: env}", "proton:mode=env: env is none of cli"),
        ("layer_numerics: {NANLOG_DIR: /tmp}", "numerics has no option 'NANLOG_DIR'"),
        ("rocprof: {kernel_include_regex: 'a::b'}", "a colon would begin another option"),
    ):
        (folder / "sweep.yaml").write_text(f"{SWEEP}collect: {{{options}}}\n")
        done = command("convert", "sweep.yaml")
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr


PROBE = """
schema_version: 1
mode: probe
trials: 3
timeout_per_trial: 1800
mitigation_axis: [none, tf32_off]
diagnostic_axis: [none, omp_1]
collect_paths: [out/*.log]
confound: {baseline_cell: tf32_off-none}
custom_patterns:
  - {id: died, match: {regex: 'FAIL: (a|b)'}, on_match: fail}
  - {id: seen, match: {regex: 'warn'}, on_match: warn}
"""


def test_a_probe_is_the_command_that_is_given_with_it(folder: Path) -> None:
    recipe, said = converted(PROBE, "--", "python", "train.py", "--text", "a b")
    (action,) = recipe.actions
    table = action.table
    assert (table.command, table.trials, table.timeout) == ("python train.py --text 'a b'", 3, 1800.0)
    assert table.mitigations == ("none", "omp_1", "tf32_off", "tf32_off,omp_1")
    assert table.baseline == "tf32_off"
    assert set(table.fail_on) >= {"@nan", "@nccl", "@hip-fault", "FAIL: (a|b)"}  # as its tier 4, which is on
    assert re.findall("not converted: (.*?):", said) == ["collect_paths", "custom_patterns"]

    assert "pytest-aorta convert sweep.yaml -- python train.py" in command("convert", "sweep.yaml").stderr
    (folder / "sweep.yaml").write_text(PROBE.replace("tf32_off-none", "other"))
    assert "= 'other': there are none-none, none-omp_1" in command("convert", "sweep.yaml", "true").stderr
    (folder / "sweep.yaml").write_text(SWEEP)
    assert "true: only a recipe with mode: probe is about a command" in command("convert", "sweep.yaml", "true").stderr


def test_analyzers_of_aorta_are_a_command(folder: Path) -> None:
    recipe, said = converted("schema_version: 1\nmode: sanitizer\nsanitizer_plan: {target: gfx950}\n")
    (action,) = recipe.actions
    assert action.table.command == f"aorta sweep run --recipe {folder / 'sweep.yaml'}"
    assert "pip install amd-aorta" in said


@pytest.mark.slow
def test_a_sweep_recipe_runs_as_it_is_and_converted(stage: Stage) -> None:
    stage.write(
        tiny="""
        import os

        class Tiny:
            def __init__(self, config): self.steps = config["steps"]
            def setup(self): pass
            def run(self): return {"passed": self.steps == 5 and os.environ["GLOBAL_DEBUG_FLAG"] == "1"}
        """
    )
    stage.register(tiny="tiny:Tiny")
    stage.write_file("sweep.yaml", SWEEP.replace("threshold: 1.15", "threshold: 3"))
    done = stage.run_here("sweep.yaml", "-v")
    done.assert_outcomes(passed=9)
    done.stdout.fnmatch_lines(
        [
            "sweep.yaml: without confound.threshold 3.0: *",
            "sweep.yaml::sweep[[]local-tf32_off+omp_1-2] PASSED*",
            "*trials of sweep*",
            "results: workspace/sweep",
        ]
    )
    again = stage.run_here("sweep.yaml")
    again.assert_outcomes(passed=9)
    again.stdout.fnmatch_lines(["9 of 9 trials had a result already"])

    assert stage.aorta("convert", "sweep.yaml").ret == 0
    stage.run_here("aorta.toml", "-v").assert_outcomes(passed=9)

    stage.write_file("sweep.yaml", SWEEP.replace("steps: 5", "stepz: 5"))
    stage.run_here("sweep.yaml").stdout.fnmatch_lines(["*sweep.yaml:5: unknown key 'stepz'; did you mean 'steps'?*"])
    stage.write_file("other.yaml", "a: 1\n")
    assert stage.run_here("other.yaml").ret == pytest.ExitCode.USAGE_ERROR
