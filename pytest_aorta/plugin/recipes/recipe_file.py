"""A recipe as a test file: its collector."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_aorta.plugin.recipes.command_item import CommandItem
from pytest_aorta.plugin.recipes.recipe_run import RecipeRun, recipe_run
from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.command_units import Units, actions_in_order, command_units
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.progress import matrix_before
from pytest_aorta.workflow.reading import read_recipe


class RecipeFile(pytest.File):
    """A recipe. Its items are its actions on their directories, each after those that it follows."""

    def collect(self) -> Iterable[pytest.Item]:
        """All of them, complete ones included: those are shown as they are."""
        try:
            recipe = read_recipe(self.path)
            run = recipe_run(self.config, recipe)
            return [item for action in actions_in_order(recipe) for item in self._items(run, action)]
        except RequestError as error:
            raise self.CollectError(str(error)) from None

    def _items(self, run: RecipeRun, action: Action) -> Iterable[pytest.Item]:
        if action.is_matrix:
            from pytest_aorta.plugin.recipes.recipe_trial_item import trial_items

            yield from trial_items(self, run, action)
            return
        if action.table.launchers:
            run.prefix(action, 1)  # refused now, and not when it is about to run
        matrix = matrix_before(action, run.recipe)
        if action.table.each != "directory" or matrix is not None:
            run.matrix_units[action.name] = self._matrix_units(run, action, matrix)
        for unit in command_units(run.recipe, action, run.units_of(action)):
            item: CommandItem = CommandItem.from_parent(self, name=unit.name)
            item.unit, item.run = unit, run
            item.extra_keyword_matches.update([action.name, *unit.units])
            run.declare(action.name, unit.units, item.nodeid)
            yield item

    def _matrix_units(self, run: RecipeRun, action: Action, matrix: Action | None) -> Units:
        """The units of a matrix that a command is run on."""
        each = action.table.each
        if matrix is None or each == "directory":
            why = "follows no action with a workload" if matrix is None else f"follows the workload of {matrix.name!r}"
            expected = "directory" if matrix is None else "trial, cell or matrix"
            raise RecipeError(
                f"action {action.name!r} {why}; each = {each!r} cannot be, expected {expected}",
                run.recipe.file,
                action.line,
            )
        from pytest_aorta.plugin.recipes.action_runs import action_run
        from pytest_aorta.plugin.recipes.matrix_units import MatrixUnits

        return MatrixUnits(matrix, action_run(self.config, run, matrix).plan, each)
