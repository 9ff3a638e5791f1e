"""Folders of results and workspaces, of shards or hosts, as one: what goes where, and what contradicts what."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_aorta.workspace import cells, history
from pytest_aorta.workspace.atomic import locked, remove_abandoned
from pytest_aorta.workspace.merged_files import Found, Record
from pytest_aorta.workspace.no_overwrite import UNFINISHED, is_same, place
from pytest_aorta.workspace.paths import HISTORY, TrialPaths

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
    """A file that is to be at ``target``, relative to the destination, as well."""

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

    Args:
        sources: in order; of identical files, the first is taken.
        destination: as it is.
        newer: of two records of one trial, take the one that was started later; else they are a conflict.
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
    """Folders of workloads, and whether the files in them lie in folders of their cells: there are several cells."""
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
    """``destination``: where files may be already; ``None`` where those that are there move away before."""
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


def carry_out(
    plan: MergePlan, destination: Found, run: str, seen: Callable[[], object] = lambda: None
) -> list[Conflict]:
    """Do what was planned. What is killed on the way can be done again: then the rest is planned.

    Args:
        plan: without conflicts.
        destination: as it was when that was planned.
        run: name in the history, for what is replaced.
        seen: called for each file.

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
            cells.settle(root / base.parent, workload, None, run)
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
        seen()
    return conflicts
