"""The results of one run: earlier ones are found or moved aside, never overwritten; new ones are written."""

from __future__ import annotations

import contextlib
import datetime
import glob
import itertools
import json
import logging
import math
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.texts import identifier
from pytest_aorta.probe.software import package_list_name, read_package_list
from pytest_aorta.trials.losses import is_lost, obstacle_of, shared_event, was_interrupted
from pytest_aorta.trials.spec import IMPORTED_MODULES
from pytest_aorta.workspace.atomic import as_json, locked, remove_abandoned, staged_text, write_json
from pytest_aorta.workspace.paths import HISTORY, PartKind, TrialPaths, time_of_run

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult


#: Earlier records of a trial that are kept.
KEPT_RECORDS = 10

#: The file of a trial, or of a repeat.
_RECORD = re.compile(r"trial_\d+(?:\.repeat_\d+)?\.json")


def stamp() -> str:
    """A run's folder name below ``.history``: UTC time with microseconds, sortable."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")


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


def retire_others(
    results: Path, workloads: Collection[str], kept: Collection[TrialPaths], run: str, before: float = math.inf
) -> None:
    """Move what a complete run of ``workloads`` no longer holds to ``.history/<run>/``.

    What was written after ``before`` (seconds as of ``time.time()``) stays: it is of another run, at the same time.
    """
    files = {paths.file for paths in kept}
    for workload in workloads:
        there = [*(results / workload).glob("trial_*.json"), *(results / workload).glob("*/trial_*.json")]
        for paths in [TrialPaths(PurePosixPath(path.relative_to(results).as_posix())) for path in there]:
            if paths.file not in files and (results / paths.file).lstat().st_mtime < before:
                retire(results, paths, run)
                with contextlib.suppress(OSError):
                    (results / paths.file).parent.rmdir()  # only when it is empty


def prune(results: Path, run: str, kept: int) -> int:
    """Delete all but the newest ``kept`` runs in the history of each workload that ``run`` moved; how many are gone."""
    history, removed = results / HISTORY, 0
    if not (history / run).is_dir():
        return 0
    for workload in [path.name for path in (history / run).glob("*") if path.is_dir()]:
        folders = list(history.glob(f"*/{glob.escape(workload)}"))
        names = {folder: folder.parent.name for folder in folders}  # <run>, <run>~1, ... <run>~10
        folders.sort(key=lambda folder: (names[folder].partition("~")[0], len(names[folder]), names[folder]))
        for folder in folders[: max(0, len(folders) - kept)]:
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
        match = _CELL.search(head)
        cell = json.loads(match[1]) if match else json.loads(file.read_text(encoding="utf-8")).get("cell")
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


def read_record(file: Path) -> TrialResult | None:
    """The record in a trial file; ``None`` when there is none, or it is torn."""
    from pytest_aorta.trials.result import TrialResult  # pydantic, which the writer does without until here

    try:
        return TrialResult.from_dict(_load(file))
    except (OSError, ValueError, RecursionError):
        return None


def reasons_against(record: TrialResult) -> list[str]:
    """Why a record cannot stand for any trial; empty where it may."""
    if is_lost(record.to_dict()):
        when = " before run()" if record.exit_status == "timeout" else ""
        return [f"{record.exit_status}{when}, which says nothing about the workload"]
    if was_interrupted(record.to_dict()):
        return ["its cleanup was interrupted"]
    return [] if record.request_fingerprint is not None else ["its request was not recorded"]


def read_kept(file: Path) -> TrialResult | None:
    record = read_record(file)
    return None if record is None or reasons_against(record) else record


def retitle(file: Path, trial_id: str) -> None:
    content = _load(file)
    if content["trial_id"] != trial_id:
        # As it was read, and not through the model, which leaves out what it does not know.
        write_json(file, {**content, "trial_id": trial_id})


def _load(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


#: Parts of the path of a trial file that lies in its workload's folder.
_FLAT = 2


class TrialStore:
    """Trial files and artifacts below a results directory.

    Where several processes run the same trials together, as the ranks of an outer launcher or as nodes, each has a
    store of its own: it moves its own artifacts aside, and only that of ``number`` 0 writes. ``stamp``: name of the
    run in the history. ``resume``: whether an earlier result of the same request stands for a trial.
    """

    def __init__(
        self, results: Path, stamp: str, *, resume: bool = False, number: int | None = None, kind: PartKind = "rank"
    ) -> None:
        self.results = results
        self.stamp = stamp
        self.resume = resume
        self.number = number
        self.kind: PartKind = kind
        self.is_writer = not number
        _log.info("store %s opened by run %s%s", results, stamp, ", with resume" if resume else "")
        self._begun = time.time()
        #: Trial files of this run, relative to the results directory, including failed writes.
        self.written: set[PurePosixPath] = set()
        #: Why an earlier result does not stand for a trial.
        self.not_kept: dict[TrialPaths, list[str]] = {}
        #: Trials with folders of further ranks or nodes, by folder. Folders are large: each is read once.
        self._further: dict[PurePosixPath, set[str]] = {}
        #: Repeats of trials that an earlier run has left, by folder and trial.
        self._repeats: dict[PurePosixPath, dict[str, list[int]]] = {}
        #: Modules that the trials of each folder have imported.
        self._modules: dict[PurePosixPath, frozenset[str]] = {}
        #: Trials of each folder that an earlier run has lost, each for a reason of its own.
        self._of_cells: dict[PurePosixPath, list[str]] = {}

    def artifacts(self, paths: TrialPaths) -> Path:
        """The folder of a trial's artifacts of this process."""
        return paths.folder_in(self.results, self.number or 0, self.kind)

    def kept(self, paths: TrialPaths, changes: Callable[[TrialResult], list[str]]) -> TrialResult | None:
        """The earlier result of a trial, where nothing has changed since; else ``not_kept`` says what has.

        ``changes`` is asked only when there is a result: to know them, the workload has to be imported.
        """
        file = paths.file_in(self.results)
        record = read_record(file)
        if record is None:
            reasons = ["its file cannot be read"] if file.exists() else []
        else:
            reasons = reasons_against(record) or self._reasons_of_cell(paths) or changes(record)
        if reasons:
            self.not_kept[paths] = reasons
            return None
        return record

    def _reasons_of_cell(self, paths: TrialPaths) -> list[str]:
        """Why no trial of a cell is kept: were only the lost ones repeated, the outcome would select the trials.

        Nor are those of a cell that did not run. What one event has cost, it has taken whatever the outcome would have
        been. All processes of a run come to the
        same answer, however late they ask: what this run has moved aside counts, and what it has written does not.
        """
        folder = paths.file.parent
        if folder not in self._of_cells:
            run, numbers, obstacles = self.stamp, set(), set()
            began = time_of_run(run)
            moved = self.results.glob(f"{HISTORY}/{run}*/{folder}/trial_*.json")
            for path in (*(self.results / folder).glob("trial_*.json"), *moved):
                if TrialPaths(PurePosixPath(path.name)).repeat:
                    continue
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                    record = _load(path)
                    if record["started_at"] < began:
                        obstacles.add(obstacle_of(record))
                        if is_lost(record) and shared_event(record) is None:
                            numbers.add(path.name)
            lost = f"their cell has lost trials ({len(numbers)}); to repeat only those would select by outcome"
            lacked = next(iter(obstacles)) if len(obstacles) == 1 else None
            self._of_cells[folder] = [lost] if numbers else [f"their cell did not run: {lacked}"] if lacked else []
        return self._of_cells[folder]

    def imported_modules(self, paths: TrialPaths) -> frozenset[str]:
        """Top-level modules of installed distributions that any trial of a cell has imported, by its records.

        Of all trials together: one that crashed does not know its own, and its result must not decide what is kept.
        """
        folder = paths.file.parent
        if folder not in self._modules:
            modules: set[str] = set()
            for path in (self.results / folder).glob("trial_*.json"):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                    modules.update((_load(path).get("fingerprint_parts") or {}).get(IMPORTED_MODULES, ()))
            self._modules[folder] = frozenset(modules - {"_distutils_hack"})  # every process with setuptools has it
        return self._modules[folder]

    def packages(self, digest: str) -> Mapping[str, str] | None:
        """The versions of the distributions that were installed for the records with this digest."""
        return read_package_list(self.results, digest)

    def write_packages(self, listing: Mapping[str, Any]) -> None:
        """Keep a list of installed distributions, which records name by its digest."""
        file = self.results / package_list_name(listing["digest"])
        with contextlib.suppress(OSError):  # a record without it is still one
            if not file.exists():
                write_json(file, listing)

    def settle(self, paths: TrialPaths, record: Mapping[str, Any]) -> None:
        """Write a record again, about which there was doubt."""
        with locked(self.results):
            write_json(paths.file_in(self.results), record)

    def retire(self, paths: TrialPaths) -> None:
        """Move aside what an earlier run has left of a trial: to the history, or to the folder of another cell."""
        with locked(self.results):
            if self.is_writer:
                self._move_other_cell(paths)
            folder = paths.file.parent
            if folder not in self._further:
                self._further[folder] = set()
                for kind in ("rank", "node"):
                    for path in (self.results / folder).glob(f"trial_*.{kind}_*"):
                        self._further[folder].add(path.name.rpartition(".")[0])
            further = paths.file.stem in self._further[folder] or paths.file in self.written
            retire(self.results, paths, self.stamp, self.number, self.kind, may_have_further=further)

    def retire_unplanned(self, planned: Collection[TrialPaths]) -> None:
        """After a run of a whole plan: move to the history what the plan no longer holds."""
        trials = {file for file in self.written if not TrialPaths(file).repeat}
        if planned and not self.resume and {paths.file for paths in planned} == trials:
            workloads = {paths.file.parts[0] for paths in planned}
            with locked(self.results):
                kept = {*planned, *map(TrialPaths, self.written)}
                retire_others(self.results, workloads, kept, self.stamp, self._begun)

    def sort_into_cells(self, cells_of: Mapping[str, str | None]) -> None:
        """Before a run: give files of other cells, and of the plan's own, the places that they have now.

        What killed writers have left goes. ``cells_of``: workload to its only cell, or ``None`` where it has several.
        """
        with locked(self.results):
            for workload, cell in cells_of.items():
                sort_into_cells(self.results, workload, cell, self.stamp)
                folder, unfinished = self.results / identifier(workload), ".trial_*.json.*.tmp"
                for path in [*folder.glob(unfinished), *folder.glob(f"*/{unfinished}")]:
                    remove_abandoned(path)

    def prune(self, kept: int) -> int:
        """After a run: keep only so many earlier records of each trial that it has added one of; how many are gone."""
        if not self.is_writer:
            return 0
        with locked(self.results):
            return prune(self.results, self.stamp, kept)

    def make_room(self, paths: TrialPaths) -> bool:
        """Whether a trial that could not be started may have its file; what an earlier run has left there moves away.

        With ``resume`` an earlier result stays: a failed start says nothing about it.
        """
        with locked(self.results):
            if self._stays(paths):
                return False
            self._move_aside(paths)
            return True

    def _stays(self, paths: TrialPaths) -> bool:
        file = paths.file_in(self.results)
        if not self.resume or paths.file in self.written or not file.exists() or read_kept(file) is None:
            return False
        return not self._reasons_of_cell(paths)

    def _move_aside(self, paths: TrialPaths, *, with_artifacts: bool = True) -> None:
        if paths.file_in(self.results).exists():
            self._move_other_cell(paths, with_artifacts=with_artifacts)
            retire(self.results, paths, self.stamp, with_artifacts=with_artifacts)

    def _move_other_cell(self, paths: TrialPaths, *, with_artifacts: bool = True) -> None:
        file = paths.file_in(self.results)
        own = cell_of(file) if paths.cell is not None else None
        if own is not None and own != paths.cell:
            move(self.results, file, file.parent / identifier(own), self.stamp, with_artifacts=with_artifacts)

    def write(self, paths: TrialPaths, result: Mapping[str, Any], *, resumed: bool = False) -> None:
        """Write a record, or raise ``OSError``; with ``resumed``, the file has it, maybe under another ``trial_id``."""
        file, folder = paths.file_in(self.results), paths.file.parent
        is_flat = len(paths.file.parts) == _FLAT
        try:
            if resumed:
                retitle(file, result["trial_id"])
                return
            with staged_text(file, as_json(result)) as temporary, locked(self.results):
                target: Path | None = file
                if file.exists():
                    paths = replace(paths, cell=result["cell"] if is_flat else None)
                    # It was retired when the trial started, so another run has written it since.
                    later = paths.file not in self.written and started_at(file) > result["started_at"]
                    if is_lost(result) and self._stays(paths):
                        target = None
                    elif later and paths.cell in (None, cell_of(file)):
                        target = _free(self.results / HISTORY, self.stamp, [paths.file]) / paths.file
                        target.parent.mkdir(parents=True, exist_ok=True)
                    else:
                        # Its artifacts were moved aside when it started, and what is there now are this trial's.
                        self._move_aside(paths, with_artifacts=not result.get("artifacts"))
                if target is not None:
                    temporary.rename(target)
                    # Another run may have moved the one of before there, after this run had begun.
                    before = target.parent / identifier(result["cell"]) / target.name
                    if is_flat and before.exists():
                        move(self.results, before, target.parent, self.stamp)
                if paths.repeat:
                    return
                if folder not in self._repeats:
                    self._repeats[folder] = defaultdict(list)
                    for path in (self.results / folder).glob("trial_*.repeat_*.json"):
                        number = TrialPaths(PurePosixPath(path.name)).repeat
                        if number and path.lstat().st_mtime < self._begun:
                            self._repeats[folder][path.name.partition(".")[0]].append(number)
                for number in self._repeats[folder].pop(paths.file.stem, ()):
                    if (repeat := paths.repeated(number)).file not in self.written:
                        retire(self.results, repeat, self.stamp)
        finally:
            self.written.add(paths.file)
