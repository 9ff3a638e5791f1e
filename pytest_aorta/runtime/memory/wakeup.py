"""A descriptor that becomes readable when it is called: how the garbage collector asks for something to be done."""

from __future__ import annotations

import contextlib
import os


class Wakeup:
    """May be called by any thread, in the middle of anything: it takes no lock, and does not block.

    It is closed when nothing refers to it any more, and not before, so that a call never writes to a descriptor that
    has become another file's.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """The descriptor to be watched."""
        return self._fd

    def __call__(self) -> None:
        """Make it readable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make it unreadable again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # there was no descriptor left for it
            os.close(self._fd)
