"""Recipes from short texts."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.workflow.known import Workspace
from pytest_aorta.workflow.recipe import Recipe, parse_recipe

ONE = """
[[action]]
name = "one"
command = "echo {directory}"
"""


def recipe_of(text: str, file: str = "/project/aorta.toml") -> Recipe:
    return parse_recipe(text, Path(file))


def noted(folder: Path) -> dict[str, dict[str, str]]:
    workspace = Workspace.from_cache(parse_recipe("", folder / "aorta.toml"))
    assert not workspace.damaged
    completed = workspace.known.completed
    return {name: {unit: each[0] for unit, each in units.items() if each} for name, units in completed.items()}
