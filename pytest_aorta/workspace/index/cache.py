"""The compact form of all completions of a workspace: one JSON file that is read whole, and rewritten by rename."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_aorta.workspace.atomic import locked, staged_text
from pytest_aorta.workspace.index.completions import LETTERS, CommandCompletion, Completion, Outcome, TrialCompletion
from pytest_aorta.workspace.index.journal import has_ended, journals, read_journal

VERSION = 1

STATUSES: Mapping[str, str] = {letter: status for status, letter in LETTERS.items()}

#: Stands for a trial without a record.
NO_RECORD = "-"
_LETTERS = "".join([*STATUSES, NO_RECORD]).encode()


@dataclass
class CellRecords:
    """The trials of one cell whose records are of one request.

    Attributes:
        request: digest of what the recipe said of the cell.
        sources: digests of the workload's source files, by path.
        letters: one per trial, see ``completions.LETTERS``.
    """

    request: str
    sources: Mapping[str, str]
    letters: bytearray = field(default_factory=bytearray)

    def set(self, trial: int, letter: str) -> None:
        """Note the record of a trial."""
        missing = trial + 1 - len(self.letters)
        self.letters.extend(NO_RECORD.encode() * missing)
        self.letters[trial] = ord(letter)


@dataclass
class Index:
    """All completions of a workspace.

    Attributes:
        cells: action to cell to its records; of several requests, where the recipe has changed meanwhile.
        commands: action to directory to what has become of it.
        folded: names of the journals that are in it, and may still be there because a reader was killed.
        damaged: files of the index that could not be read, or not wholly, with the reason: what they had said is
            missing.
    """

    cells: dict[str, dict[str, list[CellRecords]]] = field(default_factory=dict)
    commands: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)

    def add(self, completion: Completion) -> None:
        """Note a completion; it replaces what was known of the same trial, or directory."""
        if isinstance(completion, CommandCompletion):
            outcomes = self.commands.setdefault(completion.action, {})
            if completion.outcome is None:
                outcomes.pop(completion.directory, None)
            else:
                outcomes[completion.directory] = completion.outcome
            return
        records = self.cells.setdefault(completion.action, {}).setdefault(completion.cell, [])
        for other in records:
            if completion.trial < len(other.letters):
                other.set(completion.trial, NO_RECORD)
        if completion.exit_status is not None:
            self._records_of(records, completion).set(completion.trial, LETTERS[completion.exit_status])
        records[:] = [each for each in records if each.letters.strip(NO_RECORD.encode())]

    def _records_of(self, records: list[CellRecords], completion: TrialCompletion) -> CellRecords:
        for found in records:
            if found.request == completion.request and found.sources == completion.sources:
                return found
        records.append(CellRecords(completion.request, completion.sources))
        return records[-1]


def read_index(folder: Path) -> Index:
    """The index of a workspace: its cache, with the journals of others; those that have ended are folded into it.

    Where the folder cannot be written, nothing is folded.
    """
    if not journals(folder / "staged"):
        return load_cache(folder)
    with locked(folder):
        index, growing = fold(folder)
    _add_all(index, growing, growing=True)
    return index


def fold(folder: Path) -> tuple[Index, list[Path]]:
    """The cache with the journals that have ended folded into it, and those that may still grow.

    Hold the lock of the folder meanwhile.
    """
    index = load_cache(folder)
    found = journals(folder / "staged")
    ended = [path for path in found if has_ended(path)]
    _add_all(index, ended)
    index.folded = [path.name for path in ended]
    if ended and not index.damaged:  # else they stay until a scan has found what is missing
        with contextlib.suppress(OSError):
            write_cache(folder, index)
            for path in ended:
                path.unlink(missing_ok=True)
    return index, [path for path in found if path not in ended]


def load_cache(folder: Path) -> Index:
    """The cache alone; an empty one where there is none, or one that is damaged, or of another version."""
    try:
        content = json.loads((folder / "index.json").read_bytes())
        if content["version"] != VERSION:
            return Index(damaged={"index.json": f"is of version {content['version']!r}, and not {VERSION}"})
        return _from_plain(content)
    except FileNotFoundError:
        return Index()
    except OSError as error:
        return Index(damaged={"index.json": f"cannot be read: {error.strerror}"})
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return Index(damaged={"index.json": "is damaged"})


def write_cache(folder: Path, index: Index) -> None:
    """Write the cache; hold the lock of the folder meanwhile.

    Raises:
        OSError: the folder cannot be written; the cache is as before.
    """
    with staged_text(folder / "index.json", json.dumps(_to_plain(index))) as temporary:
        temporary.replace(folder / "index.json")


def _add_all(index: Index, paths: Iterable[Path], *, growing: bool = False) -> None:
    for path in paths:
        if path.name in index.folded:
            continue
        unknown = 0
        try:
            for completion in read_journal(path):
                if completion is None:
                    unknown += 1
                else:
                    index.add(completion)
        except OSError as error:
            index.damaged[path.name] = f"cannot be read: {error.strerror}"
        if unknown and not growing:  # it is named when it has ended
            index.damaged[path.name] = f"has {unknown:,} line{'s' * (unknown > 1)} that cannot be read"


def _to_plain(index: Index) -> dict[str, Any]:
    sources: list[Mapping[str, str]] = []
    numbers: dict[str, int] = {}

    def number_of(each: Mapping[str, str]) -> int:
        key = json.dumps(each, sort_keys=True)
        if key not in numbers:
            numbers[key] = len(sources)
            sources.append(each)
        return numbers[key]

    cells = {
        action: {
            cell: [[each.request, number_of(each.sources), each.letters.decode()] for each in records]
            for cell, records in of_cells.items()
        }
        for action, of_cells in index.cells.items()
    }
    return {"version": VERSION, "sources": sources, "cells": cells, "commands": index.commands, "folded": index.folded}


def _from_plain(content: Mapping[str, Any]) -> Index:
    sources = content["sources"]
    cells = {
        action: {
            cell: [
                CellRecords(request, sources[number], bytearray(letters.encode()))
                for request, number, letters in records
            ]
            for cell, records in of_cells.items()
        }
        for action, of_cells in content["cells"].items()
    }
    commands = {action: dict(outcomes.items()) for action, outcomes in content["commands"].items()}
    every = [records for of_cells in cells.values() for of_cell in of_cells.values() for records in of_cell]
    if (
        any(each.letters.strip(_LETTERS) or type(each.request) is not str for each in every)
        or any(type(each) is not dict for each in sources)
        or any({*outcomes.values()} - {"completed", "failed"} for outcomes in commands.values())
    ):
        raise ValueError("not the values of an index")
    return Index(cells, commands, list(content["folded"]))
