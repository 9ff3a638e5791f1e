"""The folders of a trial: one for files that are kept, a TMPDIR, and its working directory, which trials may share.

Every trial has a private TMPDIR, ``<TMPDIR>/aorta-tmp-XXXXXXXX/<number>``. The folder of a run holds a lock file that
is locked as long as the run lives. What killed runs have left is removed by the next run on this host with the same
TMPDIR. The TMPDIR of a failed trial stays for some days.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_aorta.common.texts import first_names
from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.runtime.resources.leases import (
    PREFIX,
    SHORT,
    UsedFolder,
    keep_folder,
    make_own,
    remove_dangling,
    sweep_folders,
)
from pytest_aorta.trials.execution import FILES, FINITE, KEPT_DAYS, TRIAL, TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED, Limits
from pytest_aorta.trials.seeding import command_seed

#: Files that killed processes leave in TMPDIR: multiprocessing's folders of sockets, pipes of torch's agents.
_SOCKETS, _PIPES = "pymp-*", "watchdog_timer_*"

#: Longest path of a run's folder in bytes. A socket's path has 107 at most, and libraries append 35 or more to TMPDIR.
_LIMIT = 40


class TemporaryFolders:
    """The private TMPDIRs of the trials of this process. Thread-safe.

    Args:
        launcher: id of the process that has started this one as one of several ranks, which share the TMPDIRs.
    """

    def __init__(self, launcher: int | None = None) -> None:
        self._launcher = launcher
        #: Folders of this run by the TMPDIR that they replace, perhaps under a short name; number of trials in each.
        self._roots: dict[str | None, tuple[Path, UsedFolder, Iterator[int]]] = {}
        self._uses: dict[str, int] = {}
        self._lock = threading.Lock()

    def make(self, replaced: str | None, trial: str) -> Path:
        """Make an empty folder for a trial, on the file system of the TMPDIR that it replaces.

        The default TMPDIR replaces ``None`` and one that cannot be used. ``trial``: a name that is equal in all ranks.
        """
        with self._lock:
            if replaced not in self._roots:
                base = Path(tempfile.gettempdir()).absolute()
                if replaced is not None and os.path.isdir(replaced) and os.access(replaced, os.W_OK | os.X_OK):
                    base = Path(replaced).absolute()
                for place in dict.fromkeys((base, SHORT)):  # there are links to the folders that are removed first
                    sweep_folders(place)
                used = UsedFolder(
                    partial(make_own, base) if self._launcher is None else partial(_shared_folder, base, self._launcher)
                )
                path, short = used.path, SHORT / used.path.name
                if len(os.fsencode(path)) > _LIMIT and short != path:
                    path = _link(short, path)
                self._roots[replaced] = path, used, itertools.count()
            root, _, numbers = self._roots[replaced]
            if self._launcher is None:
                name = str(next(numbers))
            else:
                self._uses[trial] = number = self._uses.get(trial, -1) + 1
                name = hashlib.sha256(f"{trial}/{number}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
        path = root / name
        try:
            path.mkdir(0o700)
        except FileExistsError:
            if self._launcher is None:  # else another rank was faster
                raise
        return path

    def remove(self, path: Path, *, keep: bool) -> bool:
        """Remove the TMPDIR of an ended trial, or ``keep`` it unless it is empty; returns whether it is kept."""
        for left in path.glob(_SOCKETS):
            shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):
            for left in path.glob(_PIPES):
                left.unlink()
            path.rmdir()
            return False
        if keep and path.is_dir():
            with contextlib.suppress(OSError):
                keep_folder(path, KEPT_DAYS * 24 * 3600)
            return True
        shutil.rmtree(path, ignore_errors=True)
        return False

    def close(self) -> None:
        """Remove what is left, in the last of several ranks."""
        with self._lock:
            for path, used, _ in self._roots.values():
                used.close()
                remove_dangling(path)
            self._roots.clear()


def _shared_folder(base: Path, launcher: int) -> Path:
    try:
        started = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"
    folder = base / f"{PREFIX}{launcher}-{started}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _link(short: Path, folder: Path) -> Path:
    """Link a ``short`` name to a folder; returns the folder itself if that fails."""
    try:
        short.symlink_to(folder)
    except FileExistsError:
        with contextlib.suppress(OSError):
            return short if Path(os.readlink(short)) == folder else folder
        return folder
    except OSError:
        return folder
    return short


@dataclass(frozen=True)
class PrivateFolders:
    """The folders that a trial has for itself."""

    index: int
    files: Path
    tmp: Path | None
    sockets: Path | None = None
    problem: str | None = None
    shared: bool = False

    def variables(self, overlay: Iterable[str], limits: Limits, seed: int | None = None) -> dict[str, str]:
        """Variables that tell the trial its folders and what its result may have, except those in its ``overlay``.

        ``seed``: for a command.
        """
        variables = {TRIAL_INDEX: str(self.index), TRIAL: str(self.index), TRIAL_DIR: str(self.files)}
        if seed is not None:
            variables[TRIAL_SEED] = str(command_seed(seed))
        if limits.fail_on_nonfinite:
            variables[FINITE] = ",".join(limits.allow_nonfinite)
        if self.tmp is not None:
            variables["TMPDIR"] = str(self.tmp)
        for name in variables.keys() & overlay:
            del variables[name]
        return variables


def make_place(
    index: int,
    folder: Path,
    temporary: TemporaryFolders,
    environ: Mapping[str, str],
    *,
    ranks: bool = False,
    shared: bool = False,
) -> PrivateFolders:
    """Make the private folders of a trial; ``folder`` is for its artifacts, ``environ`` has its other variables.

    ``ranks``: whether the trial starts ranks. ``shared``: whether this process is one of several ranks of an outer
    launcher. Only rank 0 makes the folder of files, because it first moves an earlier trial's away. The other ranks
    make it after they have met, if it is still missing.
    """
    rank = own_rank() if shared else 0
    if rank > 0:
        files = folder.with_name(folder.name.removesuffix(f".rank_{rank}")).absolute() / FILES
    else:
        files = (folder / FILES).absolute()
        with contextlib.suppress(FileExistsError):  # of an earlier trial that no record was written of
            files.mkdir()
    try:
        tmp = temporary.make(environ.get("TMPDIR"), str(files))
        sockets = tmp.with_name(f"{tmp.name}.s") if ranks else None
        if sockets is not None:
            sockets.mkdir(0o700, exist_ok=True)  # left of a trial whose process could not be ended
        return PrivateFolders(index, files, tmp, sockets, shared=shared)
    except OSError as error:  # a full disk: the trial may do without
        problem = f"no TMPDIR of its own: {error}" if rank == 0 else None
        return PrivateFolders(index, files, None, problem=problem, shared=shared)


def clear_place(
    place: PrivateFolders, temporary: TemporaryFolders, *, failed: bool, in_use: bool = False
) -> dict[str, str]:
    """Remove what is not kept of a trial that has ended; returns the rest as ``artifacts`` of its record."""
    kept: dict[str, str] = {}
    if place.sockets is not None and not in_use:
        shutil.rmtree(place.sockets, ignore_errors=True)
    if place.shared and own_rank() != 0:
        return kept
    if not in_use:
        with contextlib.suppress(OSError):  # it is not empty
            place.files.rmdir()
    if place.files.is_dir():
        kept["files"] = f"{place.files.parent.name}/{place.files.name}"
    if place.tmp is not None and not in_use and temporary.remove(place.tmp, keep=failed):
        kept["tmp"] = str(place.tmp)
    return kept


# Working directories: a copy for each trial, and a warning about files that trials leave in a shared one.

_FICLONE = 0x40049409  # as ioctl_ficlonerange(2) has it

#: The file by which a virtual environment is known.
_OF_VENV = "pyvenv.cfg"


def copy_folder(source: Path, target: Path, results: Path) -> None:
    """Copy the content of a folder into an empty one; files share blocks if the file system can do that.

    ``.git`` and virtual environments become links. The ``results`` of the run, to which ``target`` belongs, are left
    out.
    """
    for entry in os.scandir(source):
        path, copy = Path(entry.path), target / entry.name
        if path in (results, target) or (source == results and target.is_relative_to(path)):
            continue
        if entry.is_symlink():
            inside = path.resolve().is_relative_to(source) and not os.path.isabs(os.readlink(path))
            copy.symlink_to(os.readlink(path) if inside else path.resolve())
        elif entry.is_dir():
            if entry.name == ".git" or os.path.lexists(path / _OF_VENV):
                copy.symlink_to(path)
            else:
                copy.mkdir()
                copy_folder(path, copy, results)
                shutil.copystat(path, copy)
        elif entry.is_file():
            _copy_file(path, copy)


def _copy_file(source: Path, target: Path) -> None:
    try:
        with source.open("rb") as old, target.open("wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        shutil.copystat(source, target)
    except OSError:  # no such file system, or another one
        shutil.copy2(source, target)


def remove_unchanged(folder: Path, source: Path) -> None:
    """Remove from a trial's copy of ``source`` what the trial has neither made nor changed."""
    for root, folders, names in os.walk(folder, topdown=False):
        for path in (Path(root, name) for name in (*folders, *names)):
            with contextlib.suppress(OSError):
                own, original = path.lstat(), (source / path.relative_to(folder)).lstat()
                if stat.S_ISDIR(own.st_mode):
                    path.rmdir()  # only when it is empty
                elif path.is_symlink() or (own.st_size, own.st_mtime_ns) == (original.st_size, original.st_mtime_ns):
                    path.unlink()


#: Files that are looked at, in one folder and in all.
_MOST_IN_FOLDER, _MOST = 500, 2000

#: After the first few looks, the time between two looks is so many times the duration of the last one.
_FIRST, _TIMES = 5, 50

#: Files that a warning names.
_FILES_NAMED = 5

_NO_FILES = {"__pycache__", "node_modules", "core"}

Seen = dict[str, dict[str, tuple[int, int]]]


class SharedFolder:
    """Warns once if files appear or change in a working directory while trials run there. Thread-safe.

    Hidden files, pytest's own output and the ``results`` do not count. In a large tree, only folders with few files are
    looked at, up to a number of files.
    """

    def __init__(self, folder: str, results: str | None) -> None:
        self._folder = folder
        self._results = results
        self._lock = threading.Lock()
        self._next = 0.0
        self._looks = 0
        self._is_over = False
        self._seen = self._look()

    def warning(self) -> str | None:
        """Look after the end of a trial; returns a warning the first time that there is a change."""
        with self._lock:
            if self._is_over or time.monotonic() < self._next:
                return None
            before, self._seen = self._seen, self._look()
            changed = []
            for folder in before.keys() & self._seen.keys():
                for name, _ in self._seen[folder].items() - before[folder].items():
                    changed.append(os.path.join(folder, name))
            self._is_over = bool(changed)
        if not changed:
            return None
        names = ", ".join(first_names(sorted(changed), _FILES_NAMED))
        return (
            f"files in the working directory appeared or changed while trials ran: {names}; one trial may find what "
            "another has left (--aorta-cwd fresh or copy)"
        )

    def _look(self) -> Seen:
        began = time.monotonic()
        # Files that this process or its parent has open, such as the file that their output goes to.
        outputs = set()
        for pid in (os.getpid(), os.getppid()):
            with contextlib.suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        status = os.stat(f"/proc/{pid}/fd/{number}")
                        if stat.S_ISREG(status.st_mode):
                            outputs.add((status.st_dev, status.st_ino))
        seen: Seen = {}
        count = 0
        for root, folders, names in os.walk(self._folder):
            count += len(folders) + len(names)
            if len(folders) + len(names) > _MOST_IN_FOLDER or count > _MOST:
                folders.clear()
                continue
            files = seen[root[len(self._folder) + 1 :]] = {}
            for name in (*folders, *names):
                path = os.path.join(root, name)
                is_hidden = name.startswith(".") or name in _NO_FILES
                if is_hidden or path == self._results or os.path.lexists(f"{path}/{_OF_VENV}"):
                    if name in folders:
                        folders.remove(name)
                elif name in folders:
                    files[f"{name}/"] = (0, 0)
                else:
                    with contextlib.suppress(OSError):
                        status = os.stat(path)
                        if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in outputs:
                            files[name] = (status.st_size, status.st_mtime_ns)
        ended = time.monotonic()
        self._looks += 1
        self._next = ended + (_TIMES * (ended - began) if self._looks >= _FIRST else 0)
        return seen
