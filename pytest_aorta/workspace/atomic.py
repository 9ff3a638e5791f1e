"""Files that are absent or complete, whenever the process or the machine stops."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Write strict JSON: a temporary file in the same folder, fsync, rename.

    Raises:
        ValueError: ``data`` holds a NaN or infinity.
        OSError: the folder cannot be written; nothing is left behind.
    """
    with staged_text(path, as_json(data)) as temporary:
        os.replace(temporary, path)


def as_json(data: Any) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a text as ``write_json`` writes data."""
    with staged_text(path, text) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def staged_text(path: Path, text: str) -> Iterator[Path]:
    """A complete file beside ``path``, to be renamed; lone surrogates are written as question marks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has a writer, see ``remove_abandoned``
            file.write(text)
            file.flush()
            os.fchmod(fd, 0o644)  # mkstemp is private; results are to be shared
            os.fsync(fd)
            yield Path(temporary)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file, unless its writer still lives."""
    with contextlib.suppress(OSError), temporary.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes and threads; does nothing where locks are not available.

    The kernel releases it when its holder dies.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # nothing is there to be kept from others
        yield
        return
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no directories
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
