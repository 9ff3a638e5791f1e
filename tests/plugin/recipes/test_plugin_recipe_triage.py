"""Keys of a recipe that judge its trials: gate, expect, signatures; they mean what the options mean."""

from __future__ import annotations

import json

import numpy  # noqa: F401  (a stage takes back what was imported on it, and numpy cannot be imported twice)
import pytest
import scipy.special  # noqa: F401  (as numpy)
from support.stage import Stage
from support.workloads import shaky_project

from pytest_aorta.triage.reading import Results


@pytest.fixture(autouse=True)
def shaky(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    shaky_project(stage, monkeypatch, "")


def matrix(stage: Stage, *lines: str) -> None:
    """A recipe of one action with these keys besides."""
    keys = ['name = "matrix"', 'workload = "shaky"', "trials = 2", 'mitigations = ["none", "fix"]', *lines]
    stage.write_file("aorta.toml", "\n".join(["[[action]]", *keys]))


def test_a_gate_on_a_reproduction_excuses_trials_that_are_ok(stage: Stage) -> None:
    matrix(stage, 'expect = "fail"', 'gate = ["failure_rate(none)>=0.5"]')
    result = stage.run_here("-v", "aorta.toml")
    assert result.ret == 0
    assert {name: words[0] for name, words in stage.words(result).items()} == {
        **{f"matrix[local-none-{index}]": "REPRODUCED" for index in range(2)},
        **{f"matrix[local-fix-{index}]": "FAILED" for index in range(2)},
    }


LANES = """
import os

class Lanes:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        if int(os.environ["AORTA_TRIAL_INDEX"]) % 2:
            raise OSError("left lane is down")
        raise RuntimeError("retrained 3 times\\nright lane is slow")
"""


def ways(stage: Stage) -> list[str]:
    content = json.loads((stage.path / "workspace/lanes/matrix.json").read_text())
    return [way["signature"]["message"] for cell in content["cells"] for way in cell["signatures"]]


def test_a_recipe_names_ways_to_fail(stage: Stage) -> None:
    stage.write(lanes=LANES)
    stage.register(shaky="work:Shaky", lanes="lanes:Lanes")
    action = '[[action]]\nname = "lanes"\nworkload = "lanes"\ntrials = 4\n'
    stage.write_file("aorta.toml", action)
    stage.run_here("aorta.toml")
    assert ways(stage) == ["retrained # times", "left lane is down"]
    stage.write_file("aorta.toml", action + '[signatures]\n"bad lane" = "lane is (down|slow)"\n')
    result = stage.run_here("aorta.toml")
    assert ways(stage) == ["bad lane"]
    result.stdout.fnmatch_lines(["*4x bad lane*"])
    read = [trial.facts.signature for trial in Results(stage.path / "workspace/lanes")]
    assert [signature and signature.message for signature in read] == 4 * ["bad lane"]
