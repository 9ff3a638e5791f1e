"""Folders of results and workspaces, of shards or hosts, as one: what goes where, and what contradicts what."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_aorta.common.texts import identifier
from pytest_aorta.workspace import history
from pytest_aorta.workspace.atomic import locked
from pytest_aorta.workspace.paths import HISTORY, TrialPaths

#: End of the name of a copy that is being made.
UNFINISHED = ".merging"

_INDEX = ".aorta"
_TRIAL = re.compile(r"(?P<stem>trial_\d+(?:\.repeat_\d+)?)\.json")
_ARTIFACTS = re.compile(r"(?P<stem>trial_\d+(?:\.repeat_\d+)?)(?:\.(?:rank|node)_\d+)?")

#: What is made anew of the merged trials.
MATRIX_FILES = frozenset(("matrix.json", "matrix.md"))


def is_trial_file(name: str) -> bool:
    """Whether this is the name of the file of a trial, or of a repeat."""
    return _TRIAL.fullmatch(name) is not None


def is_same(one: Path, other: Path) -> bool:
    first, second = os.lstat(one), os.lstat(other)
    if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino):
        return True
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    return stat.S_ISREG(first.st_mode) and first.st_size == second.st_size and filecmp.cmp(one, other, shallow=False)


@dataclass(frozen=True)
class Record:
    """A trial file.

    Attributes:
        file: where it is.
        base: folder of its workload, or of a test's cell, relative to what is merged.
        cell: that it is of; ``None`` where its folder is for nothing else, as those of tests.
        is_flat: whether it lies in the folder of the workload, where files of one cell only may lie.
        workload: that it is of.
        started_at: sortable.
        artifacts: files of the trial, relative to the folder of this one.
    """

    file: Path
    base: PurePosixPath
    cell: str | None
    is_flat: bool
    workload: str
    started_at: str
    artifacts: tuple[PurePosixPath, ...]

    @property
    def key(self) -> tuple[PurePosixPath, str | None, str]:
        return self.base, self.cell, self.file.name

    @property
    def results(self) -> PurePosixPath:
        """The results directory, relative to what is merged."""
        return self.base.parent.parent if self.cell is None else self.base.parent

    def target(self, nested: bool) -> PurePosixPath:
        """Where it goes; ``nested``: to the folder of its cell."""
        folder = self.base / identifier(self.cell) if nested and self.cell is not None else self.base
        return folder / self.file.name


@dataclass
class Found:
    """What a folder has.

    Attributes:
        records: trial files.
        files: all others but artifacts, relative to the folder.
        folders: likewise.
        left_out: folders of artifacts without a trial file, and what is neither file, folder nor link.
    """

    root: Path
    records: list[Record] = field(default_factory=list)
    files: list[PurePosixPath] = field(default_factory=list)
    folders: list[PurePosixPath] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


def look(root: Path) -> Found:
    """Find all that is to be merged of a folder.

    Raises:
        OSError: a folder cannot be read.
    """
    found = Found(root)
    for folder, below, folders, names in _walk(root):
        found.folders.append(below)
        in_history = HISTORY in below.parts
        trials = {match["stem"] for name in names if (match := _TRIAL.fullmatch(name)) and not in_history}
        artifacts: dict[str, list[PurePosixPath]] = {}
        for name in list(folders):
            match = _ARTIFACTS.fullmatch(name) if below.parts and not in_history else None
            if match is not None:
                folders.remove(name)
                if match["stem"] in trials:
                    artifacts.setdefault(match["stem"], []).extend(_files_below(folder, name, found))
                else:
                    found.left_out.append(folder / name)
        for name in names:
            stem = name.removesuffix(".json")
            record = None
            if stem in trials:
                record = _record(folder / name, below, tuple(artifacts.get(stem, ())))
            if record is not None:
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


def _files_below(folder: Path, name: str, found: Found) -> Iterator[PurePosixPath]:
    for _, below, _, names in _walk(folder / name):
        yield from (name / below / each for each in names if _is_kept(folder / name / below / each, found))


def _is_kept(path: Path, found: Found) -> bool:
    if path.name.startswith(".") and path.name.endswith((".tmp", UNFINISHED)):  # of a killed writer
        return False
    if not (path.is_symlink() or path.is_file()):
        found.left_out.append(path)
        return False
    return True


def _record(file: Path, below: PurePosixPath, artifacts: tuple[PurePosixPath, ...]) -> Record | None:
    try:
        content = json.loads(file.read_bytes())
        workload, cell = content["workload"], content["cell"]
        started = str(content.get("started_at", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(workload, str) or not isinstance(cell, str):
        return None
    if below.name == identifier(cell) and below.parent.name == identifier(workload):
        return Record(file, below.parent, cell, False, workload, started, artifacts)
    if below.name == identifier(workload):
        return Record(file, below, cell, True, workload, started, artifacts)
    return Record(file, below, None, False, workload, started, artifacts)


@dataclass(frozen=True)
class Conflict:
    """Two files that should be one, and differ. ``path``: where both would be."""

    path: PurePosixPath
    first: Path
    second: Path


@dataclass(frozen=True)
class Addition:
    source: Path
    target: PurePosixPath
    is_record: bool
    may_link: bool


@dataclass
class MergePlan:
    """What a merge does.

    Attributes:
        additions: files, each record after its artifacts.
        folders: that are to exist.
        conflicts: files that differ.
        identical: how many records are there already, or in several sources.
        replaced: records of the destination that are older than those that come, with their results directories.
        older: records of sources that are older than others, and stay where they are.
        to_nest: folders of workloads, with these, whose files of the destination move to folders of their cells.
        results: results directories that the sources have records of.
        left_out: see ``Found``.
    """

    additions: list[Addition] = field(default_factory=list)
    folders: set[PurePosixPath] = field(default_factory=set)
    conflicts: list[Conflict] = field(default_factory=list)
    identical: int = 0
    replaced: list[tuple[PurePosixPath, PurePosixPath]] = field(default_factory=list)
    older: int = 0
    to_nest: dict[PurePosixPath, str] = field(default_factory=dict)
    results: set[PurePosixPath] = field(default_factory=set)
    left_out: list[Path] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(each.is_record for each in self.additions)


def plan_merge(sources: Iterable[Found], destination: Found, *, newer: bool = False) -> MergePlan:
    """What has to be done to have all of the sources in the destination.

    Of identical files, the first is taken. ``newer``: of two records of one trial, take the one that was started later;
    else they are a conflict.
    """
    sources = list(sources)
    nested = _nested([*sources, destination])
    plan = MergePlan(left_out=[path for found in sources for path in found.left_out])
    here = {record.key: record for record in destination.records}
    chosen = dict(here)
    for record in (record for found in sources for record in found.records):
        plan.results.add(record.results)
        other, target = chosen.setdefault(record.key, record), record.target(nested[record.base])
        if other is record:
            continue
        is_here, is_later = other is here.get(record.key), record.started_at > other.started_at
        if is_same(record.file, other.file):
            plan.identical += 1
            if is_here:  # it may have got more artifacts since
                _add_artifacts(plan, record, target, destination)
        elif not newer:
            plan.conflicts.append(Conflict(target, other.file, record.file))
        else:
            plan.older += not (is_here and is_later)
            chosen[record.key] = record if is_later else other
    for key, record in chosen.items():
        target, old = record.target(nested[record.base]), here.get(key)
        if old is not None and old.is_flat and nested[record.base]:
            plan.to_nest[record.base] = record.workload
        if record is old:
            continue
        if old is not None:
            plan.replaced.append((record.results, target))
        _add_artifacts(plan, record, target, destination if old is None else None)
        plan.additions.append(Addition(record.file, target, is_record=True, may_link=True))
    _add_files(plan, sources, destination)
    return plan


def _nested(folders: Iterable[Found]) -> dict[PurePosixPath, bool]:
    cells: dict[PurePosixPath, set[str | None]] = {}
    nested: dict[PurePosixPath, bool] = {}
    for found in folders:
        for record in found.records:
            cells.setdefault(record.base, set()).add(record.cell)
            nested[record.base] = nested.get(record.base, False) or not record.is_flat
    return {base: nested[base] or len(cells[base]) > 1 for base in cells}


def _add_artifacts(plan: MergePlan, record: Record, target: PurePosixPath, destination: Found | None) -> None:
    for name in record.artifacts:
        _add(plan, record.file.parent / name, target.parent / name, destination, may_link=True)


def _add(plan: MergePlan, source: Path, target: PurePosixPath, destination: Found | None, *, may_link: bool) -> None:
    there = None if destination is None else destination.root / target
    if there is None or not os.path.lexists(there):
        plan.additions.append(Addition(source, target, is_record=False, may_link=may_link))
    elif not is_same(source, there):
        plan.conflicts.append(Conflict(target, there, source))


def _add_files(plan: MergePlan, sources: Iterable[Found], destination: Found) -> None:
    taken: dict[PurePosixPath, Path] = {}
    for found in sources:
        results = {record.results for record in found.records}
        plan.folders.update(found.folders)
        for path in found.files:
            is_listing = path.name.startswith("packages-") and path.suffix == ".json"
            if path.name in MATRIX_FILES and path.parent in results and HISTORY not in path.parts:
                continue
            first = taken.setdefault(path, found.root / path)
            if first != found.root / path:
                if not is_listing and not is_same(first, found.root / path):
                    plan.conflicts.append(Conflict(path, first, found.root / path))
            elif not (is_listing and os.path.lexists(destination.root / path)):  # its name says what is in it
                _add(plan, first, path, destination, may_link=is_listing or HISTORY in path.parts)


def carry_out(plan: MergePlan, root: Path, run: str) -> None:
    """Do what was planned, without conflicts, at ``root``. What is killed on the way can be done again.

    ``run``: name in the history, for what is replaced.

    Raises:
        OSError: the destination cannot be written, or something else has been written there meanwhile.
    """
    for folder in sorted(plan.folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for base, workload in plan.to_nest.items():
        with locked(root / base.parent):
            history.sort_into_cells(root / base.parent, workload, None, run)
    for results, path in plan.replaced:
        with locked(root / results):
            history.retire(root / results, TrialPaths(path.relative_to(results)), run)
    for addition in plan.additions:
        _place(addition.source, root / addition.target, may_link=addition.may_link)


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
    temporary = target.with_name(f".{target.name[:50]}{UNFINISHED}")
    shutil.copy2(source, temporary)
    with temporary.open("rb") as file:
        os.fsync(file)
    os.rename(temporary, target)
