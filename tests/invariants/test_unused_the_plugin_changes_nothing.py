"""Installed but unused, the plugin changes nothing; tests/downstream shows it with whole suites."""

from __future__ import annotations

import pytest
from support.stage import Stage

SIMPLE = """
class Simple:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        return {"passed": True, "step_times_ms": [1.5, 2.5, 9.0]}
"""


@pytest.fixture
def simple(stage: Stage) -> Stage:
    """With a registered workload ``simple`` and a test."""
    stage.write(
        simple=SIMPLE,
        test_other="""
        def test_other():
            pass
        """,
    )
    stage.register(simple="simple:Simple")
    return stage


def test_unused_it_is_not_to_be_seen(simple: Stage) -> None:
    result = simple.run_here("-v", "test_other.py")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("aorta: *")
    result.stdout.no_fnmatch_line("*= trials =*")
    assert not simple.results.exists()
    assert simple.left_running() == []
