"""The directories of the workspace of a recipe."""

from __future__ import annotations

from pytest_aorta.workflow.actions import Recipe
from pytest_aorta.workspace.index.directories import Directories


def directories_of(recipe: Recipe, *, cached: bool) -> Directories:
    """All folders in the workspace but the results of workloads and the index.

    Args:
        recipe: whose workspace it is.
        cached: whether what the index has of an unchanged workspace stands, also where a value file was edited.
    """
    without = [action.name for action in recipe.actions if action.is_matrix]
    return Directories(
        recipe.index if cached else None,
        recipe.directories,
        recipe.workspace.value_file,
        [*without, recipe.index.name],
    )
