"""Trials inside ordinary tests: ``aorta_run``, alone and in marked tests, and ``aorta_env``."""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

#: Workloads in a test file: one that tells what it sees, some that fail.
WORKLOADS = """
import os
import signal
import time

import pytest

class Echo:
    default_config = {"steps": 3, "scale": 1.0}
    def __init__(self, config): self.config = config
    def setup(self): print("setting up")
    def run(self):
        seen = {k: v for k, v in os.environ.items() if k.startswith("SEEN_") or k == "OMP_NUM_THREADS"}
        return {"passed": self.config["steps"] != 13, "metrics": {**self.config, **seen, "pid": os.getpid()}}

class Hangs(Echo):
    def run(self): time.sleep(1000)

class Crashes(Echo):
    def run(self):
        print("about to crash", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

class Differs(Echo):
    def run(self): raise ValueError("three of four\\nand a second line")

class Fails(Echo):
    def setup(self): raise LookupError("no device")
"""


@pytest.fixture
def echo(stage: Stage) -> Stage:
    stage.write(echo=WORKLOADS)
    stage.register(echo="echo:Echo")
    return stage


def with_tests(stage: Stage, tests: str) -> None:
    """A test file with the workloads above."""
    (stage.path / "test_it.py").write_text(f"{WORKLOADS}\n{tests}")


@pytest.mark.slow
def test_aorta_run_returns_what_became_of_a_trial(echo: Stage) -> None:
    with_tests(
        echo,
        """
def test_registered(aorta_run):
    first = aorta_run("echo", steps=20, mitigations=["omp_1"], extra_env={"SEEN_A": "1"}, config={"scale": 2})
    assert (first.exit_status, first.failure) == ("ok", None)
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
    assert aorta_run(Crashes).failure.signal == "SIGSEGV"
    hung = aorta_run(Hangs, timeout=0.5)
    assert (hung.exit_status, hung.failure.kind) == ("timeout", "timeout")
    assert aorta_run(Echo, mitigations="none,omp_1").mitigations_applied == ["none", "omp_1"]

def test_env(aorta_env):
    import platform
    assert platform.python_version() in str(aorta_env.to_dict())
""",
    )
    echo.run_here("test_it.py").assert_outcomes(passed=3)
    folders = {path.split("/")[0] for path in echo.files()}
    assert len(folders) == 2
    assert all("test_it.py" in folder for folder in folders)
    assert sorted(echo.statuses().values()) == ["ok", "ok", "ok", "timeout", "workload_failed", "workload_failed"]
    assert echo.left_running() == []


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_have_it")
def test_a_test_fails_and_passes_on_its_own_terms_and_shows_the_trials_that_failed(echo: Stage) -> None:
    with_tests(
        echo,
        """
def test_expects_a_crash(aorta_run):
    assert aorta_run(Crashes).exit_status == "workload_failed"

def test_expects_none(aorta_run):
    assert aorta_run(Crashes).result.passed

def test_expects_no_timeout(aorta_run):
    assert aorta_run(Hangs, timeout=0.5).exit_status == "ok"

def test_expects_a_device(aorta_run):
    assert aorta_run(Fails).exit_status == "ok"

def test_late(aorta_run):
    for cls in (Echo, Differs, Echo):
        result = aorta_run(cls)
    assert result.result.metrics["loss"] < 1

def test_of_its_own(aorta_run):
    assert aorta_run(Echo).result.passed is None

def test_many(aorta_run):
    assert [aorta_run(Differs).exit_status for _ in range(5)] == []
""",
    )
    result = echo.run("test_it.py", env={"PYTEST_AORTA_EXTRA_ENV": "A_TOKEN=hunter2,PLAIN=swordfish"})
    result.assert_outcomes(passed=1, failed=6)
    result.stdout.no_fnmatch_line("*TIMEOUT*")
    text = result.stdout.str()
    assert "swordfish" not in text
    assert "hunter2" not in text

    crash = section(text, "test_expects_none")
    assert ">       assert aorta_run(Crashes)" in crash
    assert " = TrialResult(trial_id='Crashes_d0_m0_t0', exit_status='workload_failed', failure='ended by" in crash
    assert "ResultRecord(passed=False) = " in crash
    assert "- trial of Crashes in local-none -" in crash
    assert "workload_failed in run: ended by SIGSEGV in run()" in crash
    assert "--- end of stdout (trial_0/stdout.log) ---\nsetting up\nabout to crash\n" in crash
    assert "trial file: " in crash
    assert "run it again: pytest test_it.py::test_expects_none" in crash
    assert len(crash) < 3000

    assert "KeyError: 'loss'" in section(text, "test_late")
    assert "workload_failed in run: ValueError: three of four" in section(text, "test_late")
    assert "- trial of" not in section(text, "test_of_its_own")
    assert section(text, "test_many").count("- trial of Differs in local-none -") == 3
    assert "- 2 more failed trials -" in section(text, "test_many")


def section(text: str, test: str) -> str:
    return text.partition(f"_ {test} _")[2].partition("\n_____")[0]


def test_what_would_prevent_every_trial_is_an_exception(echo: Stage) -> None:
    with_tests(
        echo,
        """
import pydantic
from pytest_aorta import RequestError
from pytest_aorta.registry import RegistryError

class Typed(Echo):
    default_config = {}
    class Config(pydantic.BaseModel):
        steps: int = 1

@pytest.mark.parametrize(("workload", "arguments", "words"), [
    ("ecco", {}, "unknown workload 'ecco'; available: .*did you mean 'echo'"),
    ("echo", {"mitigations": ["nope"]}, "'nope'; available: .*"),
    ("echo", {"environment": "nope"}, "'nope'; available: .*"),
    (Typed, {"config": {"stepz": 1}}, "no option 'stepz'; valid: steps"),
    (Typed, {"config": {"steps": "many"}}, "steps='many'"),
    (3, {}, "workload: 3 is not valid; expected a name, or a class"),
    (Echo, {"steps": 0}, "steps: 0 is not valid; expected a whole number of at least 1"),
    (Echo, {"timeout": -1}, "timeout: -1 is not valid; expected a number of seconds above 0"),
    (Echo, {"index": -1}, "index: -1 is not valid; expected a whole number of at least 0"),
    (Echo, {"mitigations": []}, "mitigations: .* is not valid; expected names separated by commas"),
    (Echo, {"environment": 3}, "environment: 3 is not valid; expected a name"),
    (Echo, {"config": ["a"]}, "config: .* is not valid; expected KEY=VALUE"),
    (Echo, {"extra_env": {"A B": "1"}}, "the extra variables: 'A B' is not valid; expected NAME=VALUE"),
    (Echo, {"trials": 3}, "aorta_run has no keyword 'trials'; it takes steps, environment, mitigations, config, "),
])
def test_wrong(aorta_run, workload, arguments, words):
    with pytest.raises(RequestError, match=words):
        aorta_run(workload, **arguments)

def test_class_inside_a_function(aorta_run):
    class Local(Echo):
        pass
    with pytest.raises(ValueError, match="Local is defined inside a function"):
        aorta_run(Local)

""",
    )
    echo.run_here("test_it.py").assert_outcomes(passed=15)
    assert not echo.results.exists()


def test_marked_test_runs_once_per_trial_of_every_cell(echo: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tests(
        echo,
        """
pytestmark = pytest.mark.aorta(trials=3)

@pytest.mark.aorta(trials=2, mitigations=["none", "omp_1,tf32_off"], environments=["local", "default"])
def test_all(aorta_run):
    result = aorta_run("echo", steps=7)
    assert result.exit_status == "ok"
    assert result.trial_index == aorta_run.index
    assert result.mitigations_applied == list(aorta_run.mitigations)
    assert result.execution_env.name == aorta_run.environment
    assert result.result.metrics.get("OMP_NUM_THREADS") == ("1" if "omp_1" in aorta_run.mitigations else None)

@pytest.mark.aorta(mitigations=[("none",)])
@pytest.mark.parametrize("steps", [1, 2])
def test_with_other_parameters(aorta_run, steps):
    assert aorta_run(Echo, steps=steps, config={"scale": 5}).config == {"steps": steps, "scale": 5}
""",
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = echo.run_here("test_it.py", "-v", "--strict-markers")
    result.assert_outcomes(passed=2 * 2 * 2 + 3 * 2)
    names = list(echo.words(result))
    cells = [f"{place}-{mitigations}" for place in ("local", "default") for mitigations in ("none", "omp_1+tf32_off")]
    assert names[:4] == [f"test_all[{cell}-0]" for cell in cells]
    assert sorted(names[4:8]) == sorted(f"test_all[{cell}-1]" for cell in cells)  # the second round has other turns
    assert names[8:] == [
        f"test_with_other_parameters[local-none-{index}-{steps}]" for index in (0, 1, 2) for steps in (1, 2)
    ]
    assert len(echo.files()) == 14


@pytest.mark.slow
def test_marked_test_without_numbers_follows_the_options(echo: Stage) -> None:
    with_tests(
        echo,
        """
@pytest.mark.aorta
def test_follows(aorta_run):
    assert aorta_run(Echo).result.metrics["SEEN_B"] == "2"
""",
    )
    arguments = ("--aorta-trials", "2", "--aorta-mitigations", "none", "--aorta-mitigations", "omp_1")
    echo.run_here("test_it.py", *arguments, "--aorta-extra-env", "SEEN_B=2").assert_outcomes(passed=4)


MARKERS = {
    "trial=2": "takes the keywords trials, mitigations, environments, timeout, not trial",
    "2": "takes the keywords trials, mitigations, environments, timeout, not positional arguments",
    "trials=0": "has trials=0; expected a whole number of at least 1",
    "trials='many'": "has trials='many'; expected a whole number of at least 1",
    "timeout=-1": "has timeout=-1; expected a number of seconds above 0",
    "mitigations=['']": "has mitigations=['']; expected a list of mitigation sets, each a text with commas or",
    "environments=[]": "has environments=[]; expected a name, or a list of names",
    "mitigations=['none', 'tf32of']": ": unknown mitigation 'tf32of'; available: *; did you mean 'tf32_off'?",
    "environments=['lokal']": ": unknown environment 'lokal'; available: default, local; did you mean 'local'?",
    "environments=['local', 'local']": ": environment 'local' is given twice; for more trials use trials=*",
    "mitigations=['none', ['none']]": ": mitigation set 'none' is given twice; for more trials use trials=*",
}


def test_a_wrong_marker_is_one_clear_error(echo: Stage) -> None:
    for number, marker in enumerate(MARKERS):
        fixture = "" if "lokal" in marker else "aorta_run"
        source = f"import pytest\n@pytest.mark.aorta({marker})\ndef test_it({fixture}): pass"
        echo.write_file(f"test_{number}.py", source)
    result = echo.run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for number, message in enumerate(MARKERS.values()):
        title = next(place for place, line in enumerate(result.outlines) if f"ERROR collecting test_{number}" in line)
        said = result.outlines[title + 1].removeprefix(f"test_{number}.py::test_it: @pytest.mark.aorta")
        assert re.match(".*".join(map(re.escape, message.split("*"))), said.lstrip()), said
        assert result.outlines[title + 2].startswith(("____", "==== short test summary", "===="))
