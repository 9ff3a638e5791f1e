"""Folders of results and workspaces, of shards or hosts, as one: what goes where, and what contradicts what."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pytest_aorta.common.texts import identifier
from pytest_aorta.workspace.atomic import locked
from pytest_aorta.workspace.paths import HISTORY
from pytest_aorta.workspace.trial_store import sort_into_cells

#: End of the name of a copy that is being made.
_UNFINISHED = ".merging"

_INDEX = ".aorta"
_TRIAL = re.compile(r"(?P<stem>trial_\d+(?:\.repeat_\d+)?)\.json")
_ARTIFACTS = re.compile(r"(?P<stem>trial_\d+(?:\.repeat_\d+)?)(?:\.(?:rank|node)_\d+)?")

#: What is made anew of the merged trials.
_MATRIX = ("matrix.json", "matrix.md")


class Conflict(NamedTuple):
    """Two files that should be one, and differ. ``path``: where both would be."""

    path: PurePosixPath
    first: Path
    second: Path


@dataclass(frozen=True)
class _Record:
    """A trial file.

    Attributes:
        base: folder of its workload, or of a test's cell, relative to what is merged.
        cell: that it is of; ``None`` where its folder is for nothing else, as those of tests.
        is_flat: whether it lies in the folder of the workload, where files of one cell only may lie.
        artifacts: files of the trial, relative to the folder of this one.
    """

    file: Path
    base: PurePosixPath
    cell: str | None
    is_flat: bool
    workload: str
    artifacts: Sequence[PurePosixPath]

    @property
    def key(self) -> tuple[PurePosixPath, str | None, str]:
        return self.base, self.cell, self.file.name

    @property
    def results(self) -> PurePosixPath:
        """The results directory, relative to what is merged."""
        return self.base.parent.parent if self.cell is None else self.base.parent


@dataclass
class _Found:
    """What a folder has: trial files; all files but artifacts, and folders, relative to it.

    ``left_out``: folders of artifacts without a trial file, and what is neither file, folder nor link.
    """

    root: Path
    records: list[_Record] = field(default_factory=list)
    files: list[PurePosixPath] = field(default_factory=list)
    folders: list[PurePosixPath] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


def _look(root: Path) -> _Found:
    found = _Found(root)
    for folder, below, folders, names in _walk(root) if root.is_dir() else ():
        found.folders.append(below)
        artifacts: dict[str, list[PurePosixPath]] = {}
        if HISTORY not in below.parts:
            artifacts = {match["stem"]: [] for name in names if (match := _TRIAL.fullmatch(name))}
            for name in list(folders) if below.parts else ():
                if (match := _ARTIFACTS.fullmatch(name)) is None:
                    continue
                folders.remove(name)
                if match["stem"] not in artifacts:
                    found.left_out.append(folder / name)
                    continue
                for inner, deeper, _, files in _walk(folder / name):
                    kept = (each for each in files if _is_kept(inner / each, found))
                    artifacts[match["stem"]] += [name / deeper / each for each in kept]
        for name in names:
            own = artifacts.get(name.removesuffix(".json"))
            if own is not None and (record := _read(folder / name, below, own)) is not None:
                found.records.append(record)
            elif _is_kept(folder / name, found):
                found.files.append(below / name)
    return found


def _walk(root: Path) -> Iterator[tuple[Path, PurePosixPath, list[str], list[str]]]:
    """Folders with their names of folders and of files; a link is a file."""

    def refuse(error: OSError) -> None:
        raise error

    for name, folders, files in os.walk(root, onerror=refuse):
        links = [each for each in folders if os.path.islink(os.path.join(name, each))]
        folders[:] = sorted({*folders} - {*links, _INDEX})
        yield Path(name), PurePosixPath(Path(name).relative_to(root).as_posix()), folders, sorted([*files, *links])


def _is_kept(path: Path, found: _Found) -> bool:
    if path.name.startswith(".") and path.name.endswith((".tmp", _UNFINISHED)):  # of a killed writer
        return False
    is_file = path.is_symlink() or path.is_file()
    found.left_out += [] if is_file else [path]
    return is_file


def _read(file: Path, below: PurePosixPath, artifacts: Sequence[PurePosixPath]) -> _Record | None:
    try:
        content = json.loads(file.read_bytes())
        workload, cell = content["workload"], content["cell"]
        is_nested = below.name == identifier(cell) and below.parent.name == identifier(workload)
        is_flat = not is_nested and below.name == identifier(workload)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    base = below.parent if is_nested else below
    return _Record(file, base, cell if is_nested or is_flat else None, is_flat, workload, artifacts)


def _is_same(one: Path, other: Path) -> bool:
    first, second = os.lstat(one), os.lstat(other)
    if os.path.samestat(first, second):
        return True
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    return stat.S_ISREG(first.st_mode) and filecmp.cmp(one, other, shallow=False)


class Merge:
    """What has to be done to have all of the sources in the destination.

    Of identical files, the first is taken.

    Attributes:
        additions: files with their targets, each record after its artifacts, and whether a link will do.
        records: how many of them are trial files.
        conflicts: files that differ.
        identical: how many records are there already, or in several sources.
        results: results directories that the sources have records of.
        left_out: files and folders of sources that are of no finished trial.

    Raises:
        OSError: a folder cannot be read.
    """

    def __init__(self, sources: Sequence[Path], destination: Path) -> None:
        self.root = destination
        self.additions: list[tuple[Path, PurePosixPath, bool]] = []
        self.conflicts: list[Conflict] = []
        self.results: set[PurePosixPath] = set()
        self.identical = self.records = 0
        #: Folders of workloads, with these, whose files of the destination move to folders of their cells.
        self._to_nest: dict[PurePosixPath, str] = {}
        found, there = [_look(source) for source in sources], _look(destination)
        self.left_out = [path for each in found for path in each.left_out]
        self._folders = {folder for each in found for folder in each.folders}
        cells: dict[PurePosixPath, set[tuple[str | None, bool]]] = {}
        for record in (record for each in (*found, there) for record in each.records):
            cells.setdefault(record.base, set()).add((record.cell, record.is_flat))
        #: Folders of workloads that have one for each cell, as those with several cells.
        self._nested = {base for base, of in cells.items() if len(of) > 1 or not all(flat for _, flat in of)}
        self._plan_records([record for each in found for record in each.records], there)
        self._plan_files(found)

    def _target(self, record: _Record) -> PurePosixPath:
        is_nested = record.base in self._nested and record.cell is not None
        return (record.base / identifier(record.cell or "") if is_nested else record.base) / record.file.name

    def _plan_records(self, records: Sequence[_Record], destination: _Found) -> None:
        here = {record.key: record for record in destination.records}
        chosen = dict(here)
        for record in records:
            self.results.add(record.results)
            other = chosen.setdefault(record.key, record)
            if other is record:
                continue
            if not _is_same(record.file, other.file):
                self.conflicts.append(Conflict(self._target(record), other.file, record.file))
                continue
            self.identical += 1
            if record.key in here:  # it may have got more artifacts since
                self._add_artifacts(record)
        for key, record in chosen.items():
            target, old = self._target(record), here.get(key)
            if old is not None and old.is_flat and record.base in self._nested:
                self._to_nest[record.base] = record.workload
            if record is old:
                continue
            self._add_artifacts(record)
            self.additions.append((record.file, target, True))
            self.records += 1

    def _add_artifacts(self, record: _Record) -> None:
        for name in record.artifacts:
            self._add(record.file.parent / name, self._target(record).parent / name, may_link=True)

    def _add(self, source: Path, target: PurePosixPath, *, may_link: bool) -> None:
        there = self.root / target
        if not os.path.lexists(there):
            self.additions.append((source, target, may_link))
        elif not _is_same(source, there):
            self.conflicts.append(Conflict(target, there, source))

    def _plan_files(self, sources: Sequence[_Found]) -> None:
        taken: dict[PurePosixPath, Path] = {}
        for found in sources:
            results = {record.results for record in found.records}
            for path in found.files:
                in_history = HISTORY in path.parts
                is_listing = path.name.startswith("packages-") and path.suffix == ".json"  # its name says what is in it
                if path.name in _MATRIX and path.parent in results and not in_history:
                    continue
                source = found.root / path
                first = taken.setdefault(path, source)
                if first == source and not (is_listing and os.path.lexists(self.root / path)):
                    self._add(first, path, may_link=is_listing or in_history)
                elif first != source and not is_listing and not _is_same(first, source):
                    self.conflicts.append(Conflict(path, first, source))

    def carry_out(self, run: str) -> None:
        """Do it, where there are no conflicts. What is killed on the way can be done again.

        ``run``: name in the history, for what has to move. Raises ``OSError``.
        """
        for folder in sorted(self._folders):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for base, workload in self._to_nest.items():
            with locked(self.root / base.parent):
                sort_into_cells(self.root / base.parent, workload, None, run)
        for source, target, may_link in self.additions:
            _place(source, self.root / target, may_link=may_link)


def _place(source: Path, target: Path, *, may_link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        os.symlink(os.readlink(source), target)
        return
    if may_link:
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(source, target)
            return
    if os.path.lexists(target):
        raise FileExistsError(17, "another process has written it meanwhile", str(target))
    # A name that the same merge, when it is repeated, takes again.
    temporary = target.with_name(f".{target.name[:50]}{_UNFINISHED}")
    shutil.copy2(source, temporary)
    with temporary.open("rb") as file:
        os.fsync(file)
    os.rename(temporary, target)
