"""A rank that is slower than the others is named, and none where all are alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.records import record
from support.triage_facts import trials

from pytest_aorta.triage.cells import CellTrials
from pytest_aorta.triage.facts import Place, facts_of
from pytest_aorta.triage.slow_ranks import slow_ranks


def cell(slowest: Sequence[tuple[int, float, int] | None], name: str = "none") -> CellTrials:
    found = trials(name, "." * len(slowest))
    cell = CellTrials(found[0].key, "local", (name,))
    for each, slow in zip(found, slowest, strict=True):
        cell.add(replace(each, slowest=slow))
    return cell


def said(*cells: CellTrials) -> list[str]:
    return list(slow_ranks(each for each in cells))


def test_a_rank_that_is_always_the_slowest_is_named() -> None:
    assert said(cell([(3, 1.38, 4)] * 18 + [(1, 1.02, 4)] * 2)) == [
        "gemm local-none: rank 3 is the slowest in 18 of 20 trials, 1.4 times the median of all ranks: look at its "
        "device, its host, and what only it does"
    ]


def test_a_device_that_is_the_slowest_whichever_rank_has_it_is_named_in_place_of_the_rank() -> None:
    found = cell([(1, 1.3, 2), (0, 1.02, 2), (0, 1.3, 2), (1, 1.01, 2)] * 20)
    devices = [(0, 5), (2, 3), (5, 1), (2, 3)] * 20
    slots = CellTrials(found.key, "local", ("none",))
    for each, those in zip(found.finished, devices, strict=True):
        slots.add(replace(each, place=Place("here", those)))

    assert said(slots) == [
        "the rank on device 5 of here is the slowest in 40 of 40 trials, 1.3 times the median of all ranks"
    ]


def test_a_rank_that_has_one_device_in_all_trials_is_named_with_it() -> None:
    found = cell([(3, 1.38, 4)] * 20)
    placed = CellTrials(found.key, "local", ("none",))
    for each in found.finished:
        placed.add(replace(each, place=Place("here", (4, 5, 6, 7))))

    assert said(placed) == [
        "gemm local-none: rank 3 is the slowest in 20 of 20 trials, 1.4 times the median of all ranks: look at its "
        "device 7 of here, its host, and what only it does"
    ]


def test_what_may_be_chance_is_not_said() -> None:
    cases: list[Sequence[tuple[int, float, int] | None]] = [
        [(3, 1.4, 4)] * 4,  # too few
        [(3, 1.01, 4)] * 20,  # which changes nothing
        [(1, 1.4, 2)] * 14 + [(0, 1.1, 2)] * 6,
        [None] * 20,
    ]
    for slowest in cases:
        assert said(cell(slowest)) == []


def test_of_ranks_that_are_alike_none_is_named() -> None:
    draw = random.Random(44)
    tables = [
        [cell([(draw.randrange(4), 1 + draw.random() / 5, 4) for _ in range(20)], name) for name in ("none", "a", "b")]
        for _ in range(300)
    ]

    assert [sentence for table in tables for sentence in said(*table)] == []


def rank(number: int, busy: float | None) -> dict[str, object]:
    return {"rank": number, "busy_ms": busy}


def test_the_slowest_rank_of_a_record() -> None:
    cases: list[tuple[list[dict[str, object]], object]] = [
        ([rank(0, 100.0), rank(1, 130.0), rank(2, 100.0)], (1, 1.3, 3)),
        ([rank(0, 100.0), rank(1, None), rank(2, 100.0)], None),
        ([rank(0, 100.0)], None),
        ([], None),
    ]
    for ranks, slowest in cases:
        found = facts_of(record(ranks=ranks), "gemm/trial_0.json").slowest

        assert found == (slowest if slowest is None else pytest.approx(slowest))
