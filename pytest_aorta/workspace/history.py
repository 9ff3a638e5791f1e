"""Earlier results are moved aside, never overwritten; a folder has the trials of one cell."""

from __future__ import annotations

import contextlib
import datetime
import glob
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from pytest_aorta.common.texts import identifier
from pytest_aorta.workspace.paths import HISTORY, PartKind, TrialPaths

#: Earlier records of a trial that are kept.
KEPT_RECORDS = 10

#: The file of a trial, or of a repeat.
_RECORD = re.compile(r"trial_\d+(?:\.repeat_\d+)?\.json")


def stamp() -> str:
    """A run's folder name below ``.history``: UTC time with microseconds, sortable."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")


def began(run: str) -> str:
    """When a run with this stamp began, as the start of a trial has it, to the millisecond."""
    return f"{run[:4]}-{run[4:6]}-{run[6:8]}T{run[9:11]}:{run[11:13]}:{run[13:19]}"


def earlier_files(results: Path, folder: PurePosixPath, run: str) -> list[Path]:
    """The trial files of a folder, and those that a run has moved from there to the history."""
    found = results.joinpath(folder).glob("trial_*.json")
    moved = results.glob(f"{HISTORY}/{run}*/{folder}/trial_*.json")
    return [path for path in (*found, *moved) if not TrialPaths(PurePosixPath(path.name)).repeat]


def retire(
    results: Path,
    paths: TrialPaths,
    run: str,
    rank: int | None = None,
    kind: PartKind = "rank",
    *,
    with_artifacts: bool = True,
    may_have_further: bool = True,
) -> None:
    """Move a trial's file and artifacts to ``.history/<run>/``, where there are any.

    The file is moved first: what is left does not look like a result then.

    Where each rank is a pytest process, each moves the artifacts of its own ``rank``, and rank 0 the file as well;
    ``None`` moves everything. ``with_artifacts``: whether the artifacts belong to the file. ``may_have_further``:
    whether to look for folders of further ranks and nodes.
    """
    parts = [paths.file, paths.folder] if not rank else [PurePosixPath(paths.folder_in(Path(), rank, kind))]
    if not with_artifacts:
        parts = [paths.file]
    elif rank is None and may_have_further:
        parts += [PurePosixPath(path.relative_to(results).as_posix()) for path in further_folders(results, paths)]
    folder = None
    for part in parts:
        if os.path.lexists(results / part):
            if folder is None:
                folder = _free(results / HISTORY, run, parts)
                (folder / parts[0]).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                (results / part).rename(folder / part)


def further_folders(results: Path, paths: TrialPaths) -> list[Path]:
    name, folder = glob.escape(paths.folder.name), results / paths.folder.parent
    return sorted([*folder.glob(f"{name}.rank_*"), *folder.glob(f"{name}.node_*")])


def _free(history: Path, run: str, parts: Collection[PurePosixPath]) -> Path:
    """The folder that parts of a trial go to: ``<run>``, or where they are there already ``<run>~1``, ...

    They keep their names, and so a record names its own artifacts.
    """
    for number in itertools.count():
        folder = history / (f"{run}~{number}" if number else run)
        if not any(os.path.lexists(folder / part) for part in parts):
            return folder
    raise AssertionError


def _order(run: str) -> tuple[str, int]:
    name, _, number = run.partition("~")
    return name, int(number) if number.isdecimal() else 0


def retired_file(results: Path, paths: TrialPaths, run: str) -> Path:
    target = _free(results / HISTORY, run, [paths.file]) / paths.file
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def retire_others(
    results: Path, workloads: Collection[str], kept: Collection[TrialPaths], run: str, before: float = math.inf
) -> None:
    """Move what a complete run of ``workloads`` no longer holds to ``.history/<run>/``.

    What was written after ``before`` (seconds as of ``time.time()``) stays: it is of another run, at the same time.
    """
    files = {paths.file for paths in kept}
    for workload in workloads:
        for paths in list(_trials(results, workload)):
            if paths.file not in files and (results / paths.file).lstat().st_mtime < before:
                retire(results, paths, run)
                with contextlib.suppress(OSError):
                    (results / paths.file).parent.rmdir()  # only when it is empty


def _trials(results: Path, workload: str) -> Iterator[TrialPaths]:
    for path in sorted((results / workload).glob("trial_*.json")) + sorted((results / workload).glob("*/trial_*.json")):
        yield TrialPaths(PurePosixPath(path.relative_to(results).as_posix()))


def prune(results: Path, run: str, kept: int) -> int:
    """Of each workload that ``run`` has moved records of, keep those of the newest ``kept`` runs; how many are gone."""
    history, removed = results / HISTORY, 0
    if not (history / run).is_dir():
        return 0
    for workload in [path.name for path in (history / run).glob("*") if path.is_dir()]:
        found = sorted(history.glob(f"*/{glob.escape(workload)}"), key=lambda path: _order(path.parent.name))
        for folder in found[: max(0, len(found) - kept)]:
            removed += sum(_RECORD.fullmatch(path.name) is not None for path in folder.rglob("*.json"))
            shutil.rmtree(folder, ignore_errors=True)
    for folder in history.glob("*"):
        if not any(path.is_dir() for path in folder.glob("*")):  # of its records, none is left
            shutil.rmtree(folder, ignore_errors=True)
    return removed


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


def sort_into_cells(results: Path, workload: str, cell: str | None, run: str) -> None:
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
            retire(results, paths, run, with_artifacts=with_artifacts)
            return
        retire(results, there, run)
    artifacts = [paths.folder_in(results), *further_folders(results, paths)] if with_artifacts else []
    if any((folder / path.name).exists() and path.exists() for path in artifacts):
        return
    folder.mkdir(exist_ok=True)
    for path in [*artifacts, file]:
        with contextlib.suppress(FileNotFoundError):  # there are none, or another process was faster
            path.rename(folder / path.name)
