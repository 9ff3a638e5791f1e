"""Deadlines: where they come from, which one wins, and that a hang costs its own trial and nothing else."""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

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
