"""What a folder of results, or a workspace, consists of: trials with their artifacts, and other files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_aorta.trials.conversion import identifier
from pytest_aorta.workspace.no_overwrite import UNFINISHED
from pytest_aorta.workspace.paths import HISTORY

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


def look(root: Path, seen: Callable[[], object] = lambda: None) -> Found:
    """Find all that is to be merged of a folder; ``seen`` is called for each trial file.

    Raises:
        OSError: a folder cannot be read.
    """
    found = Found(root)
    _look(found, PurePosixPath(), seen, in_history=False)
    return found


def _look(found: Found, below: PurePosixPath, seen: Callable[[], object], in_history: bool) -> None:
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
                _look(found, path, seen, in_history or entry.name == HISTORY)
        elif not (entry.is_symlink() or entry.is_file()):
            found.left_out.append(folder / entry.name)
        elif entry.name.startswith(".") and entry.name.endswith((".tmp", UNFINISHED)):  # of a killed writer
            found.unfinished += [folder / entry.name] * entry.name.endswith(UNFINISHED)
        elif not in_history and _TRIAL.fullmatch(entry.name) and (record := _record(folder / entry.name, below)):
            found.records.append(record)
            seen()
        else:
            found.files.append(path)


def _has_trials(folder: Path) -> bool:
    """Whether the folder is that of a workload with the name of a trial."""
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
    """The trial in a file; ``None`` where it is torn, or none."""
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
