"""Deadlines: where they come from, which one wins, and that a hang costs its own trial and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.stage import Stage

FAULTY = Path(__file__).with_name("faulty_workloads.py")

#: Hangs, without a deadline of its own or with a generous one, in a C call that holds the GIL.
HANGS = """
import ctypes

class Hangs:
    timeout_sec = {timeout}

    def __init__(self, config): pass
    def setup(self): pass
    def run(self): ctypes.PyDLL(None).sleep(1000)

class Passes(Hangs):
    def run(self): return {{"passed": True}}
"""


def limits(stage: Stage) -> list[str]:
    """The deadline that ended each trial of ``Hangs``, as its message tells."""
    trials = [trial for path, trial in stage.trials().items() if path.startswith("Hangs/")]
    assert {trial["exit_status"] for trial in trials} == {"timeout"}
    return [
        re.findall(r"the deadline of (\S+) s passed in run\(\)", trial["failure"]["message"])[0] for trial in trials
    ]


@pytest.mark.slow
def test_pytest_timeout_limits_the_trial_and_not_pytest(stage: Stage) -> None:
    """Its own timer would wait for the GIL for ever, or end pytest and with it the trials that follow."""
    stage.write(hangs=HANGS.format(timeout=None))
    for method in ("signal", "thread"):
        result = stage.run("hangs.py", "--timeout", "0.6", "--timeout-method", method, "-v")
        assert stage.words(result) == {"Hangs[local-none-0]": ["TIMEOUT"], "Passes[local-none-0]": ["PASSED"]}
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert limits(stage) == ["0.6"]
        result.stdout.no_fnmatch_line("*+ Timeout +*")
        assert stage.left_running() == []


def test_workload_has_a_deadline_of_its_own(stage: Stage) -> None:
    stage.write(hangs=HANGS.format(timeout=0.7))
    stage.run("hangs.py::Hangs", "-p", "no:timeout").assert_outcomes(failed=1)
    assert limits(stage) == ["0.7"]
    # Even where pytest-timeout is switched off for it.
    stage.run("hangs.py::Hangs", "--timeout", "0").assert_outcomes(failed=1)
    assert limits(stage) == ["0.7"]


def test_timeout_shows_where_every_process_of_the_trial_was(stage: Stage) -> None:
    stage.copy(FAULTY)
    stage.write(
        stubborn="""
        import os
        import signal
        import time

        def wait_for_the_others():
            time.sleep(1000)

        class Stubborn:
            def __init__(self, config): pass
            def setup(self): pass
            def run(self):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if os.fork() == 0:
                    os.setsid()
                    wait_for_the_others()
                for step in range(3):
                    self.progress(step + 1, 10)
                    time.sleep(0.15)
                time.sleep(1000)
        """
    )
    result = stage.run("stubborn.py", "faulty_workloads.py::Passes", "--aorta-timeout", "1")
    result.assert_outcomes(failed=1, passed=1)
    trial = stage.trial("Stubborn/trial_0.json")
    failure = trial["failure"]
    assert (failure["phase"], failure["kind"], failure["stacks"]) == ("run", "timeout", "trial_0/stacks.log")
    assert failure["message"] == (
        "the deadline of 1 s passed in run(), after step 3 of 10; run() at stubborn.py line 19"
    )
    assert trial["artifacts"]["stacks"] == "trial_0/stacks.log"
    stacks = (stage.results / "Stubborn" / "trial_0" / "stacks.log").read_text()
    assert "in wait_for_the_others" in stacks
    assert stacks.count("most recent call first") == 2
    assert stage.left_running() == []
