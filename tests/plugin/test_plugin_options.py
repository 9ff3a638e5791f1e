"""The three spellings of every option, and what is said of values that no option can take."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.stage import Stage

WORKLOADS = """
import os

import pydantic

class Plain:
    def __init__(self, config): self.config = config
    def setup(self): pass
    def run(self): return {"passed": True, "metrics": {**self.config, "SEEN": os.environ.get("SEEN")}}

class Typed(Plain):
    class Config(pydantic.BaseModel):
        size: int = 1
        mode: str = "fast"

    def __init__(self, config): self.config = config.model_dump()
"""


@pytest.fixture
def offered(stage: Stage) -> Stage:
    stage.write(offered=WORKLOADS)
    stage.register(plain="offered:Plain", typed="offered:Typed")
    return stage


PLAIN = ("--aorta-workload", "plain")
TYPED = ("--aorta-workload", "typed")

#: Arguments, and what the one line of the error has to say.
BAD = {
    "workload": (("--aorta-workload", "plian"), "unknown workload 'plian'; available: .*plain.*did you mean 'plain'"),
    "environment": (
        (*PLAIN, "--aorta-environment", "lokal"),
        "unknown environment 'lokal'; available: default, local; did you mean 'local'",
    ),
    "mitigation": (
        (*PLAIN, "--aorta-mitigations", "none,tf32off"),
        "unknown mitigation 'tf32off'; available: .*; did you mean 'tf32_off'",
    ),
    "collector": ((*PLAIN, "--aorta-collect", "rokprof"), "unknown collector 'rokprof'; available: .*rocprof"),
    "trials 0": ((*PLAIN, "--aorta-trials", "0"), "--aorta-trials: '0' is not valid; expected a whole number of at le"),
    "trials x": ((*PLAIN, "--aorta-trials", "x"), "--aorta-trials: 'x' is not valid; expected a whole number of at le"),
    "timeout 0": ((*PLAIN, "--aorta-timeout", "0"), "--aorta-timeout: '0' is not valid; expected a number of seconds"),
    "timeout nan": ((*PLAIN, "--aorta-timeout", "nan"), "--aorta-timeout: 'nan' is not valid; expected a number of se"),
    "isolation": ((*PLAIN, "--aorta-isolation", "thread"), "--aorta-isolation: 'thread' .*one of fork, spawn, none"),
    "extra-env": ((*PLAIN, "--aorta-extra-env", "NOVALUE"), "--aorta-extra-env: a text without '=' .*NAME=VALUE"),
    "extra-env name": ((*PLAIN, "--aorta-extra-env", "A B=secret"), "--aorta-extra-env: 'A B' .*letters, digits and"),
    "rank": ((*PLAIN, "--aorta-extra-env", "RANK=0"), "the extra variables: RANK is set by the launcher of the ranks"),
    "config": ((*TYPED, "--aorta-config", "size"), "--aorta-config: 'size' is not valid; expected KEY=VALUE"),
    "config key": ((*TYPED, "--aorta-config", "siez=2"), "Typed has no option 'siez'; valid: mode, size"),
    "config type": ((*TYPED, "--aorta-config", "size=big"), "Typed: size='big': .*valid integer"),
    "steps": ((*TYPED, "--aorta-steps", "3"), "Typed has no option 'steps'; valid: mode, size"),
    "same set": (
        (*PLAIN, "--aorta-mitigations", "omp_1", "--aorta-mitigations", "omp_1"),
        "mitigation set 'omp_1' is given twice; for more trials use --aorta-trials",
    ),
    "same workload": ((*PLAIN, *PLAIN), "workload 'plain' is given twice"),
    "no registry file": ((*PLAIN, "--aorta-registry-file", "none.json"), "none.json.*No such file or directory"),
    "broken registry file": ((*PLAIN, "--aorta-registry-file", "broken.json"), r"broken.json:2:1: not valid JSON"),
    "wrong registry file": (
        (*PLAIN, "--aorta-registry-file", "wrong.json"),
        "wrong.json: unknown key 'mitigation'; va",
    ),
    "name twice": (
        (*PLAIN, "--aorta-registry-file", "twice.json"),
        "'tf32_off' is offered twice, by .* and by .*twice",
    ),
    "nproc": ((*PLAIN, "--aorta-nproc", "2"), "workload plain is single_process; --aorta-nproc 2 does not apply to it"),
    "empty": ((*PLAIN, "--aorta-mitigations", "none,"), "--aorta-mitigations: 'none,' .*names separated by commas"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_value_is_one_line_that_names_it_and_what_is_valid(offered: Stage, name: str) -> None:
    (offered.path / "broken.json").write_text("{\n")
    (offered.path / "wrong.json").write_text('{"version": 1, "mitigation": {}}')
    offered.write_registry("twice.json", mitigations={"tf32_off": {}})
    arguments, message = BAD[name]
    result = offered.run_here(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line.strip()]
    assert len(lines) == 1
    assert re.search(f"^ERROR: .*{message}", lines[0])
    assert "secret" not in lines[0]
    assert not any(line.startswith(("Traceback", "INTERNALERROR")) for line in result.outlines)
    assert offered.files() == []
    assert offered.left_running() == []


def test_bad_value_of_a_run_without_registered_workloads(offered: Stage) -> None:
    """The options are read at the start, whatever the paths are; names are looked up for the workloads of the file."""
    result = offered.run_here("offered.py", "--aorta-trials", "0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result = offered.run_here("offered.py", "--aorta-mitigations", "nope")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting offered.py*", "unknown mitigation 'nope'; available: *"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert offered.files() == []


def test_bad_value_names_the_ini_file_or_the_variable_it_came_from(
    offered: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (offered.path / "pytest.ini").write_text("[pytest]\naorta_trials = many\n")
    result = offered.run_here(*PLAIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: aorta_trials in */pytest.ini: 'many' is not valid; expected a whole number *"])
    monkeypatch.setenv("PYTEST_AORTA_TRIALS", "few")
    result = offered.run_here(*PLAIN)
    result.stderr.fnmatch_lines(["ERROR: the environment variable PYTEST_AORTA_TRIALS: 'few' is not valid; expected *"])
    # Not even a look at the value when it is overruled, and none when pytest is only asked for help.
    offered.run_here(*PLAIN, "--aorta-trials", "2").assert_outcomes(passed=2)
    for flag in ("--help", "--version"):
        assert offered.run_here(flag).ret == pytest.ExitCode.OK


INI = """
{section}
aorta_workload = {workloads}
aorta_trials = {quote}2{quote}
aorta_mitigations = {sets}
aorta_environment = {environments}
aorta_extra_env = {variables}
aorta_config = {config}
aorta_results_dir = {quote}out{quote}
aorta_timeout = {quote}50{quote}
aorta_isolation = {quote}fork{quote}
aorta_order = {quote}grouped{quote}
aorta_registry_file = {files}
"""

VALUES: dict[str, list[str]] = {
    "workloads": ["plain"],
    "sets": ["none", "mine,omp_1"],
    "environments": ["default"],
    "variables": ["SEEN=a,b", "OTHER=1"],
    "config": ["x=[1, 2]", "y=z"],
    "files": ["mine.json"],
}


def _ini() -> str:
    lists = {key: "\n    " + "\n    ".join(values) for key, values in VALUES.items()}
    return INI.format(section="[pytest]", quote="", **lists)


def _toml(section: str) -> str:
    return INI.format(section=section, quote='"', **{key: str(values) for key, values in VALUES.items()})


@pytest.mark.parametrize("source", ["pytest.ini", "tool.pytest.ini_options", "environment", "command line"])
def test_option_can_be_given_in_any_of_its_spellings(
    offered: Stage, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    offered.write_registry("mine.json", mitigations={"mine": {"MINE": "1"}})
    arguments: list[str] = []
    if source == "pytest.ini":
        (offered.path / "pytest.ini").write_text(_ini())
    elif source == "tool.pytest.ini_options":
        (offered.path / "pyproject.toml").write_text(_toml("[tool.pytest.ini_options]"))
    settings: dict[str, str | list[str]] = {
        "workload": VALUES["workloads"],
        "trials": "2",
        "mitigations": VALUES["sets"],
        "environment": VALUES["environments"],
        "extra-env": VALUES["variables"],
        "config": VALUES["config"],
        "results-dir": "out",
        "timeout": "50",
        "isolation": "fork",
        "order": "grouped",
        "registry-file": VALUES["files"],
    }
    for name, value in settings.items():
        values = [value] if isinstance(value, str) else value
        if source == "environment":
            monkeypatch.setenv(f"PYTEST_AORTA_{name.upper().replace('-', '_')}", ";".join(values))
        elif source == "command line":
            arguments += [word for one in values for word in (f"--aorta-{name}", one)]
    result = offered.run("-v", *arguments)
    result.assert_outcomes(passed=4)
    names = [f"plain[default-{names}-{index}]" for names in ("none", "mine+omp_1") for index in (0, 1)]
    assert list(offered.words(result)) == names
    offered.results = offered.path / "out"
    trial = offered.trial("plain/default-mine+omp_1/trial_1.json")
    assert trial["config"] == {"x": [1, 2], "y": "z"}
    assert trial["result"]["metrics"]["SEEN"] == "a,b"
    assert trial["env"]["env_vars"].items() >= {"MINE": "1", "OTHER": "1", "OMP_NUM_THREADS": "1"}.items()


def test_command_line_beats_variable_beats_ini_file(offered: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (offered.path / "pytest.ini").write_text("[pytest]\naorta_workload = plain\naorta_trials = 1\n")

    def collected(*arguments: str) -> int:
        return sum(line.startswith("aorta::") for line in offered.run_here("--collect-only", "-q", *arguments).outlines)

    assert collected() == 1
    monkeypatch.setenv("PYTEST_AORTA_TRIALS", "2")
    assert collected() == 2
    assert collected("--aorta-trials", "3") == 3
    # What can be repeated is replaced as a whole.
    assert collected("--aorta-trials", "1", "--aorta-workload", "typed", "--aorta-workload", "plain") == 2
    monkeypatch.setenv("PYTEST_AORTA_WORKLOAD", "typed")
    assert collected("--aorta-trials", "1") == 1
    # An empty variable says nothing.
    monkeypatch.setenv("PYTEST_AORTA_TRIALS", "")
    assert collected() == 1


def test_registry_file_of_an_ini_file_lies_beside_it(offered: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    offered.write_registry("mine.json", mitigations={"mine": {"MINE": "1"}})
    (offered.path / "pytest.ini").write_text("[pytest]\naorta_registry_file = mine.json\n")
    below = offered.path / "below"
    below.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(offered.path))
    monkeypatch.chdir(below)
    offered.run_here(*PLAIN, "--aorta-mitigations", "mine").assert_outcomes(passed=1)
    # Results are where pytest was started.
    assert (below / "results" / "plain" / "trial_0.json").is_file()


def test_typed_options_are_read_as_their_type(offered: Stage) -> None:
    result = offered.run_here(*TYPED, "--aorta-config", "size=64", "--aorta-config", "mode=5")
    result.assert_outcomes(passed=1)
    metrics: dict[str, Any] = offered.trial("typed/trial_0.json")["result"]["metrics"]
    assert metrics == {"size": 64, "mode": "5", "SEEN": None}
