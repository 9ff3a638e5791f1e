"""Where the recipe of a folder is; found without reading it."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.workflow.errors import RecipeError

#: Where the files are that a recipe searches for, from the working directory upwards; the second is Row's.
FILE_NAMES = ("aorta.toml", "workflow.toml")


def find_recipe(start: Path) -> Path:
    """The recipe of a folder: its own, or that of the nearest folder above.

    Raises:
        RecipeError: there is none.
    """
    for folder in (start.absolute(), *start.absolute().parents):
        for name in FILE_NAMES:
            if (folder / name).is_file():
                return folder / name
    raise RecipeError(f"no {' or '.join(FILE_NAMES)} in {start.absolute()} or above it; pytest-aorta init makes one")
