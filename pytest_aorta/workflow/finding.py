"""Finding the recipe of a folder without reading it, and errors of recipes."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_aorta.settings import RequestError

#: Searched for from the working directory upwards; the second is Row's.
FILE_NAMES = ("aorta.toml", "workflow.toml")

#: Files that Row reads, too; later versions of Row may add keys.
FILES_OF_ROW = ("workflow.toml", "clusters.toml", "launchers.toml")


class UnknownKey(UserWarning):
    """A file of Row's has a key that this version does not know."""


def is_sweep(file: Path) -> bool:
    """Whether a file looks like a sweep recipe of AORTA's."""
    if file.suffix not in (".yaml", ".yml"):
        return False
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^(cells|mitigation_axis|sanitizer_plan)\s*:", text, re.MULTILINE) is not None


class RecipeError(RequestError):
    """A recipe is not valid. The message has the file, the line, the bad value and the valid ones."""

    def __init__(self, message: str, file: Path | None = None, line: int | None = None) -> None:
        place = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(f"{place}{message}")


def find_recipe(start: Path) -> Path:
    """The recipe of a folder, or of the nearest folder above; raises ``RecipeError`` where there is none."""
    for folder in (start.absolute(), *start.absolute().parents):
        for name in FILE_NAMES:
            if (folder / name).is_file():
                return folder / name
    raise RecipeError(f"no {' or '.join(FILE_NAMES)} in {start.absolute()} or above it; pytest-aorta init makes one")
