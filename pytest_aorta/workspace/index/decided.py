"""Cells of a recipe of which no more trials are needed: ``decided.json`` beside the index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aorta.workspace.atomic import locked, write_json

_FILE = "decided.json"


@dataclass(frozen=True)
class DecidedCells:
    """Of one action.

    Attributes:
        asked: digest of what was asked of all of its cells, which the decisions are about.
        cells: why no more trials are needed, by cell.
    """

    asked: str
    cells: Mapping[str, str] = field(default_factory=dict)


#: By action.
Decided = Mapping[str, DecidedCells]


def read_decided(folder: Path) -> Decided:
    """What is known in the folder of an index; nothing where the file is missing, or damaged."""
    try:
        content = json.loads((folder / _FILE).read_bytes())
        return {
            str(action): DecidedCells(str(each["asked"]), {str(cell): str(why) for cell, why in each["cells"].items()})
            for action, each in content.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}


def note_decided(folder: Path, action: str, found: DecidedCells) -> None:
    """Add the decisions of a run; they replace those on another request.

    Raises:
        OSError: the folder cannot be written.
    """
    if not _changed(read_decided(folder), action, found):  # mostly, and then nothing is made or locked
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        known = read_decided(folder)
        if changed := _changed(known, action, found):
            decided = {**known, action: changed}
            write_json(folder / _FILE, {name: vars(each) for name, each in decided.items()})


def _changed(known: Decided, action: str, found: DecidedCells) -> DecidedCells | None:
    """What is known of an action with what was found; ``None`` where that is nothing new."""
    before = known.get(action, DecidedCells(""))
    cells = {**(before.cells if before.asked == found.asked else {}), **found.cells}
    is_same = (before.asked, dict(before.cells)) == (found.asked, cells)
    return None if is_same or not (cells or before.cells) else DecidedCells(found.asked, cells)
