"""The order of the trials of a plan."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st
from support.plans import grid, grids

from pytest_aorta.plan import WARM_CELLS, Order, Plan, Selection, ordered, turns_of_round
from pytest_aorta.triage import Stop
from pytest_aorta.trials.spec import TrialSpec

ORDERS: tuple[Order, ...] = get_args(Order)


def names(trials: Any) -> list[str]:
    return [spec.item_name for spec in trials]


def test_interleaved_runs_the_first_trial_of_every_cell_before_the_second_of_any() -> None:
    trials = ordered(grid(1, 1, 3, 2), "interleaved")

    assert [(spec.mitigation_index, spec.trial_index) for spec in trials[:3]] == [(0, 0), (1, 0), (2, 0)]
    assert sorted((spec.mitigation_index, spec.trial_index) for spec in trials[3:]) == [(0, 1), (1, 1), (2, 1)]


@given(st.integers(1, WARM_CELLS), st.text())
def test_in_as_many_rounds_as_there_are_cells_each_has_each_place_once(cells: int, seed: str) -> None:
    assert turns_of_round(0, cells, seed) == [*range(cells)]
    for square in range(3):
        rounds = [turns_of_round(square * cells + row, cells, seed) for row in range(cells)]
        for turns in (*rounds, *zip(*rounds, strict=True)):
            assert sorted(turns) == [*range(cells)]


def test_what_repeats_in_step_with_the_rounds_does_not_hit_one_cell_alone() -> None:
    # As a device of several does, where trials take turns on them: a fault in each second (third, ...) trial.
    for cells, period in itertools.product(range(2, WARM_CELLS + 1), range(2, 9)):
        trials = ordered(grid(1, 1, cells, 40 * cells), "interleaved")
        hit = Counter(spec.cell for spec in trials[::period])
        expected = 40 * cells / period
        assert all(abs(hit[spec.cell] - expected) < 0.3 * expected + 8 for spec in trials[:cells])


def test_after_a_cell_comes_any_other() -> None:
    trials = ordered(grid(1, 1, 4, 400), "interleaved")
    pairs = Counter((one.mitigation_index, two.mitigation_index) for one, two in itertools.pairwise(trials))

    assert all(pairs[one, two] > 60 for one, two in itertools.permutations(range(4), 2))


@given(st.integers(1, WARM_CELLS + 2), st.integers(1, 6), st.integers(1, 6))
def test_more_trials_leave_the_order_of_the_others_as_it_is(cells: int, few: int, more: int) -> None:
    few_of_each, more_of_each = (ordered(grid(1, 1, cells, count), "interleaved", 1) for count in (few, few + more))

    assert names(more_of_each)[: len(few_of_each)] == names(few_of_each)


def test_grouped_runs_cell_after_cell() -> None:
    trials = ordered(grid(1, 1, 3, 2), "grouped")

    assert [(spec.mitigation_index, spec.trial_index) for spec in trials] == [
        *((0, 0), (0, 1)),
        *((1, 0), (1, 1)),
        *((2, 0), (2, 1)),
    ]


def test_beyond_the_bound_of_warm_cells_blocks_of_cells_are_interleaved() -> None:
    count = 2 * WARM_CELLS + 1
    trials = ordered(grid(1, 1, count, 2), "interleaved")

    first, second, last = trials[: 2 * WARM_CELLS], trials[2 * WARM_CELLS : 4 * WARM_CELLS], trials[4 * WARM_CELLS :]
    for block, start in ((first, 0), (second, WARM_CELLS)):
        assert [spec.mitigation_index for spec in block[:WARM_CELLS]] == [*range(start, start + WARM_CELLS)]
        assert {spec.mitigation_index for spec in block[WARM_CELLS:]} == {*range(start, start + WARM_CELLS)}
    assert [(spec.mitigation_index, spec.trial_index) for spec in last] == [(count - 1, 0), (count - 1, 1)]


def test_where_a_run_may_end_early_blocks_of_cells_take_turns() -> None:
    cells = grid(1, 1, WARM_CELLS + 1, 2 * WARM_CELLS)
    for selection, turns in ((Selection(stop=Stop(decided=True)), WARM_CELLS), (Selection(stop=Stop(seconds=1.0)), 1)):
        found = [(spec.mitigation_index, spec.trial_index) for spec in ordered(cells, "interleaved", selection.turns)]
        expected = [
            [(cell, index) for cell in block]
            for first in range(0, 2 * WARM_CELLS, turns)
            for block in (range(WARM_CELLS), [WARM_CELLS])
            for index in range(first, first + turns)
        ]
        rounds = iter(found)
        assert [sorted(itertools.islice(rounds, len(each))) for each in expected] == expected


@given(grids, st.sampled_from(ORDERS))
def test_every_order_has_every_trial_once_and_is_always_the_same(cells: list[list[TrialSpec]], order: Order) -> None:
    trials = ordered(cells, order)

    assert sorted(names(trials)) == sorted(spec.item_name for cell in cells for spec in cell)
    assert ordered(cells, order) == trials
    assert Plan(trials).digest == Plan(ordered(cells, order)).digest


@given(grids)
def test_interleaved_needs_at_most_the_bound_of_cells_at_a_time(cells: list[list[TrialSpec]]) -> None:
    trials = ordered(cells, "interleaved")
    labels = [(spec.workload.name, spec.cell) for spec in trials]

    for label in set(labels):
        first, last = labels.index(label), len(labels) - 1 - labels[::-1].index(label)
        assert len(set(labels[first : last + 1])) <= WARM_CELLS
