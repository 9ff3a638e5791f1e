"""A private TMPDIR for every trial: ``<TMPDIR>/aorta-tmp-XXXXXXXX/<number>``.

The folder of a run holds a lock file that is locked as long as the run lives. What runs that were killed have left is
removed by the next run on this host with the same TMPDIR. The TMPDIR of a failed trial stays for some days.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aorta.launch.host.spare_folders import SpareFolders
from pytest_aorta.runtime.resources.used_folders import PREFIX, SHORT, UsedFolder, make_own, remove_dangling, sweep
from pytest_aorta.runtime.resources.used_folders import keep as keep_folder
from pytest_aorta.trials.execution import KEPT_DAYS

#: Folders with sockets that processes leave in TMPDIR when they are killed.
_OF_MULTIPROCESSING = "pymp-*"

#: Longest path of a run's folder in bytes. A socket's path has at most 107, and libraries append 35 and more to TMPDIR.
_LIMIT = 40


@dataclass
class _Root:
    """The folder of a run below one TMPDIR; ``path`` is the short name, if it has one."""

    path: Path
    used: UsedFolder
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

    def make_beside(self, tmp: Path) -> Path:
        """An empty folder beside a trial's TMPDIR ``tmp``, with a path that is as short.

        Raises:
            OSError: it cannot be made.
        """
        path = tmp.with_name(f"{tmp.name}.s")
        path.mkdir(0o700, exist_ok=True)  # left of a trial whose process could not be ended
        return path

    def _make_root(self, base: Path) -> _Root:
        for place in dict.fromkeys((base, SHORT)):  # there are links to the folders that are removed first
            sweep(place)
        launcher = self._launcher
        used = UsedFolder(lambda: make_own(base) if launcher is None else _shared_folder(base, launcher))
        return _Root(_short_name(used.path), used)

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
        for left in path.glob(_OF_MULTIPROCESSING):
            shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.rmdir()
        if keep and path.is_dir():
            with contextlib.suppress(OSError):
                keep_folder(path, KEPT_DAYS * 24 * 3600)
            return True
        shutil.rmtree(path, ignore_errors=True)
        return False

    def close(self) -> None:
        """Remove what is left; the last one of several ranks does."""
        with self._lock:
            self.spare.close()
            for root in self._roots.values():
                root.used.close()
                remove_dangling(root.path)
            self._roots.clear()


def _usable(replaced: str | None) -> Path:
    usable = replaced is not None and os.path.isdir(replaced) and os.access(replaced, os.W_OK | os.X_OK)
    return Path(replaced if usable and replaced is not None else tempfile.gettempdir()).absolute()


def _shared_folder(base: Path, launcher: int) -> Path:
    """The same for all processes that ``launcher`` has started.

    Raises:
        PermissionError: another user has made it.
    """
    try:
        started = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = "0"
    folder = base / f"{PREFIX}{launcher}-{started}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _short_name(folder: Path) -> Path:
    """``folder``, or a symbolic link to it whose path is shorter."""
    short = SHORT / folder.name
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
