"""Of trials that have failed alike, one or two are shown; the others are counted, and named by their numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.triage_facts import CRASH, trials

from pytest_aorta.plugin.failures import FailedAlike, fold_alike, ranges
from pytest_aorta.triage.facts import TrialFacts


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


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "3"),
        ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, ..."),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
