"""The three spellings of every option, and what is said of values that no option can take."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage import Stage

PLAIN = ("--aorta-workload", "plain")
TYPED = ("--aorta-workload", "typed")


def test_bad_value_of_a_run_without_registered_workloads(offered: Stage) -> None:
    """The options are read and names are looked up at the start, whatever the paths are."""
    result = offered.run_here("offered.py", "--aorta-trials", "0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result = offered.run_here("offered.py", "--aorta-mitigations", "nope")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: unknown mitigation 'nope'; available: *"])
    result.stderr.no_fnmatch_line("*Traceback*")
    assert offered.files() == []


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


def on_command_line(name: str, text: str) -> tuple[str, str]:
    return ("-o", "aorta_order=grouped") if name == "order" else (f"--aorta-{name}", text)


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
            arguments += [word for one in values for word in on_command_line(name, one)]
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
