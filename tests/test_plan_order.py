"""The order of the trials of a plan."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st
from support.plans import grid, grids

from pytest_aorta.plan import WARM_CELLS, Order, Plan, Selection, ordered
from pytest_aorta.trials.spec import TrialSpec

ORDERS: tuple[Order, ...] = get_args(Order)


def names(trials: Any) -> list[str]:
    return [spec.item_name for spec in trials]


def test_interleaved_runs_the_first_trial_of_every_cell_before_the_second_of_any() -> None:
    trials = ordered(grid(1, 1, 3, 2), "interleaved")

    assert [(spec.mitigation_index, spec.trial_index) for spec in trials] == [
        *((0, 0), (1, 0), (2, 0)),
        *((0, 1), (1, 1), (2, 1)),
    ]


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
    assert [spec.mitigation_index for spec in first] == [*range(WARM_CELLS), *range(WARM_CELLS)]
    assert [spec.mitigation_index for spec in second] == [*range(WARM_CELLS, 2 * WARM_CELLS)] * 2
    assert [(spec.mitigation_index, spec.trial_index) for spec in last] == [(count - 1, 0), (count - 1, 1)]


def test_where_a_run_may_end_early_blocks_of_cells_take_turns() -> None:
    cells = grid(1, 1, WARM_CELLS + 1, 2 * WARM_CELLS)
    for selection, turns in ((Selection(until_decided=True), WARM_CELLS), (Selection(duration=1.0), 1)):
        found = [(spec.mitigation_index, spec.trial_index) for spec in ordered(cells, "interleaved", selection.turns)]
        expected = [
            (cell, index)
            for first in range(0, 2 * WARM_CELLS, turns)
            for block in (range(WARM_CELLS), [WARM_CELLS])
            for index in range(first, first + turns)
            for cell in block
        ]
        assert found == expected


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
