"""What a trial has for itself: its number, a folder for files that are kept, and a TMPDIR."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.runtime.resources.used_folders import PREFIX, SHORT, UsedFolder, make_own, remove_dangling, sweep
from pytest_aorta.runtime.resources.used_folders import keep as keep_folder
from pytest_aorta.trials.execution import FILES, KEPT_DAYS, TRIAL, TRIAL_DIR, TRIAL_INDEX, TRIAL_SEED
from pytest_aorta.trials.seeding import command_seed

# A private TMPDIR for every trial: ``<TMPDIR>/aorta-tmp-XXXXXXXX/<number>``.
#
# The folder of a run holds a lock file that is locked as long as the run lives. What runs that were killed have left
# is removed by the next run on this host with the same TMPDIR. The TMPDIR of a failed trial stays for some days.


#: What processes leave in TMPDIR when they are killed: multiprocessing's folders of sockets, pipes of torch's agents.
_SOCKETS, _PIPES = "pymp-*", "watchdog_timer_*"

#: Longest path of a run's folder in bytes. A socket's path has at most 107, and libraries append 35 and more to TMPDIR.
_LIMIT = 40


@dataclass
class _Root:
    path: Path
    used: UsedFolder
    numbers: Iterator[int] = field(default_factory=itertools.count)


class TemporaryFolders:
    """The private TMPDIRs of the trials of this process. Thread-safe.

    Args:
        launcher: process that has started this one as a rank among several; they share the TMPDIRs.
    """

    def __init__(self, launcher: int | None = None) -> None:
        self._launcher = launcher
        self._roots: dict[str | None, _Root] = {}
        self._uses: dict[str, int] = {}
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
                base = Path(tempfile.gettempdir()).absolute()
                if replaced is not None and os.path.isdir(replaced) and os.access(replaced, os.W_OK | os.X_OK):
                    base = Path(replaced).absolute()
                for place in dict.fromkeys((base, SHORT)):  # there are links to the folders that are removed first
                    sweep(place)
                launcher = self._launcher
                used = UsedFolder(lambda: make_own(base) if launcher is None else _shared_folder(base, launcher))
                root = self._roots[replaced] = _Root(_short_name(used.path), used)
            if self._launcher is None:
                name = str(next(root.numbers))
            else:
                self._uses[trial] = number = self._uses.get(trial, -1) + 1
                name = hashlib.sha256(f"{trial}/{number}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
        path = root.path / name
        try:
            path.mkdir(0o700)
        except FileExistsError:
            if self._launcher is None:  # else another rank was faster
                raise
        return path

    def make_beside(self, tmp: Path) -> Path:
        path = tmp.with_name(f"{tmp.name}.s")
        path.mkdir(0o700, exist_ok=True)  # left of a trial whose process could not be ended
        return path

    def remove(self, path: Path, *, keep: bool) -> bool:
        """After the end of a trial: remove its TMPDIR, or ``keep`` it, unless it is empty; whether it is kept."""
        with contextlib.suppress(OSError):
            path.rmdir()
            return False
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
        """Remove what is left; the last one of several ranks does."""
        with self._lock:
            for root in self._roots.values():
                root.used.close()
                remove_dangling(root.path)
            self._roots.clear()


def _shared_folder(base: Path, launcher: int) -> Path:
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


@dataclass(frozen=True)
class TrialFolders:
    """What a trial has for itself."""

    index: int
    files: Path
    tmp: Path | None
    sockets: Path | None = None
    problem: str | None = None
    shared: bool = False

    def variables(self, overlay: Container[str], seed: int | None = None) -> dict[str, str]:
        """What the trial finds in its environment, but for what its ``overlay`` sets; ``seed``: for a command."""
        found = {TRIAL_INDEX: str(self.index), TRIAL: str(self.index), TRIAL_DIR: str(self.files)}
        if seed is not None:
            found[TRIAL_SEED] = str(command_seed(seed))
        if self.tmp is not None:
            found["TMPDIR"] = str(self.tmp)
        return {name: value for name, value in found.items() if name not in overlay}


def make_place(
    index: int, folder: Path, temporary: TemporaryFolders, environ: Mapping[str, str], *, ranks: bool = False
) -> TrialFolders:
    """A place for a trial with the artifacts ``folder``, where trials otherwise have the variables ``environ``.

    ``ranks``: whether it starts ranks.
    """
    files = (folder / FILES).absolute()
    with contextlib.suppress(FileExistsError):  # of an earlier trial that no record was written of
        files.mkdir()
    try:
        tmp = temporary.make(environ.get("TMPDIR"), str(files))
        return TrialFolders(index, files, tmp, temporary.make_beside(tmp) if ranks else None)
    except OSError as error:  # a full disk: the trial may do without
        return TrialFolders(index, files, None, problem=f"no TMPDIR of its own: {error}")


def share_place(index: int, folder: Path, temporary: TemporaryFolders, environ: Mapping[str, str]) -> TrialFolders:
    """The place of a trial that is one of several ranks' of an outer launcher; ``folder`` is this rank's.

    Only rank 0 makes the folder of files, because it moves an earlier trial's away before. The others' processes make
    it after they have met, where it is missing still.
    """
    if own_rank() == 0:
        return replace(make_place(index, folder, temporary, environ), shared=True)
    files = folder.with_name(folder.name.removesuffix(f".rank_{own_rank()}")).absolute() / FILES
    tmp = None
    with contextlib.suppress(OSError):
        tmp = temporary.make(environ.get("TMPDIR"), str(files))
    return TrialFolders(index, files, tmp, shared=True)


def clear_place(
    place: TrialFolders, temporary: TemporaryFolders, *, failed: bool, in_use: bool = False
) -> dict[str, str]:
    """After the end of a trial: remove what is not kept; the rest as ``artifacts`` of the record."""
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
