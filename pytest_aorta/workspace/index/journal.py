"""Completions of one process, appended to a file of its own as they happen, and read by others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.workspace.index.completions import CommandCompletion, Completion, TrialCompletion, is_valid

if TYPE_CHECKING:
    from typing_extensions import Self

SUFFIX = ".jsonl"

#: Bytes of a line; a longer one is no completion, and is not held in memory.
_LONGEST = 2**24


class Journal:
    """Writer of completions; a lock on its file says that it may still grow.

    A line is one ``write`` to a file opened for appending: after ``kill -9``, all but the last line are whole. What a
    crash of the machine loses, the trial files and the products still say (``pytest-aorta scan``).

    Args:
        folder: of all journals of a workspace; made with the first completion.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._sources: Mapping[str, str] | None = None
        self._is_torn = False

    def add(self, completion: Completion) -> None:
        """Append a completion.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._fd is None:
            self._fd = _open_new(self._folder)
        plain: dict[str, Any] = {"kind": "command", **vars(completion)}
        sources = self._sources
        if isinstance(completion, TrialCompletion):
            plain["kind"], sources = "trial", completion.sources
            if sources == self._sources:  # they are most of the line, and those of one workload
                plain["sources"] = None
        text = json.dumps(plain).encode() + b"\n"
        if self._is_torn:
            text = b"\n" + text
        self._is_torn = True
        if os.write(self._fd, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_torn, self._sources = False, sources

    def close(self) -> None:
        """Nothing more comes: on disk, and free to be folded into the cache."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def journals(folder: Path) -> list[Path]:
    """The journals in a folder, in the order of their names."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_journal(path: Path) -> Iterator[Completion | None]:
    """The completions of a journal; ``None`` for a line that is damaged, or of a later version.

    Raises:
        OSError: it cannot be read, such as a folder of its name.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:  # folded by another reader in the meantime
        return
    sources: Mapping[str, str] | None = None
    with file:
        while line := file.readline(_LONGEST):
            if not line.endswith(b"\n") and len(line) < _LONGEST:
                return  # its writer was killed, or is writing it now
            if not line.strip():
                continue
            found = _completion(line, sources)
            if isinstance(found, TrialCompletion):
                sources = found.sources
            yield found


def _completion(line: bytes, sources: Mapping[str, str] | None) -> Completion | None:
    """What a line says; ``sources``: of the trial before, which it does not repeat."""
    try:
        fields = json.loads(line)
        kind = fields.pop("kind")
        if kind == "trial" and fields.get("sources", {}) is None:
            fields["sources"] = sources
        found = {"trial": TrialCompletion, "command": CommandCompletion}[kind](**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return found if is_valid(found) else None


def has_ended(path: Path) -> bool:
    """Whether the process that wrote a journal has closed it, or is gone."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def _open_new(folder: Path) -> int:
    """A new journal, which gets its name when it is locked: without a lock it would look as if it had ended.

    Names are in the order of time, in which journals are folded: the last completion counts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{time.time_ns():020}-{os.urandom(8).hex()}"
    temporary = folder / f"{name}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    temporary.rename(folder / f"{name}{SUFFIX}")
    return fd
