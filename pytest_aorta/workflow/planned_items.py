"""The items that a recipe will have, without pytest, and which of them have to be run on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_aorta.trials.conversion import identifier
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.command_units import CommandUnit, actions_in_order
from pytest_aorta.workflow.commands import takes_all
from pytest_aorta.workflow.groups import included
from pytest_aorta.workflow.overview import Overview
from pytest_aorta.workflow.progress import matrix_before

#: What items share that are run on one machine: an action with a workload, or none, and a trial or a directory.
Key = tuple[str, str]


def command_keys(action: Action, recipe: Recipe, units: Sequence[str]) -> list[Key]:
    """Of a command on units; none where each of them is of several trials, which are divided."""
    if action.table.each in ("cell", "matrix"):
        return []
    matrix = matrix_before(action, recipe) if action.table.each == "trial" else None
    return [(matrix.name if matrix is not None else "", unit) for unit in units]


def planned_items(overview: Overview) -> Iterator[tuple[str, list[Key]]]:
    """Name and keys of each item, trials of one cell after those of another.

    Raises:
        RecipeError: a value that a condition or a sort key needs is missing.
    """
    recipe = overview.recipe
    for action in actions_in_order(recipe):
        units = overview.units(action)
        if action.is_matrix:
            for unit in units:
                cell, _, index = unit.rpartition("/")
                yield f"{identifier(action.name)}[{cell}-{index}]", [(action.name, unit)]
            continue
        for group in overview.groups(action, included(action.table.group, units, overview.value_of(action))):
            runs = [tuple(group)] if takes_all(action.table.command or "") else [(unit,) for unit in group]
            for run in runs:
                yield CommandUnit(action, run).name, command_keys(action, recipe, run)
