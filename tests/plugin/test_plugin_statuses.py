"""What became of a trial: its exit status and failure in its file, and what pytest shows of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from support.stage import Stage

from pytest_aorta import TrialResult

FAULTY = Path(__file__).with_name("faulty_workloads.py")


class Seen(NamedTuple):
    """Of one trial.

    ``failure`` is phase, kind and what is known beyond; ``shown`` the words of ``-v`` and the sections of its reports.
    """

    status: str
    failure: str
    shown: str


PASSED = "PASSED"
FAILED = "FAILED in FAILURES"
ERROR = "ERROR in ERRORS at setup"
UNCLEAN = "PASSED ERROR in ERRORS at teardown"

# Beside the table of faults in tests/faults: here for what pytest shows.
TABLE = {
    "Passes": Seen("ok", "", PASSED),
    "ReturnsFalse": Seen("workload_failed", "run result", FAILED),
    "RaisesInRun": Seen("workload_failed", "run exception ValueError", FAILED),
    "SegfaultsInRun": Seen("workload_failed", "run signal SIGSEGV", FAILED),
    "VanishesInRun": Seen("workload_failed", "run exit_code code 0", FAILED),
    "HangsInRun": Seen("timeout", "run timeout stacks", "TIMEOUT in FAILURES"),
    "RaisesInSetup": Seen("infrastructure_failed", "setup exception RuntimeError", ERROR),
    "HangsInSetup": Seen("timeout", "setup timeout stacks", "TIMEOUT in ERRORS at setup"),
    "RaisesInCleanup": Seen("ok", "cleanup exception OSError", UNCLEAN),
    "FailsInRunAndCleanup": Seen("workload_failed", "run exception ValueError", FAILED),
    "LeavesThingsBehind": Seen("ok", "", PASSED),
    "Garbles": Seen("ok", "", PASSED),
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, pytest.RunResult]:
    stage = Stage(tmp_path_factory.mktemp("every"))
    stage.copy(FAULTY)
    return stage, stage.run(
        "-v", "--junitxml", "out.xml", "--aorta-slots", "3", *(f"faulty_workloads.py::{name}" for name in TABLE)
    )


@pytest.mark.slow
def test_every_ending_has_its_status_and_its_word(every: tuple[Stage, pytest.RunResult]) -> None:
    stage, result = every
    seen = {trial["workload"]: (trial["exit_status"], failure_of(trial)) for trial in stage.trials().values()}
    shown = shown_in(stage, result)
    assert {name: Seen(*ends, shown[f"{name}[local-none-0]"]) for name, ends in seen.items()} == TABLE
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    notes = stage.trial("LeavesThingsBehind/trial_0.json")["result"]["failure_details"]
    assert [note["note"].partition(" (pid")[0] for note in notes] == ["sleep"]
    # A failure of the cleanup does not hide the one of the run, nor the other way round.
    details = stage.trial("FailsInRunAndCleanup/trial_0.json")["result"]["failure_details"]
    assert [(detail["phase"], detail["message"]) for detail in details] == [("cleanup", "device busy")]
    assert stage.left_running() == []


def test_records_fit_the_published_schema_come_back_and_name_artifacts(every: tuple[Stage, pytest.RunResult]) -> None:
    text = (files("pytest_aorta") / "schemas" / "trial_result.schema.json").read_text()
    schema = jsonschema.Draft202012Validator(json.loads(text))
    stage, _ = every
    for path, trial in stage.trials().items():
        schema.validate(trial)
        assert TrialResult.from_dict(trial).to_dict() == trial
        assert {"stdout", "stderr"} <= trial["artifacts"].keys()
        for name, relative in trial["artifacts"].items():
            assert ((stage.results / path).parent / relative).is_file(), (path, name)
        assert ("stacks" in trial["artifacts"]) == ("timeout" in failure_of(trial))


def test_junit_file(every: tuple[Stage, pytest.RunResult]) -> None:
    stage, result = every
    suite = ET.parse(stage.path / "out.xml").getroot()[0]
    outcomes = result.parseoutcomes()
    counts = {key: suite.get(key) for key in ("failures", "errors", "skipped")}
    assert counts == {"failures": str(outcomes["failed"]), "errors": str(outcomes["errors"]), "skipped": "0"}
    seen: dict[str, tuple[list[str], str | None]] = {}
    for case in suite.iter("testcase"):
        kinds = [child.tag for child in case if child.tag != "properties"]
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        assert case.get("classname") == "faulty_workloads"
        # The last one counts: some versions of pytest have a case of its own for an error of the teardown.
        seen[(case.get("name") or "").removesuffix("[local-none-0]")] = (kinds, properties.get("aorta_exit_status"))
        assert properties["aorta_trial_id"] == f"{properties['aorta_workload']}_d0_m0_t0"
        assert (properties["aorta_environment"], properties["aorta_mitigations"]) == ("local", "none")
        for child in case:
            assert child.tag == "properties" or (child.get("message") and child.text)
    tags = {FAILED: ["failure"], ERROR: ["error"], UNCLEAN: ["error"], PASSED: []}
    tags |= {"TIMEOUT in FAILURES": ["failure"], "TIMEOUT in ERRORS at setup": ["error"]}
    assert seen == {name: (tags[row.shown], row.status) for name, row in TABLE.items()}


def test_failure_says_what_where_and_how_to_run_it_again(every: tuple[Stage, pytest.RunResult]) -> None:
    stage, result = every
    names = ("ReturnsFalse", "RaisesInRun", "HangsInRun", "FailsInRunAndCleanup", "RaisesInCleanup")
    text = {name: section(result, f"{name}[local-none-0]") for name in names}
    assert "run() returned passed=False, 2 failure(s), first at iteration 7" in text["ReturnsFalse"]
    assert 'in run\n    raise ValueError("loss is nan")\nValueError: loss is nan' in text["RaisesInRun"]
    assert "the deadline of 1.5 s passed in run()" in text["HangsInRun"]
    assert "in hang_with_the_gil_held" in text["HangsInRun"]
    assert "OSError" in text["FailsInRunAndCleanup"]
    assert "device busy" in text["FailsInRunAndCleanup"]
    for name in names:
        # The workload's own frames, and none of those that called it.
        assert "/pytest_aorta/" not in text[name]
        assert f"trial file: {stage.results / name / 'trial_0.json'}" in text[name]
        assert re.search(rf"run it again: pytest .*'faulty_workloads.py::{name}\[local-none-0\]'", text[name])


def test_line_that_says_how_to_run_a_trial_again_does_run_it_again(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.register(broken="faulty_workloads:RaisesInRun")
    options = ("--aorta-workload", "broken", "--aorta-trials", "2", "--aorta-mitigations", "none,omp_1")
    first = stage.run_here(*options)
    again = re.findall(r"^run it again: pytest (.*)$", first.stdout.str(), re.MULTILINE)
    assert len(again) == 2
    second = stage.run_here(*(word.strip("'") for word in again[1].split()))
    second.assert_outcomes(failed=1)
    second.stdout.fnmatch_lines(["*broken?local-none+omp_1-1?*"])


IMPORTS = {
    "raises": ("raise ImportError('libfoo.so')", "import exception ImportError"),
    "exits": ("import sys; sys.exit(0)", "import exception SystemExit"),
    "segfaults": ("import os; os.kill(os.getpid(), 11)", "import signal SIGSEGV"),
    "vanishes": ("import os; os._exit(0)", "import exit_code code 0"),
}


@pytest.mark.parametrize("isolation", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.long])])
def test_import_that_fails_is_no_fault_of_the_workload(stage: Stage, isolation: str) -> None:
    for name, (line, _) in IMPORTS.items():
        stage.write(
            **{
                name: f"""
                {line}

                class {name.title()}:
                    def __init__(self, config): pass
                    def setup(self): pass
                    def run(self): pass
                """
            }
        )
    files = [f"{name}.py" for name in IMPORTS]
    result = stage.run_here("-v", "--aorta-isolation", isolation, "--aorta-trials", "2", *files)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=2 * len(IMPORTS))
    shown = shown_in(stage, result)
    for name, (_, failure) in IMPORTS.items():
        for index in range(2):
            trial = stage.trial(f"{name.title()}/trial_{index}.json")
            assert (trial["exit_status"], failure_of(trial)) == ("infrastructure_failed", failure)
            assert shown[f"{name.title()}[local-none-{index}]"] == ERROR
    assert "libfoo.so" in stage.trial("Raises/trial_0.json")["failure"]["message"]
    # The crash shows where it happened.
    result.stdout.fnmatch_lines(['*File "*segfaults.py", line 1 in <module>*'])
    assert stage.left_running() == []


#: Hang, without a deadline of their own or with a generous one, in a C call that holds the GIL.
HANGS = """
import ctypes

class Hangs:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): ctypes.PyDLL(None).sleep(1000)

class Limited(Hangs):
    timeout_sec = 2.5

class Passes(Hangs):
    def run(self): return {"passed": True}
"""


@pytest.mark.slow
def test_pytest_timeout_limits_the_trial_and_not_pytest(stage: Stage) -> None:
    """Its own timer would wait for the GIL for ever, or end pytest and with it the trials that follow."""
    stage.write(hangs=HANGS)
    hung = {"Hangs[local-none-0]": ["TIMEOUT"], "Limited[local-none-0]": ["TIMEOUT"]}
    for options, limit in (
        (("--timeout", "2", "--timeout-method", "signal"), "2"),
        (("--timeout", "2", "--timeout-method", "thread"), "2"),
        # Without it, a workload has a deadline of its own.
        (("--timeout", "0", "-k", "Limited or Passes"), "2.5"),
        (("-p", "no:timeout", "-k", "Limited or Passes"), "2.5"),
    ):
        result = stage.run("hangs.py", "-v", *options)
        chosen = {name: words for name, words in hung.items() if "-k" not in options or name.startswith("Limited")}
        assert stage.words(result) == {**chosen, "Passes[local-none-0]": ["PASSED"]}
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        failure = stage.trial("Limited/trial_0.json")["failure"]
        assert re.match(rf"the deadline of {limit} s passed in run\(\)", failure["message"])
        result.stdout.no_fnmatch_line("*+ Timeout +*")
        assert stage.left_running() == []


def failure_of(trial: dict[str, Any]) -> str:
    """A trial's failure, as the table of expectations has it."""
    failure = trial["failure"]
    if failure is None:
        return ""
    parts = [failure["phase"], failure["kind"], failure["type"], failure["signal"]]
    if failure["exit_code"] is not None:
        parts.append(f"code {failure['exit_code']}")
    if failure["stacks"] is not None:
        parts.append("stacks")
    return " ".join(part for part in parts if part)


def shown_in(stage: Stage, result: pytest.RunResult) -> dict[str, str]:
    """Of a run with ``-v``: the words of every item, and the section that its report is in, by its name."""
    shown = {name: " ".join(words) for name, words in stage.words(result).items()}
    section = ""
    for line in result.outlines:
        if match := re.fullmatch(r"=+ (ERRORS|FAILURES|.*) =+", line):
            section = match[1]
        elif section in ("ERRORS", "FAILURES") and (match := re.fullmatch(r"_+ (?:ERROR (.*) of )?(\S+\]) _+", line)):
            shown[match[2]] += f" in {section}" + (f" {match[1]}" if match[1] else "")
    return shown


def section(result: pytest.RunResult, name: str) -> str:
    """What the report of an item says below its title."""
    text = re.split(r"(?m)^(?:_+ .* _+|=+ .* =+)$", result.stdout.str().split(f"{name} _", 1)[1])[0]
    return text.partition("\n")[2]
