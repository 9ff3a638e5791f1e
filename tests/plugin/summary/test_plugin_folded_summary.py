"""What pytest prints of many trials that have failed alike: some in full, the others counted, by their numbers."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stage import Stage, counts
from support.triage_facts import CRASH, trials

from pytest_aorta.plugin.failures import FailedAlike, fold_alike
from pytest_aorta.triage.facts import TrialFacts

BROKEN = """
import os

class Broken:
    def __init__(self, config): pass
    def setup(self):
        if os.environ["AORTA_TRIAL_INDEX"] in "5678":
            raise OSError("no device")
    def run(self): raise ValueError(f"loss is nan at step {os.environ['AORTA_TRIAL_INDEX']}")
"""

RUN = ("broken.py", "--aorta-trials", "9")


@pytest.fixture
def broken(stage: Stage) -> Stage:
    stage.write(broken=BROKEN)
    return stage


def sections(lines: list[str]) -> list[str]:
    return [line.strip("_ ") for line in lines if line.startswith("___") and "Broken[" in line]


def short_summary(lines: list[str]) -> list[str]:
    start = next(number for number, line in enumerate(lines) if "short test summary info" in line)
    return lines[start + 1 : -1]


def test_two_of_each_kind_are_shown_in_full_and_other_plugins_see_all(broken: Stage) -> None:
    broken.write(
        conftest="""
        def pytest_terminal_summary(terminalreporter):
            stats = terminalreporter.stats
            terminalreporter.write_line(f"seen: {len(stats['failed'])} failed, {len(stats['error'])} errors")
        """
    )
    result = broken.run_here(*RUN, "--junitxml=junit.xml")
    assert counts(result) == {"failed": 5, "errors": 4}
    assert sections(result.outlines) == [
        "ERROR at setup of Broken[local-none-5]",
        "ERROR at setup of Broken[local-none-6]",
        "Broken[local-none-0]",
        "Broken[local-none-1]",
    ]
    result.stdout.fnmatch_lines(
        [
            "trial file: */trial_6.json",
            "... and 2 more like Broken?local-none-6? in local-none: trials 7-8 (each has its file)",
            "*= FAILURES =*",
            "trial file: */trial_1.json",
            "... and 3 more like Broken?local-none-1? in local-none: trials 2-4 (each has its file)",
            "*= trials =*",
        ]
    )
    assert [line.partition(" - ")[0] for line in short_summary(result.outlines)] == [
        "FAILED broken.py::Broken[local-none-0]",
        "FAILED broken.py::Broken[local-none-1]",
        "ERROR broken.py::Broken[local-none-5]",
        "ERROR broken.py::Broken[local-none-6]",
        "... and 2 more like Broken[local-none-6] in local-none: trials 7-8 (each has its file)",
        "... and 3 more like Broken[local-none-1] in local-none: trials 2-4 (each has its file)",
        "-v shows them all; each has its trial file",
    ]
    result.stdout.fnmatch_lines(["seen: 5 failed, 4 errors"])
    suite = ET.parse(broken.path / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors"), suite.get("tests")) == ("5", "4", "9")
    again = broken.run_here(*RUN, "--lf", "--collect-only", "-q")
    assert len([line for line in again.outlines if line.startswith("broken.py::")]) == 9


def test_verbose_shows_all(broken: Stage) -> None:
    result = broken.run_here(*RUN, "-v")
    assert len(sections(result.outlines)) == 9
    assert len(short_summary(result.outlines)) == 9
    result.stdout.no_fnmatch_line("... and *")


def nodeid(facts: TrialFacts) -> str:
    return f"aorta::{facts.key.workload}[{facts.key.cell}-{facts.index}]"


def folded(*cells: list[TrialFacts]) -> tuple[list[str], dict[str, list[str]]]:
    """Of cells whose trials are interleaved: the names of the items that are shown, and what is said below each."""
    order = [facts for row in itertools.zip_longest(*cells) for facts in row if facts is not None]
    failed = {
        nodeid(facts): FailedAlike((facts.outcome, facts.signature), facts.key.workload, facts.key.cell, facts.index)
        for facts in order
        if facts.signature is not None
    }
    hidden, lines = fold_alike(failed, failed)
    return [name for name in failed if name not in hidden], lines


@given(st.lists(st.text("F.TC", max_size=40), max_size=8))
def test_every_failure_is_shown_or_counted_once(cells: list[str]) -> None:
    facts = [trials(f"m{n}", outcomes, signatures={"C": CRASH}) for n, outcomes in enumerate(cells)]
    shown, folds = folded(*facts)
    failed = {nodeid(each) for cell in facts for each in cell if each.signature is not None}
    counted = sum(int(line.split()[2]) for lines in folds.values() for line in lines)
    assert len(shown) + counted == len(failed)
    assert set(shown) <= failed
    assert set(folds) <= set(shown)
