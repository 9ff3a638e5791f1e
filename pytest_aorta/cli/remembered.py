"""What ``pytest-aorta status`` has worked out, which stands as long as no file has changed that it was made from.

``status.json`` has the last answer. ``requests.json`` has what the recipe asks of its cells, which costs as much to
work out as the recipe to read, and which new results do not change.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta._version import __version__
from pytest_aorta.workspace.index.journal import journals

if TYPE_CHECKING:
    from pytest_aorta.workflow.cell_requests import CellRequest, Requests

#: A file that has changed less than this ago may change again without getting another time of modification.
_COARSEST_CLOCK_NS = 2 * 10**9

_REGISTRY = Path(__file__).parents[1] / "registry"

#: Rows as ``--json`` has them, with the text of the cost.
Rows = list[dict[str, Any]]


def remembered(recipe: Path, files: Sequence[str]) -> Rows | None:
    """The rows of the last answer for a recipe, if they are those of today; ``files``: registry files."""
    index = recipe.parent / ".aorta"
    found: Rows | None = None if journals(index / "staged") else _load(index / "status.json", recipe, files)
    return found


def remember(recipe: Path, files: Sequence[str], looked_at: Iterable[str | os.PathLike[str]], rows: Rows) -> None:
    """Keep the rows of an answer.

    Args:
        recipe: file of the recipe.
        files: registry files.
        looked_at: workspace, source files: what was looked at besides.
        rows: of all actions.
    """
    index = recipe.parent / ".aorta"
    own = [index / name for name in ("index.json", "submitted.json", "values.json")]
    if not journals(index / "staged"):
        _keep(index / "status.json", recipe, files, [*own, *looked_at], rows)


def remembered_requests(recipe: Path, files: Sequence[str]) -> dict[str, dict[str, CellRequest]] | None:
    """What is asked of the cells of a recipe, if that is known; ``files``: registry files."""
    found = _load(recipe.parent / ".aorta" / "requests.json", recipe, files)
    if found is None:
        return None
    from pytest_aorta.workflow.cell_requests import CellRequest

    try:
        return {
            action: {cell: CellRequest(digest, value, (folder[0], folder[1])) for cell, digest, value, folder in cells}
            for action, cells in found.items()
        }
    except (ValueError, TypeError, IndexError, AttributeError):
        return None


def remember_requests(recipe: Path, files: Sequence[str], requests: Requests) -> None:
    """Keep what is asked of the cells of a recipe."""
    plain = {
        action: [[cell, each.digest, each.value, each.folder] for cell, each in cells.items()]
        for action, cells in requests.items()
    }
    _keep(recipe.parent / ".aorta" / "requests.json", recipe, files, (), plain)


def _load(file: Path, recipe: Path, files: Sequence[str]) -> Any:
    """What ``_keep`` has written, if it is of today; else ``None``."""
    try:
        content = json.loads(file.read_bytes())
        is_same = content["asked"] == _asked(recipe, files)
        if is_same and all(_stamp(path) == stamp for path, stamp in content["stamps"].items()):
            return content["found"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return None


def _keep(
    file: Path, recipe: Path, files: Sequence[str], looked_at: Iterable[str | os.PathLike[str]], found: object
) -> None:
    """Write what was worked out from a recipe, registry files, installed packages, and what was looked at besides."""
    known = [_REGISTRY / name for name in ("builtin_environments.py", "builtin_mitigations.py")]
    paths = map(os.path.abspath, [recipe, *known, *files, *sys.path, *looked_at])
    stamps = {path: _stamp(path) for path in paths}
    latest = max((stamp[0] for stamp in stamps.values() if stamp is not None), default=0)
    if time.time_ns() - latest > _COARSEST_CLOCK_NS:
        from pytest_aorta.workspace.atomic import write_text

        with contextlib.suppress(OSError):
            write_text(file, json.dumps({"asked": _asked(recipe, files), "stamps": stamps, "found": found}))


def _asked(recipe: Path, files: Sequence[str]) -> list[Any]:
    return [__version__, str(recipe), os.getcwd(), list(files), sys.path]


def _stamp(path: str | os.PathLike[str]) -> list[int] | None:
    """Time of modification and size; ``None`` where nothing is there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_mtime_ns, status.st_size]
