"""Trials inside ordinary tests: ``aorta_run``, ``aorta_trial`` with its marker, ``aorta_env``."""

from __future__ import annotations

import pytest
from support.stage import Stage

#: Workloads in a test file: one that tells what it sees, one that hangs, one that crashes.
WORKLOADS = """
import os
import time

import pytest

class Echo:
    default_config = {"steps": 3, "scale": 1.0}

    def __init__(self, config):
        self.config = config

    def setup(self):
        pass

    def run(self):
        seen = {k: v for k, v in os.environ.items() if k.startswith("SEEN_") or k == "OMP_NUM_THREADS"}
        return {"passed": self.config["steps"] != 13, "metrics": {**self.config, **seen, "pid": os.getpid()}}

class Hangs(Echo):
    def run(self):
        time.sleep(1000)

class Crashes(Echo):
    def run(self):
        os.abort()
"""


@pytest.fixture
def echo(stage: Stage) -> Stage:
    stage.write(echo=WORKLOADS)
    stage.register(echo="echo:Echo")
    return stage


def with_tests(stage: Stage, tests: str) -> None:
    """A test file with the workloads above."""
    (stage.path / "test_it.py").write_text(WORKLOADS + tests)


def test_aorta_run_returns_what_became_of_a_trial(echo: Stage) -> None:
    with_tests(
        echo,
        """
def test_registered(aorta_run):
    first = aorta_run("echo", steps=20, mitigations=["omp_1"], extra_env={"SEEN_A": "1"}, config={"scale": 2})
    assert first.exit_status == "ok"
    assert first.failure is None
    seen = dict(first.result.metrics)
    assert seen.pop("pid") != os.getpid()
    assert seen == {"steps": 20, "scale": 2, "OMP_NUM_THREADS": "1", "SEEN_A": "1"}
    assert first.mitigations_applied == ["omp_1"]
    assert first.env["env_vars"]["SEEN_A"] == "1"
    second = aorta_run("echo", steps=13, index=4)
    assert (second.exit_status, second.trial_index) == ("workload_failed", 4)
    assert (second.failure.phase, second.failure.kind) == ("run", "result")

def test_class_of_this_file(aorta_run):
    assert aorta_run(Echo).result.metrics["steps"] == 3
    assert aorta_run(Crashes).failure.signal == "SIGABRT"
    hung = aorta_run(Hangs, timeout=0.5)
    assert (hung.exit_status, hung.failure.kind) == ("timeout", "timeout")
    assert aorta_run(Echo, steps=5).exit_status == "ok"
""",
    )
    result = echo.run_here("test_it.py::test_registered", "test_it.py::test_class_of_this_file")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    folders = {path.split("/")[0] for path in echo.files()}
    assert len(folders) == 2
    assert all("test_it.py" in folder for folder in folders)
    assert sorted(echo.statuses().values()) == ["ok", "ok", "ok", "timeout", "workload_failed", "workload_failed"]
    assert echo.left_running() == []


def test_test_that_starts_trials_fails_and_passes_on_its_own_terms(echo: Stage) -> None:
    with_tests(
        echo,
        """
def test_expects_a_crash(aorta_run):
    assert aorta_run(Crashes).exit_status == "workload_failed"

def test_expects_none(aorta_run):
    assert aorta_run(Crashes).exit_status == "ok"

def test_expects_no_timeout(aorta_run):
    assert aorta_run(Hangs, timeout=0.5).exit_status == "ok"

def test_expects_a_device(aorta_run):
    assert aorta_run(Fails).exit_status == "ok"

class Fails(Echo):
    def setup(self):
        raise LookupError("no device")
""",
    )
    result = echo.run_here("-v", "test_it.py", "-k", "expects")
    # Failures of the tests, with pytest's explanation, whatever became of the trials.
    result.assert_outcomes(passed=1, failed=3)
    for name in ("none", "no_timeout", "a_device"):
        result.stdout.fnmatch_lines([f"*::test_expects_{name} FAILED*"])
    result.stdout.fnmatch_lines([">*assert aorta_run(Crashes).exit_status == ?ok?"])
    result.stdout.no_fnmatch_line("*TIMEOUT*")


def test_what_would_prevent_every_trial_is_an_exception(echo: Stage) -> None:
    (echo.path / "typed.py").write_text(
        """
import pydantic

class Typed:
    class Config(pydantic.BaseModel):
        steps: int = 1

    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True}
"""
    )
    with_tests(
        echo,
        """
from typed import Typed

from pytest_aorta.registry import RegistryError
from pytest_aorta.trials.config import ConfigError

@pytest.mark.parametrize("arguments", [{"mitigations": ["nope"]}, {"environment": "nope"}])
def test_unknown_name(aorta_run, arguments):
    with pytest.raises(RegistryError, match="'nope'; available: .*"):
        aorta_run("echo", **arguments)

def test_unknown_workload(aorta_run):
    with pytest.raises(RegistryError, match="unknown workload 'ecco'; available: .*did you mean 'echo'"):
        aorta_run("ecco")

def test_wrong_config(aorta_run):
    with pytest.raises(ConfigError, match="no option 'stepz'; valid: steps"):
        aorta_run(Typed, config={"stepz": 1})
    with pytest.raises(ConfigError, match="steps='many'"):
        aorta_run(Typed, config={"steps": "many"})
    assert aorta_run(Typed, config={"steps": "2"}).config == {"steps": 2}

def test_class_inside_a_function(aorta_run):
    class Local(Echo):
        pass
    with pytest.raises(ValueError, match="Local is defined inside a function"):
        aorta_run(Local)
""",
    )
    result = echo.run_here("test_it.py", "-k", "test_it.py and not local")
    result.assert_outcomes(passed=5)
    assert list(echo.statuses().values()) == ["ok"]


def test_marked_test_runs_once_per_trial_of_every_cell(echo: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tests(
        echo,
        """
pytestmark = pytest.mark.aorta(trials=3)

@pytest.mark.aorta(trials=2, mitigations=["none", "omp_1,tf32_off"], environments=["local", "default"])
def test_all(aorta_trial):
    result = aorta_trial("echo", steps=7)
    assert result.exit_status == "ok"
    assert result.trial_index == aorta_trial.index
    assert result.mitigations_applied == list(aorta_trial.mitigations)
    assert result.execution_env.name == aorta_trial.environment
    assert result.result.metrics.get("OMP_NUM_THREADS") == ("1" if "omp_1" in aorta_trial.mitigations else None)

@pytest.mark.aorta(mitigations=[("none",)])
@pytest.mark.parametrize("steps", [1, 2])
def test_with_other_parameters(aorta_trial, steps):
    assert aorta_trial(Echo, steps=steps, config={"scale": 5}).config == {"steps": steps, "scale": 5}
""",
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = echo.run_here("test_it.py", "-v", "-k", "test_all or test_with", "--strict-markers")
    result.assert_outcomes(passed=2 * 2 * 2 + 3 * 2)
    assert list(echo.words(result)) == [
        *(
            f"test_all[{environment}-{mitigations}-{index}]"
            for index in (0, 1)
            for environment in ("local", "default")
            for mitigations in ("none", "omp_1+tf32_off")
        ),
        *(f"test_with_other_parameters[local-none-{index}-{steps}]" for index in (0, 1, 2) for steps in (1, 2)),
    ]
    assert len(echo.files()) == 14


def test_marked_test_without_numbers_follows_the_options(echo: Stage) -> None:
    with_tests(
        echo,
        """
def test_follows(aorta_trial, aorta_extra_env):
    assert aorta_trial(Echo).result.metrics["SEEN_B"] == "2"
""",
    )
    arguments = ("--aorta-trials", "2", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    result = echo.run_here("test_it.py::test_follows", "-v", *arguments, "--aorta-extra-env", "SEEN_B=2")
    result.assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("trial=2", "takes the keywords trials, mitigations, environments, timeout, not trial"),
        ("2", "takes the keywords trials, mitigations, environments, timeout, not positional arguments"),
        ("trials=0", "has trials=0; expected a whole number of at least 1"),
        ("trials='many'", "has trials='many'; expected a whole number of at least 1"),
        ("timeout=-1", "has timeout=-1; expected a number of seconds above 0"),
        ("mitigations=['']", "has mitigations=['']; expected a list of mitigation sets, each a text with commas or"),
        ("environments=[]", "has environments=[]; expected a name, or a list of names"),
    ],
)
def test_wrong_marker_is_one_clear_error(echo: Stage, marker: str, message: str) -> None:
    with_tests(echo, f"\n@pytest.mark.aorta({marker})\ndef test_marked(aorta_trial):\n    pass\n")
    result = echo.run_here("test_it.py::test_marked")
    assert result.ret == pytest.ExitCode.USAGE_ERROR  # of a path with "::"; else, it would interrupt the run
    title = next(number for number, line in enumerate(result.outlines) if "ERROR collecting test_it.py" in line)
    assert result.outlines[title + 1].startswith("test_it.py::test_marked: @pytest.mark.aorta ")
    assert message in result.outlines[title + 1]
    assert "short test summary" in result.outlines[title + 2]


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (
            "mitigations=['none', 'tf32of']",
            "unknown mitigation 'tf32of'; available: *none*; did you mean 'tf32_off'[?]",
        ),
        ("mitigations=['none,nope']", "unknown mitigation 'nope'; available: *"),
        ("environments=['lokal']", "unknown environment 'lokal'; available: default, local; did you mean 'local'[?]"),
        ("environments=['local', 'local']", "environment 'local' is given twice; for more trials use trials="),
        ("mitigations=['none', ['none']]", "mitigation set 'none' is given twice; for more trials use trials="),
    ],
)
@pytest.mark.parametrize("argument", ["aorta_trial", "aorta_run"])
def test_unknown_name_in_a_marker_is_an_error_of_the_collection(
    echo: Stage, marker: str, message: str, argument: str
) -> None:
    with_tests(echo, f"\n@pytest.mark.aorta({marker})\ndef test_marked({argument}):\n    pass\n")
    result = echo.run_here("test_it.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines([f"test_it.py::test_marked: @pytest.mark.aorta: {message}", "*short test summary*"])
    result.stdout.no_fnmatch_line("*marked_tests.py*")
    result.stdout.no_fnmatch_line("During handling *")


def test_wrong_argument_of_a_trial_is_refused_in_the_words_of_the_options(echo: Stage) -> None:
    with_tests(
        echo,
        """
from pytest_aorta import RequestError

@pytest.mark.parametrize(("arguments", "words"), [
    ({"steps": 0}, "steps: 0 is not valid; expected a whole number of at least 1"),
    ({"timeout": -1}, "timeout: -1 is not valid; expected a number of seconds above 0"),
    ({"index": -1}, "index: -1 is not valid; expected a whole number of at least 0"),
    ({"mitigations": []}, "mitigations: .* is not valid; expected names separated by commas"),
    ({"environment": None}, "environment: None is not valid; expected a name"),
    ({"config": ["a"]}, "config: .* is not valid; expected KEY=VALUE"),
    ({"extra_env": {"A B": "1"}}, "the extra variables: 'A B' is not valid; expected NAME=VALUE"),
])
def test_wrong(aorta_run, arguments, words):
    with pytest.raises(RequestError, match=words):
        aorta_run(Echo, **arguments)

def test_wrong_workload(aorta_run):
    with pytest.raises(RequestError, match="workload: 3 is not valid; expected a name, or a class"):
        aorta_run(3)

def test_one_text(aorta_run):
    assert aorta_run(Echo, mitigations="none,omp_1").mitigations_applied == ["none", "omp_1"]
""",
    )
    echo.run_here("test_it.py", "-k", "test_wrong or test_one_text").assert_outcomes(passed=9)
    assert len(echo.files()) == 1


def test_aorta_env_is_the_snapshot_of_pytest_itself(echo: Stage) -> None:
    with_tests(
        echo,
        """
def test_env(aorta_env):
    import platform
    plain = aorta_env.to_dict()
    assert platform.python_version() in str(plain)
""",
    )
    echo.run_here("test_it.py::test_env").assert_outcomes(passed=1)
