"""A recipe as a test file: its collector."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_aorta.common.request_error import RequestError
from pytest_aorta.plugin.recipes.command_item import CommandItem
from pytest_aorta.plugin.recipes.recipe_run import recipe_run
from pytest_aorta.workflow.command_units import actions_in_order, command_units
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.reading import read_recipe
from pytest_aorta.workflow.recipe import FILE_NAMES

_OWN, _ROW = FILE_NAMES


class RecipeFile(pytest.File):
    """A recipe. Its items are its actions on their directories, each after those that it follows."""

    def collect(self) -> Iterable[pytest.Item]:
        """All of them, complete ones included: those are shown as they are."""
        try:
            recipe = read_recipe(self.path)
            run = recipe_run(self.config, recipe)
            items: list[pytest.Item] = []
            for action in actions_in_order(recipe):
                if action.is_matrix:
                    raise RecipeError(f"action {action.name!r}: workloads are not run yet", recipe.file, action.line)
                for unit in command_units(recipe, action, run.directories):
                    item: CommandItem = CommandItem.from_parent(self, name=unit.name)
                    item.unit, item.run = unit, run
                    item.extra_keyword_matches.update([action.name, *unit.directories])
                    run.declare(action.name, unit.directories, item.nodeid)
                    items.append(item)
        except RequestError as error:
            raise self.CollectError(str(error)) from None
        return items


def recipe_file(path: Path, parent: pytest.Collector) -> RecipeFile | None:
    """A collector for ``aorta.toml`` and ``*.aorta.toml``, and for Row's ``workflow.toml`` where it is given itself."""
    is_own = path.name == _OWN or path.name.endswith(f".{_OWN}")
    if is_own or (path.name == _ROW and parent.session.isinitpath(path)):
        collector: RecipeFile = RecipeFile.from_parent(parent, path=path)
        return collector
    return None
