"""Recipes from short texts."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.workflow.recipe import Recipe, parse_recipe

ONE = """
[[action]]
name = "one"
command = "echo {directory}"
"""


def recipe_of(text: str, file: str = "/project/aorta.toml") -> Recipe:
    """The recipe in a text."""
    return parse_recipe(text, Path(file))
