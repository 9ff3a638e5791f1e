"""A private TMPDIR for every trial: ``<TMPDIR>/aorta-tmp-XXXXXXXX/<number>``.

The folder of a run holds a lock file that is locked as long as the run lives. What runs that were killed have left is
removed by the next run on this host with the same TMPDIR. The TMPDIR of a failed trial stays for some days.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import secrets
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aorta.launch.host.spare_folders import SpareFolders
from pytest_aorta.runtime.resources.file_locks import Locks
from pytest_aorta.trials.place_variables import KEPT_DAYS

_PREFIX = "aorta-tmp-"

#: In the folder of a run, one per process that uses it.
_LOCK = ".lock."

#: Beside a TMPDIR that stays.
_KEPT = ".kept"

#: Where a longer path gets a short name, which is a symbolic link.
_SHORT = Path("/tmp")

#: Longest path of a run's folder in bytes. A socket's path has at most 107, and libraries append 35 and more to TMPDIR.
_LIMIT = 40


@dataclass
class _Root:
    """The folder of a run below one TMPDIR; ``path`` is the short name, if it has one."""

    path: Path
    folder: Path
    locks: Locks = field(default_factory=Locks)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    spare: SpareFolders = field(default_factory=lambda: SpareFolders(0o700))


class TemporaryFolders:
    """The private TMPDIRs of the trials of this process. Thread-safe.

    Args:
        launcher: process that has started this one as a rank among several; they share the TMPDIRs.
    """

    def __init__(self, launcher: int | None = None) -> None:
        self._launcher = launcher
        self._roots: dict[str | None, _Root] = {}
        self._uses: dict[str, int] = {}
        #: For what a trial leaves among the results.
        self.spare = SpareFolders()
        self._lock = threading.Lock()

    def make(self, replaced: str | None, trial: str) -> Path:
        """An empty folder that no running trial has, on the file system of the TMPDIR that it replaces.

        Args:
            replaced: that TMPDIR; ``None``, or one that cannot be used, for the default one.
            trial: name of the trial in this run, the same in all ranks.

        Raises:
            OSError: it cannot be made.
        """
        with self._lock:
            root = self._roots.get(replaced)
            if root is None:
                root = self._roots[replaced] = self._make_root(_usable(replaced))
            if self._launcher is None:
                name = str(next(root.numbers))
            else:
                self._uses[trial] = number = self._uses.get(trial, -1) + 1
                name = hashlib.sha256(f"{trial}/{number}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
        path = root.path / name
        try:
            root.spare.make(path)
        except FileExistsError:
            if self._launcher is None:  # else another rank was faster
                raise
        return path

    def _make_root(self, base: Path) -> _Root:
        for place in {base, _SHORT}:
            _sweep(place)
        while True:
            folder = _own_folder(base) if self._launcher is None else _shared_folder(base, self._launcher)
            root = _Root(folder, folder)
            lock = folder / f"{_LOCK}{secrets.token_hex(4)}"
            lock.write_text("\n".join(_host()))
            try:
                locked = root.locks.add_locked(lock, 0)
            except OSError:
                locked = True  # no locks on this file system, so no sweep finds it unlocked
            # Another process may have taken this for a dead run's in the meantime.
            if locked and lock.exists():
                root.path = _short_name(folder)
                return root
            root.locks.close()

    def remove(self, path: Path, *, keep: bool) -> bool:
        """After the end of a trial: remove its TMPDIR, or ``keep`` it, unless it is empty; whether it is kept."""
        with self._lock:
            root = next((root for root in self._roots.values() if root.path == path.parent), None)
        with contextlib.suppress(OSError):
            if self._launcher is not None:
                os.rmdir(path)
                return False
            if root is not None and root.spare.take_back(path):
                return False
        if keep and path.is_dir():
            with contextlib.suppress(OSError):
                path.with_name(path.name + _KEPT).touch()
            return True
        shutil.rmtree(path, ignore_errors=True)
        return False

    def close(self) -> None:
        """Remove what is left; the last one of several ranks does."""
        with self._lock:
            self.spare.close()
            for root in self._roots.values():
                root.locks.close()
                _sweep_root(root.folder)
                _remove_dangling(root.path)
            self._roots.clear()


def _usable(replaced: str | None) -> Path:
    usable = replaced is not None and os.path.isdir(replaced) and os.access(replaced, os.W_OK | os.X_OK)
    return Path(replaced if usable and replaced is not None else tempfile.gettempdir()).absolute()


def _own_folder(base: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))


def _shared_folder(base: Path, launcher: int) -> Path:
    """The same for all processes that ``launcher`` has started.

    Raises:
        PermissionError: another user has made it.
    """
    try:
        started = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"
    folder = base / f"{_PREFIX}{launcher}-{started}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _short_name(folder: Path) -> Path:
    """``folder``, or a symbolic link to it whose path is shorter."""
    short = _SHORT / folder.name
    if len(os.fsencode(folder)) <= _LIMIT or short == folder:
        return folder
    try:
        short.symlink_to(folder)
    except FileExistsError:
        with contextlib.suppress(OSError):
            return short if Path(os.readlink(short)) == folder else folder
        return folder
    except OSError:
        return folder
    return short


def _sweep(base: Path) -> None:
    """Remove what this user's dead runs have left."""
    try:
        found = [entry for entry in os.scandir(base) if entry.name.startswith(_PREFIX)]
    except OSError:
        return
    for entry in found:
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            if entry.is_symlink():
                _remove_dangling(Path(entry.path))
            elif entry.is_dir():
                _sweep_root(Path(entry.path))


def _remove_dangling(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        path.unlink(missing_ok=True)


def _host() -> list[str]:
    """What tells a host from others: its name, and its kernel since it was booted, which containers share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return [socket.gethostname(), boot]


def _is_of_this_host(lock: Path) -> bool:
    """Whether a lock is of a run on this host: on a file system of several hosts, locks of others may not show."""
    own = zip(lock.read_text().splitlines(), _host(), strict=False)
    return any(theirs == ours != "" for theirs, ours in own)


def _sweep_root(folder: Path) -> None:
    """Remove the folder of a run, unless a process still uses it, or it holds what is kept."""
    held = Locks()
    try:
        locks = list(folder.glob(f"{_LOCK}*"))
        if not locks or not all(_is_of_this_host(lock) and held.add_locked(lock, 0) for lock in locks):
            return
        for path in folder.iterdir():
            kept = path.with_name(path.name + _KEPT)
            if path.is_dir() and not (kept.exists() and time.time() - kept.stat().st_mtime < KEPT_DAYS * 24 * 3600):
                shutil.rmtree(path, ignore_errors=True)
                kept.unlink(missing_ok=True)
        left = list(folder.iterdir())
        if not any(path.is_dir() for path in left):
            for path in left:
                path.unlink(missing_ok=True)
            folder.rmdir()
    except OSError:
        pass  # another process sweeps, too
    finally:
        held.close()
