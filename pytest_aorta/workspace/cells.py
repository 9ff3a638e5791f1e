"""One folder, one cell: what lies where a plan has had it, and now has something else, moves to where it belongs."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path, PurePosixPath

from pytest_aorta.trials.conversion import identifier
from pytest_aorta.workspace import history
from pytest_aorta.workspace.paths import TrialPaths

#: The cell among the first lines of a trial file; to read all of thousands of them would take seconds.
_CELL = re.compile(r'^ "cell": ("(?:[^"\\]|\\.)*"),$', re.MULTILINE)

#: Characters that these lines have.
_HEAD = 4096


def cell_of(file: Path) -> str | None:
    """The cell of a trial file; ``None`` when there is none, or it is torn."""
    try:
        with file.open(encoding="utf-8") as opened:
            head = opened.read(_HEAD)
        found = _CELL.search(head)
        cell = json.loads(found[1]) if found else json.loads(file.read_text(encoding="utf-8")).get("cell")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return cell if isinstance(cell, str) else None


def started_at(file: Path) -> str:
    """When the trial of a file was started, sortable; empty when that cannot be read."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["started_at"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def settle(results: Path, workload: str, cell: str | None, run: str) -> None:
    """Give every file of a workload the place that it has in a plan with only this ``cell``, ``None`` for several.

    Of two records of one trial, the one that was started later stays, and the other one moves to ``.history/<run>/``.
    """
    top = results / identifier(workload)
    for file in sorted(top.glob("trial_*.json")):
        own = cell_of(file)
        if own is not None and own != cell:
            move(results, file, top / identifier(own), run)
    if cell is not None:
        folder = top / identifier(cell)
        for file in sorted(folder.glob("trial_*.json")):
            if cell_of(file) == cell:
                move(results, file, top, run)
        with contextlib.suppress(OSError):
            folder.rmdir()  # only when it is empty


def move_other_cell(results: Path, paths: TrialPaths, run: str, *, with_artifacts: bool = True) -> None:
    """Move what lies in a trial's place, and is of another cell, to the folder of that cell."""
    if paths.cell is None:
        return
    file = paths.file_in(results)
    own = cell_of(file)
    if own is not None and own != paths.cell:
        move(results, file, file.parent / identifier(own), run, with_artifacts=with_artifacts)


def move(results: Path, file: Path, folder: Path, run: str, *, with_artifacts: bool = True) -> None:
    """Move a trial into ``folder``, unless something that is no record is there.

    The file goes last, so that a move which was cut short can be gone on with.
    """
    paths = TrialPaths(PurePosixPath(file.relative_to(results).as_posix()))
    there = TrialPaths(PurePosixPath((folder / file.name).relative_to(results).as_posix()))
    if (folder / file.name).exists():
        if not (other := started_at(folder / file.name)):
            return
        if other > started_at(file):
            history.retire(results, paths, run, with_artifacts=with_artifacts)
            return
        history.retire(results, there, run)
    artifacts = [paths.folder_in(results), *history.further_folders(results, paths)] if with_artifacts else []
    if any((folder / path.name).exists() and path.exists() for path in artifacts):
        return
    folder.mkdir(exist_ok=True)
    for path in [*artifacts, file]:
        with contextlib.suppress(FileNotFoundError):  # there are none, or another process was faster
            path.rename(folder / path.name)
