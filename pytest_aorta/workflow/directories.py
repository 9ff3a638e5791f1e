"""The directories of a workspace and their values, as they are on disk now."""

from __future__ import annotations

import json
from functools import cached_property

from pytest_aorta.workflow.actions import Recipe
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.values import Json


class Directories:
    """Those of one recipe. Each value file is read once, when its value is first asked for."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._values: dict[str, Json] = {}

    @cached_property
    def names(self) -> list[str]:
        """All folders in the workspace but the results of workloads, sorted; none where there is no workspace.

        Raises:
            RecipeError: the workspace cannot be read.
        """
        recipe = self._recipe
        results = {action.name for action in recipe.actions if action.is_matrix}
        try:
            found = [path.name for path in recipe.directories.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RecipeError(
                f"the workspace {recipe.directories} cannot be read: {error.strerror}", recipe.file
            ) from None
        return sorted(name for name in found if name not in results and name != recipe.index.name)

    def path_of(self, name: str) -> str:
        """The folder of a directory, relative to the workspace."""
        return name

    def value_of(self, name: str) -> Json:
        """What the value file of a directory says; null where the recipe names no value file.

        Raises:
            RecipeError: the file cannot be read, or is not JSON.
        """
        value_file = self._recipe.workspace.value_file
        if value_file is None:
            return None
        if name not in self._values:
            file = self._recipe.directories / name / value_file
            try:
                self._values[name] = json.loads(file.read_text(encoding="utf-8"))
            except OSError as error:
                raise RecipeError(f"the value of directory {name!r} cannot be read: {file}: {error.strerror}") from None
            except ValueError as error:
                raise RecipeError(f"the value of directory {name!r} is not JSON: {file}: {error}") from None
        return self._values[name]
