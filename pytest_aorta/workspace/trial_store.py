"""The results of one run: earlier ones are found or moved aside, new ones are written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.packages import read_package_list, write_package_list
from pytest_aorta.workspace import history
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.paths import PartKind, TrialPaths
from pytest_aorta.workspace.resume import move_flat_files, read_kept, read_record, reasons_against, retitle

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult


class TrialStore:
    """Trial files and artifacts below a results directory.

    Where several processes run the same trials together, as the ranks of an outer launcher or as nodes, each has a
    store of its own: it moves its own artifacts aside, and only that of number 0 writes.

    Args:
        results: the directory.
        stamp: name of the run in the history.
        resume: whether an earlier result of the same request stands for a trial.
        number: of this process among several; ``None`` when there is only one.
        kind: what those processes are.
    """

    def __init__(
        self, results: Path, stamp: str, *, resume: bool = False, number: int | None = None, kind: PartKind = "rank"
    ) -> None:
        self.results = results
        self.stamp = stamp
        self.resume = resume
        self.number = number
        self.kind: PartKind = kind
        #: Trial files of this run, relative to the results directory, also those that could not be written.
        self.written: set[PurePosixPath] = set()
        #: Why an earlier result does not stand for a trial.
        self.not_kept: dict[TrialPaths, list[str]] = {}
        #: Temporary files of killed writers, by folder and trial file. Folders are large: each is read once.
        self._temporary: dict[PurePosixPath, dict[str, list[Path]]] = {}

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the trial files."""
        return not self.number

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
            reasons = reasons_against(record) or changes(record)
        if reasons:
            self.not_kept[paths] = reasons
            return None
        return record

    def packages(self, digest: str) -> Mapping[str, str] | None:
        """The versions of the distributions that were installed for the records with this digest."""
        return read_package_list(self.results, digest)

    def write_packages(self, listing: Mapping[str, Any]) -> None:
        """Keep a list of installed distributions, which records name by its digest."""
        with contextlib.suppress(OSError):  # a record without it is still one
            write_package_list(self.results, listing)

    def retire(self, paths: TrialPaths) -> None:
        """Move to the history what an earlier run has left of a trial."""
        history.retire(self.results, paths, self.stamp, self.number, self.kind)

    def retire_unplanned(self, planned: Collection[TrialPaths]) -> None:
        """After a run of a whole plan: move to the history what the plan no longer holds."""
        if planned and not self.resume and {paths.file for paths in planned} == self.written:
            workloads = {paths.file.parts[0] for paths in planned}
            history.retire_others(self.results, workloads, planned, self.stamp)

    def move_grown(self, cells: Mapping[str, Collection[str]]) -> None:
        """Move results of workloads that had one cell, and have several now, into the folders of their cells."""
        for workload, labels in cells.items():
            if len(labels) > 1:
                move_flat_files(self.results, workload)

    def make_room(self, paths: TrialPaths) -> bool:
        """Whether a trial that could not be started may have its file; what an earlier run has left there moves away.

        With ``resume`` an earlier result stays: a failed start says nothing about it.
        """
        file = paths.file_in(self.results)
        if not file.exists():
            return True
        if self.resume and paths.file not in self.written and read_kept(file) is not None:
            return False
        history.retire(self.results, paths, self.stamp)
        return True

    def write(self, paths: TrialPaths, result: Mapping[str, Any], *, resumed: bool = False) -> None:
        """Write a record. With ``resumed`` the file has it already, perhaps under another ``trial_id``.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            if resumed:
                retitle(paths.file_in(self.results), result["trial_id"])
            elif self.make_room(paths):
                write_json(paths.file_in(self.results), result)
            self._remove_temporary(paths.file)
        finally:
            self.written.add(paths.file)

    def _remove_temporary(self, file: PurePosixPath) -> None:
        """Remove what killed writers of a trial file have left beside it."""
        if file.parent not in self._temporary:
            self._temporary[file.parent] = _temporary_files(self.results / file.parent)
        for path in self._temporary[file.parent].pop(file.name, []):
            with contextlib.suppress(OSError):
                path.unlink()


def _temporary_files(folder: Path) -> dict[str, list[Path]]:
    """By trial file, as ``atomic.write_json`` names them: ``.trial_3.json.x1y2z3.tmp``."""
    found: dict[str, list[Path]] = {}
    for path in folder.glob(".trial_*.json.*.tmp"):
        found.setdefault(path.name[1:].rsplit(".", 2)[0], []).append(path)
    return found
