"""Folders of results and workspaces, of shards or hosts, as one: what goes where, and what contradicts what."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_aorta.common.texts import identifier
from pytest_aorta.workspace import history
from pytest_aorta.workspace.atomic import locked, remove_abandoned
from pytest_aorta.workspace.paths import HISTORY, TrialPaths

#: End of the name of a copy that is being made.
UNFINISHED = ".merging"


def is_same(one: Path, other: Path) -> bool:
    first, second = os.lstat(one), os.lstat(other)
    if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino):
        return True
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    return stat.S_ISREG(first.st_mode) and first.st_size == second.st_size and filecmp.cmp(one, other, shallow=False)


def place(source: Path, target: Path, *, may_link: bool) -> None:
    """Have a file at ``target`` as well; of a link, the link.

    ``may_link``: whether both may be one file. Raises ``FileExistsError`` where something is there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        os.symlink(os.readlink(source), target)
        return
    if may_link:
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(source, target)
            return
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=UNFINISHED)
    temporary = Path(name)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has a writer, see ``atomic.remove_abandoned``
        shutil.copy2(source, temporary)
        os.fsync(fd)
        _rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(fd)


def _rename(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)  # a rename would replace what is there
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        temporary.rename(target)


_INDEX = ".aorta"
_TRIAL = re.compile(r"(?P<stem>trial_\d+(?:\.repeat_\d+)?)\.json")
_ARTIFACTS = re.compile(r"(?P<stem>trial_\d+(?:\.repeat_\d+)?)(?:\.(?:rank|node)_\d+)?")


def is_trial_file(name: str) -> bool:
    """Whether this is the name of the file of a trial, or of a repeat."""
    return _TRIAL.fullmatch(name) is not None


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
    """

    file: Path
    base: PurePosixPath
    cell: str | None
    is_flat: bool
    workload: str
    started_at: str

    @property
    def key(self) -> tuple[PurePosixPath, str | None, str]:
        """Equal for records of the same trial."""
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
        artifacts: files of trials, by the trial file that they belong to, relative to its folder.
        files: all others, relative to the folder.
        folders: likewise, those of artifacts left out.
        left_out: folders of artifacts without a trial file, and what is neither file, folder nor link.
        unfinished: what killed merges have left.
    """

    root: Path
    records: list[Record] = field(default_factory=list)
    artifacts: dict[Path, list[PurePosixPath]] = field(default_factory=dict)
    files: list[PurePosixPath] = field(default_factory=list)
    folders: list[PurePosixPath] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)


def look(root: Path) -> Found:
    """Find all that is to be merged of a folder.

    Raises:
        OSError: a folder cannot be read.
    """
    found = Found(root)
    _look(found, PurePosixPath(), in_history=False)
    return found


def _look(found: Found, below: PurePosixPath, in_history: bool) -> None:
    folder = found.root / below
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    trials = {match["stem"] for entry in entries if (match := _TRIAL.fullmatch(entry.name)) and not in_history}
    found.folders.append(below)
    for entry in entries:
        path = below / entry.name
        if entry.is_dir(follow_symlinks=False):
            artifacts = _ARTIFACTS.fullmatch(entry.name) if not in_history and below.parts else None
            if entry.name == _INDEX:
                continue
            if artifacts is not None and artifacts["stem"] in trials:
                names = found.artifacts.setdefault(folder / f"{artifacts['stem']}.json", [])
                names += [PurePosixPath(entry.name) / each for each in _files_below(folder / entry.name, found)]
            elif artifacts is not None and not _has_trials(folder / entry.name):
                found.left_out.append(folder / entry.name)
                found.unfinished += Path(entry.path).rglob(f".*{UNFINISHED}")
            else:
                _look(found, path, in_history or entry.name == HISTORY)
        elif not (entry.is_symlink() or entry.is_file()):
            found.left_out.append(folder / entry.name)
        elif entry.name.startswith(".") and entry.name.endswith((".tmp", UNFINISHED)):  # of a killed writer
            found.unfinished += [folder / entry.name] * entry.name.endswith(UNFINISHED)
        elif not in_history and _TRIAL.fullmatch(entry.name) and (record := _record(folder / entry.name, below)):
            found.records.append(record)
        else:
            found.files.append(path)


def _has_trials(folder: Path) -> bool:
    return any(_TRIAL.fullmatch(name) for _, _, names in os.walk(folder) for name in names)


def _files_below(folder: Path, found: Found) -> Iterator[PurePosixPath]:
    for name, folders, files in os.walk(folder):
        links = [each for each in folders if os.path.islink(os.path.join(name, each))]
        for each in sorted([*files, *links]):
            path = Path(name, each)
            if path.name.startswith(".") and path.name.endswith(UNFINISHED):
                found.unfinished.append(path)
            elif path.is_symlink() or path.is_file():
                yield PurePosixPath(path.relative_to(folder).as_posix())
            else:
                found.left_out.append(path)


def _record(file: Path, below: PurePosixPath) -> Record | None:
    try:
        content = json.loads(file.read_bytes())
        workload, cell = content["workload"], content["cell"]
        started = str(content.get("started_at", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(workload, str) or not isinstance(cell, str):
        return None
    if below.name == identifier(cell) and below.parent.name == identifier(workload):
        return Record(file, below.parent, cell, False, workload, started)
    if below.name == identifier(workload):
        return Record(file, below, cell, True, workload, started)
    return Record(file, below, None, False, workload, started)


#: What is made anew of the merged trials.
MATRIX_FILES = frozenset(("matrix.json", "matrix.md"))

#: In a results directory, until that is done.
PENDING = f".matrix{UNFINISHED}"


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
        results: results directories that get records, or have got some from a merge that was killed.
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
        """How many records are added."""
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
    owner: dict[Path, Found] = {}
    for found in sources:
        for record in found.records:
            other = chosen.setdefault(record.key, record)
            owner[record.file] = found
            if other is record:
                continue
            if is_same(record.file, other.file):
                plan.identical += 1
                if other is here.get(record.key):  # it may have got more artifacts since
                    _add_artifacts(plan, found, record, record.target(nested[record.base]), destination)
            elif not newer:
                plan.conflicts.append(Conflict(record.target(nested[record.base]), other.file, record.file))
            elif record.started_at > other.started_at:
                chosen[record.key] = record
                plan.older += other is not here.get(record.key)
            else:
                plan.older += 1
    for key, record in chosen.items():
        target = record.target(nested[record.base])
        if record is here.get(key):
            if record.is_flat and nested[record.base]:
                plan.to_nest[record.base] = record.workload
            continue
        if key in here:
            plan.replaced.append((record.results, target))
            if here[key].is_flat and nested[record.base]:
                plan.to_nest[record.base] = record.workload
        _add_artifacts(plan, owner[record.file], record, target, None if key in here else destination)
        plan.additions.append(Addition(record.file, target, is_record=True, may_link=True))
        plan.results.add(record.results)
    _add_files(plan, sources, destination)
    pending = [path for path in destination.unfinished if path.name == PENDING]
    plan.results.update(PurePosixPath(path.parent.relative_to(destination.root).as_posix()) for path in pending)
    return plan


def _nested(folders: Iterable[Found]) -> dict[PurePosixPath, bool]:
    cells: dict[PurePosixPath, set[str | None]] = {}
    nested: dict[PurePosixPath, bool] = {}
    for found in folders:
        for record in found.records:
            cells.setdefault(record.base, set()).add(record.cell)
            nested[record.base] = nested.get(record.base, False) or not record.is_flat
    return {base: nested[base] or len(cells[base]) > 1 for base in cells}


def _add_artifacts(
    plan: MergePlan, found: Found, record: Record, target: PurePosixPath, destination: Found | None
) -> None:
    for name in found.artifacts.get(record.file, ()):
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


def carry_out(plan: MergePlan, destination: Found, run: str) -> list[Conflict]:
    """Do what was planned. What is killed on the way can be done again: then the rest is planned.

    Args:
        plan: without conflicts.
        destination: as it was when that was planned.
        run: name in the history, for what is replaced.

    Returns:
        What was written there by others in the meantime, and differs; it stays.

    Raises:
        OSError: the destination cannot be written.
    """
    root = destination.root
    for unfinished in destination.unfinished:
        remove_abandoned(unfinished)
    for folder in sorted(plan.folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for results in plan.results:
        (root / results).mkdir(parents=True, exist_ok=True)
        (root / results / PENDING).touch()
    for base, workload in plan.to_nest.items():
        with locked(root / base.parent):
            history.sort_into_cells(root / base.parent, workload, None, run)
    for results, path in plan.replaced:
        with locked(root / results):
            history.retire(root / results, TrialPaths(path.relative_to(results)), run)
    conflicts = []
    for addition in plan.additions:
        target = root / addition.target
        try:
            place(addition.source, target, may_link=addition.may_link)
        except FileExistsError:
            if not is_same(addition.source, target):
                conflicts.append(Conflict(addition.target, target, addition.source))
    return conflicts
