"""Working directories: a copy for a trial, and what trials leave for each other in one that they share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import threading
import time
from pathlib import Path

from pytest_aorta.common.texts import first_names

_FICLONE = 0x40049409  # as ioctl_ficlonerange(2) has it

#: Size and time of modification, by path.
Manifest = dict[str, tuple[int, int]]


def copy_folder(source: Path, target: Path, results: Path) -> Manifest:
    """Copy what lies in a folder to an empty one, sharing blocks where the file system can; what was made there.

    Links to ``.git`` and to virtual environments stand for these. The ``results`` of the run, to which ``target``
    belongs, are left out.

    Raises:
        OSError: something cannot be read, or there is no space left.
    """
    made: Manifest = {}
    for entry in os.scandir(source):
        path, copy = Path(entry.path), target / entry.name
        if path in (results, target) or (source == results and target.is_relative_to(path)):
            continue
        if entry.is_symlink():
            inside = path.resolve().is_relative_to(source) and not os.path.isabs(os.readlink(path))
            copy.symlink_to(os.readlink(path) if inside else path.resolve())
        elif entry.is_dir():
            if entry.name == ".git" or _is_venv(path):
                copy.symlink_to(path)
            else:
                copy.mkdir()
                below = copy_folder(path, copy, results)
                made.update({f"{entry.name}/{name}": found for name, found in below.items()})
                shutil.copystat(path, copy)
                continue
        elif entry.is_file():
            _copy_file(path, copy)
        else:
            continue
        made[entry.name] = _look_of(copy.lstat())
    return made


def _copy_file(source: Path, target: Path) -> None:
    try:
        with source.open("rb") as old, target.open("wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        shutil.copystat(source, target)
    except OSError:  # no such file system, or another one
        shutil.copy2(source, target)


def _look_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _is_venv(folder: Path | str) -> bool:
    return os.path.lexists(os.path.join(folder, "pyvenv.cfg"))


def remove_unchanged(folder: Path, made: Manifest) -> None:
    """After the end of a trial: remove from its copy what it has neither made nor changed."""
    folders: set[Path] = set()
    for name, before in made.items():
        path = folder / name
        with contextlib.suppress(OSError):
            if _look_of(path.lstat()) == before:
                path.unlink()
            folders.update(parent for parent in path.parents if parent != folder and folder in parent.parents)
    for empty in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            empty.rmdir()


#: Files of a folder, and of all of them, that are looked at.
_MOST_IN_FOLDER, _MOST = 500, 2000

#: After the first few looks, one is taken when so many times the duration of the last one have passed.
_FIRST, _TIMES = 5, 50

#: Files that a warning names.
_NAMED = 5

_NO_FILES = {"__pycache__", "node_modules", "core"}

Seen = dict[str, dict[str, tuple[int, int]]]


class SharedFolder:
    """Notices, once, that files appear or change in a folder while trials run there. Thread-safe.

    Hidden files, those of pytest's own output and the ``results`` do not count. Of a large tree, the upper folders with
    few files are looked at.
    """

    def __init__(self, folder: str, results: str | None) -> None:
        self._folder = folder
        self._own = [results] if results is not None else []
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._next = 0.0
        self._looks = 0
        self._is_over = False

    def begin(self) -> None:
        """A trial is about to start."""
        with self._lock:
            if self._seen is None:
                self._seen = self._look()

    def warning(self) -> str | None:
        """A trial has ended: what the user should know, the first time that there is something."""
        with self._lock:
            if self._is_over or self._seen is None or time.monotonic() < self._next:
                return None
            before, self._seen = self._seen, self._look()
            found = sorted(
                os.path.join(folder, name)
                for folder, names in self._seen.items()
                for name, look in names.items()
                if folder in before and before[folder].get(name) != look
            )
            self._is_over = bool(found)
        if not found:
            return None
        names = ", ".join(first_names(found, _NAMED))
        return (
            f"files in the working directory appeared or changed while trials ran: {names}; one trial may find what "
            "another has left (--aorta-cwd fresh or copy)"
        )

    def _look(self) -> Seen:
        began = time.monotonic()
        outputs = _outputs()
        seen: Seen = {}
        folders, count = [""], 0
        for folder in folders:  # to which is added
            with contextlib.suppress(OSError), os.scandir(os.path.join(self._folder, folder)) as entries:
                listed = [entry for entry in entries if not entry.name.startswith(".") and entry.name not in _NO_FILES]
                count += len(listed)
                if len(listed) > _MOST_IN_FOLDER or count > _MOST:
                    continue
                seen[folder] = {}
                for entry in listed:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path not in self._own and not _is_venv(entry.path):
                            folders.append(os.path.join(folder, entry.name))
                            seen[folder][f"{entry.name}/"] = (0, 0)
                    elif entry.is_file() and (status := entry.stat()) and (status.st_dev, status.st_ino) not in outputs:
                        seen[folder][entry.name] = _look_of(status)
        ended = time.monotonic()
        self._looks += 1
        self._next = ended + (_TIMES * (ended - began) if self._looks >= _FIRST else 0)
        return seen


def _outputs() -> set[tuple[int, int]]:
    """Files that this process, or the one that has started it, has open: what their output goes to is among them."""
    found = set()
    for pid in (os.getpid(), os.getppid()):
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{number}")
                    if stat.S_ISREG(status.st_mode):
                        found.add((status.st_dev, status.st_ino))
    return found
