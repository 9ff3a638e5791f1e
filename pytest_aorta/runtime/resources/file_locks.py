"""Locks on files: ``flock`` on descriptors that no forked child keeps, and the table that decides about them.

``flock`` is called directly, though ``filelock`` is at hand: its release *unlocks* the file, for every process that
shares the descriptor, while a lease has to last until the last of them has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path


class Locks:
    """Descriptors that hold locks. A process that is forked from this one does not keep them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add_locked(self, file: Path, flags: int) -> bool:
        """Open and lock a file; false, and nothing is opened, when another descriptor holds its lock."""
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self.numbers.append(descriptor)
        _all.add(self)
        return True

    def close(self) -> None:
        """Close them; never unlock them."""
        while self.numbers:
            os.close(self.numbers.pop())
        _all.discard(self)


#: Guards what this process opens; notified when it gives something back. A fork waits for it, so that no descriptor
#: can slip into a child before ``_all`` knows it.
RELEASES = threading.Condition()
_all: set[Locks] = set()


def _in_forked_child() -> None:
    for held in list(_all):
        held.close()
    RELEASES.release()


os.register_at_fork(before=RELEASES.acquire, after_in_parent=RELEASES.release, after_in_child=_in_forked_child)


@contextlib.contextmanager
def table(folder: Path) -> Iterator[bool]:
    """Hold the table, unless another process does: then false."""
    descriptor = os.open(folder / "table.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_locked(file: Path) -> bool:
    """Whether any descriptor holds a file's lock; tried by taking it for a moment, so the table has to be held."""
    probe = Locks()
    try:
        free = probe.add_locked(file, 0)
    except FileNotFoundError:
        return False
    probe.close()
    return not free
