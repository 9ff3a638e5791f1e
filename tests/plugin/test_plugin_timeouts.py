"""Deadlines: where they come from, and which one wins."""

from __future__ import annotations

import re

import pytest
from support.stage import Stage

#: Hang, without a deadline of their own or with a generous one, in a C call that holds the GIL.
HANGS = """
import ctypes

class Hangs:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self): ctypes.PyDLL(None).sleep(1000)

class Limited(Hangs):
    timeout_sec = 0.7

class Passes(Hangs):
    def run(self): return {"passed": True}
"""


@pytest.mark.slow
def test_pytest_timeout_limits_the_trial_and_not_pytest(stage: Stage) -> None:
    """Its own timer would wait for the GIL for ever, or end pytest and with it the trials that follow."""
    stage.write(hangs=HANGS)
    hung = {"Hangs[local-none-0]": ["TIMEOUT"], "Limited[local-none-0]": ["TIMEOUT"]}
    for options, limit in (
        (("--timeout", "0.6", "--timeout-method", "signal"), "0.6"),
        (("--timeout", "0.6", "--timeout-method", "thread"), "0.6"),
        # Without it, a workload has a deadline of its own.
        (("--timeout", "0", "-k", "Limited or Passes"), "0.7"),
        (("-p", "no:timeout", "-k", "Limited or Passes"), "0.7"),
    ):
        result = stage.run("hangs.py", "-v", *options)
        chosen = {name: words for name, words in hung.items() if "-k" not in options or name.startswith("Limited")}
        assert stage.words(result) == {**chosen, "Passes[local-none-0]": ["PASSED"]}
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        failure = stage.trial("Limited/trial_0.json")["failure"]
        assert re.match(rf"the deadline of {limit} s passed in run\(\)", failure["message"])
        result.stdout.no_fnmatch_line("*+ Timeout +*")
        assert stage.left_running() == []
