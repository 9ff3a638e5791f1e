"""Empty folders that are used again, because removing one takes milliseconds on ext4."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


class SpareFolders:
    """Folders that trials have left empty, to be moved to where the next trial needs one. Thread-safe."""

    def __init__(self, mode: int = 0o777) -> None:
        self._mode = mode
        #: Mode that a folder has once it is made.
        self._made: int | None = None
        self._spare: list[Path] = []

    def make(self, path: Path) -> None:
        """Make an empty folder, or move one there.

        Raises:
            OSError: it cannot be made, or exists.
        """
        while self._spare:
            with contextlib.suppress(IndexError):  # another thread has it
                spare = self._spare.pop()
                try:
                    os.rename(spare, path)
                    return
                except OSError:  # it lies on another file system, or has been removed
                    _remove(spare)
        os.mkdir(path, self._mode)
        if self._made is None:
            self._made = _mode(path)

    def take_back(self, path: Path) -> bool:
        """Whether ``path`` is an empty folder still; then it is taken."""
        try:
            if os.listdir(path):
                return False
            if _mode(path) == self._made:
                self._spare.append(path)
            else:  # the trial has changed it, or put something else in its place
                _remove(path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove them."""
        while self._spare:
            _remove(self._spare.pop())


def _mode(path: Path) -> int | None:
    found = os.lstat(path).st_mode
    return stat.S_IMODE(found) if stat.S_ISDIR(found) else None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)
