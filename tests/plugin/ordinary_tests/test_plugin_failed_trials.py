"""A test that fails because of a trial shows what a trial item would: the reason, the ends of the logs, the file."""

from __future__ import annotations

import pytest
from support.stage import Stage

WORKLOADS = """
import os, signal

class Crashes:
    def __init__(self, config): pass
    def setup(self): print("setting up")
    def run(self):
        print("about to crash", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

class Differs(Crashes):
    def run(self):
        raise ValueError("three of four\\nand a second line")

class Passes(Crashes):
    def run(self): return {"passed": True}
"""

TESTS = """
from workloads import Crashes, Differs, Passes

def test_crash(aorta_run):
    assert aorta_run(Crashes).result.passed

def test_late(aorta_run):
    for cls in (Passes, Differs, Passes):
        result = aorta_run(cls)
    assert result.result.metrics["loss"] < 1

def test_of_its_own(aorta_run):
    assert aorta_run(Passes).result.passed is None

def test_many(aorta_run):
    assert [aorta_run(Differs).exit_status for _ in range(5)] == []
"""


@pytest.fixture
def tested(stage: Stage) -> Stage:
    stage.write(workloads=WORKLOADS, test_them=TESTS)
    return stage


def section(text: str, test: str) -> str:
    return text.partition(f"_ {test} _")[2].partition("\n_____")[0]


def test_the_trial_is_shown_below_the_assertion(tested: Stage) -> None:
    result = tested.run("test_them.py", env={"PYTEST_AORTA_EXTRA_ENV": "A_TOKEN=hunter2,PLAIN=swordfish"})
    result.assert_outcomes(failed=4)
    text = result.stdout.str()

    crash = section(text, "test_crash")
    assert ">       assert aorta_run(Crashes)" in crash
    assert " = TrialResult(trial_id='Crashes_d0_m0_t0', exit_status='workload_failed', failure='ended by" in crash
    assert "ResultRecord(passed=False) = " in crash
    assert "- trial of Crashes in local-none -" in crash
    assert "workload_failed in run: ended by SIGSEGV in run()" in crash
    assert "--- end of stdout (trial_0/stdout.log) ---\nsetting up\nabout to crash\n" in crash
    assert "trial file: " in crash
    assert "run it again: pytest test_them.py::test_crash" in crash
    assert len(crash) < 3000
    assert "swordfish" not in text
    assert "hunter2" not in text

    assert "KeyError: 'loss'" in section(text, "test_late")
    assert "workload_failed in run: ValueError: three of four" in section(text, "test_late")
    assert "- trial of" not in section(text, "test_of_its_own")
    many = section(text, "test_many")
    assert many.count("- trial of Differs in local-none -") == 3
    assert "- 2 more failed trials -" in many


def test_an_unknown_keyword_is_refused_with_those_that_there_are(stage: Stage) -> None:
    stage.write(
        test_keywords="""
        import pytest

        def test_run(aorta_run):
            aorta_run("gemm", trials=3)

        @pytest.mark.aorta
        def test_trial(aorta_trial):
            aorta_trial("gemm", timeout=3, mitigations=["none"])

        def test_torchrun(aorta_torchrun):
            aorta_torchrun("script.py", ranks=3)
        """
    )
    result = stage.run("test_keywords.py")
    result.assert_outcomes(failed=3)
    known = "steps, environment, mitigations, config, extra_env, timeout, index"
    result.stdout.fnmatch_lines(
        [
            f"E *RequestError: aorta_run has no keyword 'trials'; it takes {known}",
            "E *RequestError: aorta_trial has no keyword 'timeout', 'mitigations'; it takes steps, config, extra_env",
            "E *RequestError: aorta_torchrun has no keyword 'ranks'; it takes nproc, env, max_restarts, cwd, *",
        ]
    )
    assert not stage.results.exists()
