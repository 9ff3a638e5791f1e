"""What was found on disk, into the index; what others have completed in the meantime stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from pytest_aorta.workspace.atomic import locked
from pytest_aorta.workspace.index.cache import NO_RECORD, STATUSES, Index, fold, write_cache
from pytest_aorta.workspace.index.completions import CommandCompletion, Completion, TrialCompletion

#: An action with a cell and a trial, or with a directory.
Key: TypeAlias = "tuple[str, str, int] | tuple[str, str]"


@dataclass(frozen=True)
class Merged:
    """How many completions were new, or others than before, and how many are not there any more."""

    changed: int
    removed: int


def completions_of(index: Index) -> dict[Key, Completion]:
    """All completions of an index."""
    found: dict[Key, Completion] = {}
    for action, cells in index.cells.items():
        for cell, records in cells.items():
            for each in records:
                for trial, letter in enumerate(each.letters.decode()):
                    if letter != NO_RECORD:
                        found[action, cell, trial] = TrialCompletion(
                            action, cell, trial, STATUSES[letter], each.request, each.sources
                        )
    for action, outcomes in index.commands.items():
        for directory, outcome in outcomes.items():
            found[action, directory] = CommandCompletion(action, directory, outcome)
    return found


def merge(folder: Path, before: Index, found: Index, is_gone: Callable[[Key], bool] = lambda key: False) -> Merged:
    """Add what was found to the index, and remove what is gone.

    Args:
        folder: of the index.
        before: the index as it was when the search began; an entry that has changed since is newer than the search.
        found: what was found.
        is_gone: whether an entry that was not found is to be removed.

    Raises:
        OSError: the folder cannot be written; the index is as before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old, new = completions_of(before), completions_of(found)
    with locked(folder):
        index, _ = fold(folder)
        now = completions_of(index)
        changed = [new[key] for key in new if now.get(key) == old.get(key) != new[key]]
        removed = [old[key] for key in old.keys() - new.keys() if now.get(key) == old[key] and is_gone(key)]
        for completion in [*changed, *map(_without, removed)]:
            index.add(completion)
        write_cache(folder, index)
    return Merged(len(changed), len(removed))


def _without(completion: Completion) -> Completion:
    if isinstance(completion, CommandCompletion):
        return replace(completion, outcome=None)
    return replace(completion, exit_status=None)
