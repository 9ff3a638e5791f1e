"""Environments: the trial runs in them, and what cannot run says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage, counts, make_venv, text

import pytest_aorta

HERE = Path(__file__).parent

IMAGE = "aorta.invalid/no-such-image:0"

#: Stands in for sudo: closes descriptors, and drops all variables but one.
CLOSES = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], env={'FOO': 'set by it'}).returncode)"

#: Seen by trials of every environment.
SHOWN = ("FOO", "BAR", "VIRTUAL_ENV", "PYTHONHASHSEED")


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Stage, pytest.RunResult, dict[str, dict[str, Any]]]]:
    """One run in all environments, good and bad: the stage, pytest's end, and the trials by environment."""
    stage = Stage(tmp_path_factory.mktemp("environments") / "stage")
    stage.copy(HERE / "simple_workloads.py")
    make_venv(stage.path / "good", with_ours=True)
    make_venv(stage.path / "bare", with_ours=False)
    environments: dict[str, dict[str, Any]] = {
        "good": {"venv": "good", "env": {"FOO": "from the environment", "PYTHONHASHSEED": "7"}},
        "bare": {"venv": "bare"},
        "missing": {"venv": "no/such/venv"},
        "with_env": {"launcher": "env FOO=bar", "env": {"BAR": "from the environment"}},
        "with_nice": {"launcher": ["nice", "-n", "5"]},
        "stays_between": {"launcher": ["timeout", "600"]},
        "no_launcher": {"launcher": ["no-such-launcher", "--with", "options"]},
        "bad_launcher": {"launcher": ["sh", "-c", "echo the queue is closed; exit 3"]},
        "image": {"docker": IMAGE},
        "perturbed": {"env": {"MALLOC_PERTURB_": "165"}},
        "closing": {"launcher": [sys.executable, "-S", "-c", CLOSES], "env": {"BAR": "from the environment"}},
        "rocm": {"rocm": "0.1"},
    }
    registry = stage.write_registry(environments=environments)
    axis = [word for name in environments for word in ("--aorta-environment", name)]
    options = ("--aorta-registry-file", registry, "--aorta-config", f"show={','.join(SHOWN)}")
    done = stage.run("simple_workloads.py", "-k", "Tells", *options, *axis, env={"PYTHONHASHSEED": "3"})
    trials = {trial["execution_env"]["name"]: trial for trial in stage.trials().values()}
    assert set(trials) == set(environments), text(done)
    yield stage, done, trials
    stage.close()


Ran = tuple[Stage, pytest.RunResult, dict[str, dict[str, Any]]]


def metrics(ran: Ran, name: str) -> dict[str, Any]:
    trial = ran[2][name]
    assert trial["exit_status"] == "ok", trial["failure"]
    found = trial["result"]["metrics"]
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_a_bad_environment_does_not_stop_the_others(ran: Ran) -> None:
    _, done, trials = ran
    bad = {"bare", "missing", "no_launcher", "bad_launcher"}
    assert {name for name, trial in trials.items() if trial["exit_status"] != "ok"} == bad
    assert (done.ret, counts(done)["errors"], counts(done)["passed"]) == (1, len(bad), len(trials) - len(bad))


def test_a_venv_is_the_interpreter_of_the_trial(ran: Ran) -> None:
    stage, _, trials = ran
    path = str(stage.path / "good")
    seen = metrics(ran, "good")
    assert (seen["prefix"], seen["executable"]) == (path, f"{path}/bin/python")
    assert seen["variables"]["VIRTUAL_ENV"] == path
    trial = trials["good"]
    assert (trial["execution_env"]["kind"], trial["execution_env"]["venv"]) == ("venv", path)
    assert (trial["env"]["python"]["prefix"], trial["env"]["python"]["executable"]) == (path, f"{path}/bin/python")
    assert metrics(ran, "image")["prefix"] == sys.prefix


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", ["no interpreter at {path}/no/such/venv/bin/python", "python -m venv {path}/no/such/venv"]),
        (
            "bare",
            ["pytest-aorta is not installed for {path}/bare/bin/python", "-m pip install pytest-aorta=={version}"],
        ),
        ("no_launcher", ["cannot start 'no-such-launcher'"]),
        ("bad_launcher", ["`sh -c 'echo the queue is closed; exit 3' ", "exit code 3", "the queue is closed"]),
    ],
)
def test_what_cannot_run_says_what_to_do(ran: Ran, name: str, says: list[str]) -> None:
    stage, done, trials = ran
    trial = trials[name]
    assert trial["exit_status"] == "infrastructure_failed"
    assert trial["failure"]["phase"] == "launch"
    for words in says:
        words = words.format(path=stage.path, version=pytest_aorta.__version__)
        assert words in trial["failure"]["message"]
        assert words in done.stdout.str()
    assert trial["env"]["partial"]


def test_a_launcher_prefix_is_honoured(ran: Ran) -> None:
    assert metrics(ran, "with_env")["variables"]["FOO"] == "bar"
    assert metrics(ran, "with_env")["variables"]["BAR"] == "from the environment"
    assert metrics(ran, "with_nice")["niceness"] == min(19, metrics(ran, "image")["niceness"] + 5)
    assert metrics(ran, "stays_between")["variables"]["FOO"] is None


def test_behind_a_launcher_that_passes_nothing_on_a_trial_has_the_variables_of_its_cell(ran: Ran) -> None:
    seen = metrics(ran, "closing")["variables"]
    assert seen == {"FOO": "set by it", "BAR": "from the environment", "VIRTUAL_ENV": None, "PYTHONHASHSEED": None}


def test_a_label_that_is_false_is_in_record_warnings_and_table(ran: Ran) -> None:
    _, done, trials = ran
    there = trials["rocm"]["execution_env"]
    assert (there["verified"], trials["rocm"]["exit_status"]) == (False, "ok")
    [claim] = there["claims"]
    assert (claim["claim"], claim["verified"]) == ("ROCm 0.1", False)
    finding = f"ROCm 0.1: {claim['found']}"
    warning = f"trials of the environment 'rocm' (sidecar:registry.json) do not run in it: {finding}"
    assert any(warning in line for line in done.outlines)
    assert f"1 trial of Tells rocm-none did not run in that environment: {finding}" in done.outlines


def test_what_is_claimed_truly_is_verified_and_what_is_not_claimed_is_not(ran: Ran) -> None:
    verified = {name: trial["execution_env"]["verified"] for name, trial in ran[2].items()}
    assert verified["good"] is True
    assert verified["image"] is not True  # the container of these tests, if there is one, may not show its image
    assert [verified[name] for name in ("with_env", "missing", "bad_launcher")] == [None, None, None]


def test_variables_are_in_place_before_the_interpreter_starts(ran: Ran) -> None:
    """Python reads ``PYTHONHASHSEED`` once, glibc ``MALLOC_PERTURB_`` when it is loaded."""

    def hash_with(seed: str) -> int:
        code = "print(hash('aorta'))"
        command = [sys.executable, "-c", code]
        return int(subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout)

    assert metrics(ran, "good")["hash"] == hash_with("7")
    assert metrics(ran, "image")["hash"] == hash_with("3")
