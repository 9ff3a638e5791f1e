"""Several results directories or workspaces as one: equal files are taken once, files that differ are refused."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pytest_aorta.common.texts import identifier
from pytest_aorta.workspace.atomic import locked
from pytest_aorta.workspace.paths import HISTORY
from pytest_aorta.workspace.trial_store import sort_into_cells

_INDEX, _UNFINISHED = ".aorta", ".merging"
_TRIAL = re.compile(r"trial_\d+(\.repeat_\d+)?\.json")
_ARTIFACTS = re.compile(r"trial_\d+(\.repeat_\d+)?(\.(rank|node)_\d+)?")

#: Files that are made anew from the merged trials.
_MATRIX = ("matrix.json", "matrix.md")


def _folder_of_trial(path: PurePosixPath) -> PurePosixPath | None:
    """The folder of the trial that a file belongs to; ``None`` for other files."""
    parts = () if HISTORY in path.parts else path.parts
    depths = [depth for depth, name in enumerate(parts[:-1]) if depth and _ARTIFACTS.fullmatch(name)]
    if not depths and len(parts) > 1 and _TRIAL.fullmatch(path.name):
        return path.parent
    return PurePosixPath(*parts[: depths[0]]) if depths else None


def _is_trial(path: PurePosixPath) -> bool:
    return _TRIAL.fullmatch(path.name) is not None and _folder_of_trial(path) == path.parent


class _Tree:
    """The files and folders below ``root`` by relative path; links are files. Raises ``OSError``.

    ``flat``: folders of workloads with the trials of one cell, and its workload and name. ``nested``: folders of
    workloads with a folder for each cell. ``results``: results directories with trials.
    """

    def __init__(self, root: Path) -> None:
        self.files: dict[PurePosixPath, Path] = {}
        self.folders: list[PurePosixPath] = []
        self.flat: dict[PurePosixPath, tuple[str, str]] = {}
        self.nested: set[PurePosixPath] = set()
        self.results: set[PurePosixPath] = set()

        def refuse(error: OSError) -> None:
            raise error

        for name, folders, names in os.walk(root, onerror=refuse) if root.is_dir() else ():
            folder = PurePosixPath(Path(name).relative_to(root).as_posix())
            links = [each for each in folders if Path(name, each).is_symlink()]
            folders[:] = sorted({*folders} - {*links, _INDEX})
            self.folders.append(folder)
            for each in sorted([*names, *links]):
                path = Path(name, each)
                is_left = each.startswith(".") and each.endswith((".tmp", _UNFINISHED))  # by a killed writer
                if not is_left and (path.is_symlink() or path.is_file()):
                    self.files[folder / each] = path
        read: set[PurePosixPath] = set()
        for record in filter(_is_trial, self.files):
            folder = record.parent
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                if folder not in read:
                    content = json.loads(self.files[record].read_bytes())
                    self._note_cell(folder, content["workload"], content["cell"])
                    read.add(folder)

    def _note_cell(self, folder: PurePosixPath, workload: str, cell: str) -> None:
        is_nested = folder.name == identifier(cell) and folder.parent.name == identifier(workload)
        is_flat = not is_nested and folder.name == identifier(workload)
        self.results.add(folder.parent if is_flat else folder.parent.parent)
        if is_nested:
            self.nested.add(folder.parent)
        elif is_flat:
            self.flat[folder] = workload, cell


def _is_same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    return filecmp.cmp(one, other, shallow=False)


class Merge:
    """The copies that bring the files of all sources to the destination; equal files count once.

    Attributes:
        additions: files with their targets, trial files last.
        trials: how many of these are trial files.
        identical: how many trial files are there already, or in several sources.
        differences: pairs of files that would be one, and differ; then nothing may be merged.
        results: results directories of the trials, relative to the destination.

    Raises:
        OSError: a folder cannot be read.
    """

    def __init__(self, sources: Sequence[Path], destination: Path) -> None:
        self.root = destination
        there, trees = _Tree(destination), [_Tree(source) for source in sources]
        self.results = {each for tree in trees for each in tree.results}
        self._folders = sorted({folder for tree in trees for folder in tree.folders})
        flat = [folder for folder, _ in {item for tree in (there, *trees) for item in tree.flat.items()}]
        nested = {folder for tree in (there, *trees) for folder in tree.nested}
        nested |= {folder for folder in flat if flat.count(folder) > 1}
        self._to_nest = {folder: workload for folder, (workload, _) in there.flat.items() if folder in nested}
        self.additions: list[tuple[Path, PurePosixPath]] = []
        self.differences: list[tuple[Path, Path]] = []
        self.identical = 0
        taken: dict[PurePosixPath, Path] = {}
        for tree in (there, *trees):
            for path, file in tree.files.items():
                if path.name in _MATRIX and path.parent in self.results:
                    continue
                folder, target = _folder_of_trial(path), path
                if folder in nested and folder in tree.flat:
                    target = folder / identifier(tree.flat[folder][1]) / path.relative_to(folder)
                first = taken.setdefault(target, file)
                if first is not file and not _is_same(first, file):
                    self.differences.append((first, file))
                elif first is not file:
                    self.identical += _is_trial(path)
                elif tree is not there:
                    self.additions.append((file, target))
        self.additions.sort(key=lambda addition: _is_trial(addition[1]))
        self.trials = sum(_is_trial(target) for _, target in self.additions)

    def carry_out(self, run: str) -> None:
        """Copy the additions; a killed merge can be repeated. Raises ``OSError``.

        ``run``: folder in the history for files that have to move.
        """
        for folder in self._folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for folder, workload in self._to_nest.items():
            with locked(self.root / folder.parent):
                sort_into_cells(self.root / folder.parent, workload, None, run)
        for source, target in self.additions:
            may_link = HISTORY in target.parts or _folder_of_trial(target) is not None  # commands write to products
            _add(source, self.root / target, may_link=may_link)


def _add(source: Path, target: Path, *, may_link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if may_link:
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(source, target, follow_symlinks=False)
            return
    if os.path.lexists(target):
        raise FileExistsError(17, "another process has written it meanwhile", str(target))
    # A name that the same merge, when it is repeated, takes again.
    temporary = target.with_name(f".{target.name[:50]}{_UNFINISHED}")
    temporary.unlink(missing_ok=True)
    shutil.copy2(source, temporary, follow_symlinks=False)
    if not source.is_symlink():
        with temporary.open("rb") as file:
            os.fsync(file)
    os.rename(temporary, target)
