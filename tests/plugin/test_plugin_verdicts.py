"""What a trial is said to have been: status and result agree, doubts are named, and the last step is known."""

from __future__ import annotations

import pytest
from support.stage import Stage

WORKLOADS = """
import ctypes
import math
import os
import signal
import time

from pytest_aorta import WorkloadResult


class Base:
    def __init__(self, config):
        self.config = config

    def setup(self):
        pass


class Counts(Base):
    def run(self):
        return WorkloadResult(True, failure_count=3)


class NotStarted(Base):
    def run(self):
        return WorkloadResult(True, main_work_started=False, executed_iterations=0, configured_iterations=10)


class Fine(Base):
    def run(self):
        return WorkloadResult(True)


class NotANumber(Base):
    def run(self):
        return {"passed": math.nan}


class Steps(Base):
    def run(self):
        for step in range(637):
            self.progress(step + 1, 1000)
        self.end()


class Killed(Steps):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class HangsInC(Steps):
    def end(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(1000)
"""


@pytest.fixture
def verdicts(stage: Stage) -> Stage:
    stage.write(verdicts=WORKLOADS)
    return stage


def test_a_result_that_contradicts_its_passed_is_ok_and_named_in_record_table_and_warnings(verdicts: Stage) -> None:
    names = ("NotStarted", "Fine")
    result = verdicts.run_here("--aorta-trials", "2", *(f"verdicts.py::{name}" for name in names))
    result.assert_outcomes(passed=4, warnings=4)
    doubts = {
        "NotStarted": ["passed=True, but main_work_started=False", "passed=True, but 0 of 10 iterations"],
        "Fine": [],
    }
    for name, texts in doubts.items():
        trial = verdicts.trial(f"{name}/trial_1.json")
        assert (trial["exit_status"], trial["result"]["passed"], trial["warnings"]) == ("ok", True, texts)
        for text in texts:
            result.stdout.fnmatch_lines([f"*PytestWarning: {text}", f"warning: {name} local-none: {text} (2 trials)"])


def test_a_result_with_failures_fails_whatever_its_passed_is(verdicts: Stage) -> None:
    result = verdicts.run_here("verdicts.py::Counts")
    result.assert_outcomes(failed=1)
    trial = verdicts.trial("Counts/trial_0.json")
    message = "run() returned passed=True, but failure_count=3"
    assert (trial["exit_status"], trial["failure"]["message"]) == ("workload_failed", message)
    result.stdout.fnmatch_lines(["Counts local-none *", "*1x failure_count=*"])


_AFTER = """
class NanLoss:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): return {"passed": True, "metrics": {"loss": float("nan")}}


class NotCleaned(NanLoss):
    def run(self): return {"passed": True}
    def cleanup(self): raise RuntimeError("cannot close the store")
"""


def test_a_metric_that_is_nan_fails_a_class_where_that_is_asked_for(stage: Stage) -> None:
    stage.write(after=_AFTER)
    stage.register(nan_loss="after:NanLoss")
    switch = ("--aorta-workload", "nan_loss", "--aorta-fail-on-nonfinite")
    result = stage.run("--aorta-workload", "nan_loss")
    result.assert_outcomes(passed=1, warnings=1)
    text = "passed=True, but loss is nan (--aorta-fail-on-nonfinite fails such trials)"
    result.stdout.fnmatch_lines([f"warning: nan_loss local-none: {text} (1 trial)"])
    for isolation in ("auto", "spawn", "none"):
        result = stage.run(*switch, "--aorta-isolation", isolation)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*1x loss is nan*"])
    stage.run(*switch, "--aorta-allow-nonfinite", "loss").assert_outcomes(passed=1, warnings=1)


def test_a_cleanup_that_fails_is_in_the_table_and_no_gate_excuses_it(stage: Stage) -> None:
    stage.write(after=_AFTER)
    stage.register(not_cleaned="after:NotCleaned")
    result = stage.run("--aorta-workload", "not_cleaned", "--aorta-gate", "failures<=1")
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    what = "cleanup failed after the trial was ok: RuntimeError: cannot close the store"
    result.stdout.fnmatch_lines(
        [
            f"warning: not_cleaned local-none: {what} (1 trial)",
            "1 failure that no gate judges: not of a trial, of its cleanup, or infrastructure",
        ]
    )


def test_a_verdict_that_is_no_bool_fails_the_trial(verdicts: Stage) -> None:
    result = verdicts.run_here("verdicts.py::NotANumber")
    result.assert_outcomes(failed=1)
    trial = verdicts.trial("NotANumber/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["kind"]) == ("workload_failed", "result")
    message = "run() returned passed=nan (float); it has to be True or False"
    assert (trial["result"]["passed"], trial["failure"]["message"]) == (False, message)
    result.stdout.fnmatch_lines([f"workload_failed in run: {message}"])


def test_the_last_step_is_known_however_the_process_ends(verdicts: Stage) -> None:
    names = ("Killed", "HangsInC")
    options = ("--aorta-timeout", "1.5", "-o", "aorta_grace=0.1")
    verdicts.run_here(*(f"verdicts.py::{name}" for name in names), *options)
    killed, hung = (verdicts.trial(f"{name}/trial_0.json") for name in names)
    assert killed["failure"]["message"] == "ended by SIGKILL in run(), after step 637 of 1000"
    assert hung["failure"]["message"].startswith("the deadline of 1.5 s passed in run(), after step 637 of 1000; ")
    for trial in (killed, hung):
        result = trial["result"]
        assert (result["elapsed_sec"], result["total_iterations"], result["failure_count"]) == (None, None, None)
    assert not [path for path in verdicts.everything() if path.endswith(".steps")]
