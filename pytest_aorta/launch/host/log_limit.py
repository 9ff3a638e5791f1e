"""Bounding the logs of a trial: of a long one, head and tail are kept."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, as fallocate(2) has them

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class LogLimit:
    """Keeps ``limit`` bytes of every ``*.log`` below a trial's ``folder``: half from its head, half from its tail."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._head = limit // 2
        self._tail = limit - self._head
        #: Where the hole of each log ends.
        self._holes: dict[Path, int] = {}

    def punch(self) -> None:
        """Free the disk space between head and tail of logs that are still being written.

        A file keeps its size, so its writer is not affected. Without holes in the file system, nothing happens.
        """
        for path, size in self._long_ones():
            start, end = self._holes.get(path, self._head), size - self._tail
            with contextlib.suppress(OSError), path.open("r+b") as file:
                _libc.fallocate(file.fileno(), _PUNCH_HOLE, start, end - start)
                # The next hole begins a little before, because only whole blocks are freed.
                self._holes[path] = max(self._head, end - 2**20)

    def cut(self) -> list[str]:
        """Shorten the logs of a trial whose processes are gone; a text for each cut."""
        return [text for path, size in self._long_ones() if (text := self._cut(path, size))]

    def _long_ones(self) -> Iterator[tuple[Path, int]]:
        for path in sorted(self._folder.rglob("*.log")):
            with contextlib.suppress(OSError):
                facts = path.lstat()
                if facts.st_size > self._head + self._tail and not path.is_symlink():
                    yield path, facts.st_size

    def _cut(self, path: Path, size: int) -> str | None:
        cut = size - self._head - self._tail
        said = f"{cut} of {size} bytes were cut here; aorta_log_limit keeps {self._head + self._tail}"
        try:
            fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with path.open("rb") as old, os.fdopen(fd, "wb") as new:
                    new.write(old.read(self._head))
                    new.write(f"\n[... {said} ...]\n".encode())
                    old.seek(size - self._tail)
                    shutil.copyfileobj(old, new)
                    os.fchmod(new.fileno(), 0o644)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError:
            return None  # it stays as long as it is
        return f"{path.relative_to(self._folder).as_posix()}: {said.replace(' here', '')}"
