"""The options of commands, in each of their spellings."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from support.stage import Stage, text

from pytest_aorta import RequestError, RunRequest, run_trials

PYTHON = shlex.quote(sys.executable)
SAYS = "import sys; print('step 1 loss', sys.argv[1]); print(sys.argv[2])"
METRIC = r"step (?P<step>\d+) loss (?P<loss>\S+)"

#: What these options mean, in a record.
CONFIG = {
    "command": f"{PYTHON} says.py inf bad",
    "fail_on": ["b[a]d", "worse"],
    "pass_on": ["good; or better"],
    "metric": [METRIC],
    "fail_on_nonfinite": True,
    "unbuffered": True,
}

INI = rf"""
[pytest]
aorta_command = {PYTHON} says.py inf bad
aorta_fail_on =
    b[a]d
    worse
aorta_pass_on = good; or better
aorta_metric = {METRIC}
aorta_fail_on_nonfinite = true
"""


@pytest.mark.parametrize(
    "source",
    ["command line", *(pytest.param(source, marks=pytest.mark.slow) for source in ("ini", "environment"))],
)
def test_an_option_can_be_given_in_any_of_its_spellings(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    stage.write(says=SAYS)
    options: list[str] = []
    if source == "ini":
        stage.write_file("pytest.ini", INI)
    elif source == "environment":
        monkeypatch.setenv("PYTEST_AORTA_COMMAND", f"{PYTHON} says.py inf bad")
        monkeypatch.setenv("PYTEST_AORTA_FAIL_ON", "b[a]d\nworse")
        monkeypatch.setenv("PYTEST_AORTA_PASS_ON", "good; or better")
        monkeypatch.setenv("PYTEST_AORTA_METRIC", METRIC)
        monkeypatch.setenv("PYTEST_AORTA_FAIL_ON_NONFINITE", "yes")
    else:
        options = ["--aorta-command", f"{PYTHON} says.py inf bad", "--aorta-fail-on=b[a]d", "--aorta-fail-on", "worse"]
        options += ["--aorta-pass-on", "good; or better", "--aorta-metric", METRIC, "--aorta-fail-on-nonfinite"]
    stage.run_here(*options)
    trial = stage.trial("command-says/trial_0.json")
    assert trial["config"] == CONFIG
    assert trial["result"]["failure_count"] == 2


def test_the_workload_has_the_same_as_typed_options(stage: Stage) -> None:
    stage.write(says=SAYS)
    given = {name: value for name, value in CONFIG.items() if name != "unbuffered"}
    (record,) = run_trials(RunRequest("command", 1, config_overrides=given, results_dir=stage.results))
    assert record.config == CONFIG
    assert record.result.failure_count == 2
    assert record.result.metrics["returncode"] == 0

    texts = {"command": f"{PYTHON} says.py 1 x", "fail_on": "[xy]", "pass_on": '["a", "b"]'}
    (record,) = run_trials(RunRequest("command", 1, config_overrides=texts, results_dir=stage.results))
    assert (record.config["fail_on"], record.config["pass_on"]) == (["[xy]"], ["a", "b"])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "command={}: Field required"),
        ({"command": "python 'x"}, "no closing quotation"),
        ({"command": "true", "metric": ["loss"]}, "named groups"),
        ({"command": "true", "fail_on": ["("]}, "unterminated subpattern"),
        (
            {"command": "true", "steps": 4},
            "Command has no option 'steps'; valid: command, fail_on, fa",
        ),
    ],
)
def test_what_it_cannot_take_is_refused_before_a_trial(tmp_path: Path, config: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError) as refused:
        run_trials(RunRequest("command", 1, config_overrides=config, results_dir=tmp_path))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--aorta-command", "python 'x"],
            '--aorta-command: "python \'x" is not valid; expected a program',
        ),
        (
            ["--aorta-command", "HF_TOKEN=hidden python x"],
            "--aorta-command: 'HF_TOKEN=... python x' is not valid",
        ),
        (
            ["--aorta-command", "true", "--aorta-metric", "x"],
            "--aorta-metric: 'x' is not valid; expected a reg",
        ),
        (
            ["--aorta-command", "true", "--aorta-fail-on", "("],
            "--aorta-fail-on: '(' is not valid; expected a reg",
        ),
        (["--aorta-fail-on", "nan"], "--aorta-fail-on: is about the output of a command; add --aorta-command 'CMD'"),
        (
            ["--aorta-command", "true", "--aorta-nproc", "2", "--aorta-isolation", "none"],
            "the ranks of command-true are p",
        ),
        (["--aorta-command", "true", "--aorta-nproc", "2", "--aorta-launcher", "elastic"], "are started by torchrun"),
        (
            ["--aorta-command", "true", "--aorta-nproc", "2", "--aorta-elastic", "tee=3"],
            "--aorta-elastic tee: the ranks of command-true, a command, take max_restarts only",
        ),
        (
            ["--aorta-command", "true", "--aorta-command", "true"],
            "'command-true' is given twice; for more",
        ),
    ],
)
def test_a_wrong_option_ends_the_run_before_it_starts(stage: Stage, options: list[str], said: str) -> None:
    result = stage.run_here(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in text(result)
    assert "hidden" not in text(result)
    assert not stage.results.exists()


def test_several_commands_are_several_workloads_that_can_be_chosen(stage: Stage) -> None:
    stage.write(says=SAYS, other="print(1)")
    commands = ["--aorta-command", f"{PYTHON} says.py 1 x", "--aorta-command", f"{PYTHON} says.py 2 x"]
    commands += ["--aorta-command", f"{PYTHON} other.py", "--aorta-trials", "2", "-v"]
    collected = stage.run_here(*commands, "--collect-only", "-qq")
    ids = [f"command-{name}[local-none-{trial}]" for trial in "01" for name in ("says-1", "says-2", "other")]
    collected.stdout.fnmatch_lines([f"aorta::{name.replace('[', '[[]')}" for name in ids])

    result = stage.run_here(*commands, "-k", "says-2 or other")
    assert sorted(stage.words(result)) == sorted(name for name in ids if "says-1" not in name)
    assert stage.files() == [f"command-{name}/trial_{trial}.json" for name in ("other", "says-2") for trial in "01"]
    result = stage.run_here(*commands, "aorta::command-says-1[local-none-1]")
    assert list(stage.words(result)) == ["command-says-1[local-none-1]"]
