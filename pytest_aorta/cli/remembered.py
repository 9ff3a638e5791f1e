"""The last answer of ``pytest-aorta status``, which stands as long as no file has changed that it was made from."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_aorta._version import __version__
from pytest_aorta.workspace.atomic import write_text
from pytest_aorta.workspace.index.journal import journals

#: A file that has changed less than this ago may change again without getting another time of modification.
_COARSEST_CLOCK_NS = 2 * 10**9

_REGISTRY = Path(__file__).parents[1] / "registry"

#: Rows as ``--json`` has them, with the text of the cost.
Rows = list[dict[str, Any]]


def remembered(recipe: Path, files: Sequence[str]) -> Rows | None:
    """The rows of the last answer for a recipe, if they are those of today; ``files``: registry files."""
    index = recipe.parent / ".aorta"
    try:
        content = json.loads((index / "status.json").read_bytes())
        is_same = content["asked"] == _asked(recipe, files) and not journals(index / "staged")
        if is_same and all(_stamp(path) == stamp for path, stamp in content["stamps"].items()):
            rows: Rows = content["rows"]
            return rows
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    return None


def remember(recipe: Path, files: Sequence[str], looked_at: Iterable[str | os.PathLike[str]], rows: Rows) -> None:
    """Keep the rows of an answer.

    Args:
        recipe: file of the recipe.
        files: registry files.
        looked_at: workspace, source files: what was looked at besides.
        rows: of all actions.
    """
    index = recipe.parent / ".aorta"
    own = [index / name for name in ("index.json", "submitted.json", "decided.json", "values.json")]
    known = [_REGISTRY / name for name in ("builtin_environments.py", "builtin_mitigations.py")]
    paths = [recipe, *own, *known, *files, *sys.path, *looked_at]
    stamps = {os.path.abspath(path): _stamp(path) for path in paths}
    latest = max((stamp[0] for stamp in stamps.values() if stamp is not None), default=0)
    if time.time_ns() - latest > _COARSEST_CLOCK_NS and not journals(index / "staged"):
        content = {"asked": _asked(recipe, files), "stamps": stamps, "rows": rows}
        with contextlib.suppress(OSError):
            write_text(index / "status.json", json.dumps(content))


def _asked(recipe: Path, files: Sequence[str]) -> list[Any]:
    return [__version__, str(recipe), os.getcwd(), list(files), sys.path]


def _stamp(path: str | os.PathLike[str]) -> list[int] | None:
    """Time of modification and size; ``None`` where nothing is there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_mtime_ns, status.st_size]
