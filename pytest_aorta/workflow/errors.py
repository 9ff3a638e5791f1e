"""What is wrong with a recipe."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.settings import RequestError


class RecipeError(RequestError):
    """A recipe that cannot be carried out.

    Args:
        message: the bad value, and what would be valid.
        file: the recipe, if known where the error is found.
        line: of the recipe, counted from 1.
    """

    def __init__(self, message: str, file: Path | None = None, line: int | None = None) -> None:
        place = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(f"{place}{message}")
        self.message = message
