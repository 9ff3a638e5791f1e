"""Lines below what pytest writes to a terminal, which come and go without a trace.

The cursor always rests where pytest's next character goes, so whatever else is written there stays readable. The lines
are drawn below it: first the cursor goes down by so many lines (IND, which keeps the column, also of a line that is not
complete, and scrolls at the bottom), then up again, and its position is saved for the time of the drawing. Nothing has
to be known of where the cursor is, and one sequence erases all of it.

``rich.live`` cannot do this: it puts the cursor on a line of its own, and pytest writes its lines dot by dot; and it
writes to ``sys.stdout``, which pytest's capture redirects while a test runs. Hence a descriptor of our own, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TextIO

#: Erases what is behind the cursor and below it.
_ERASE = "\x1b[J"


def drawing(lines: Sequence[str]) -> str:
    """What draws these lines, which must fit, below the cursor, and leaves the cursor where it is."""
    down, up = "\x1bD" * len(lines), f"\x1b[{len(lines)}A"
    body = "\r\n".join(lines)
    # Wide characters may not fit after all: the terminal cuts lines instead of wrapping them.
    return f"{_ERASE}{down}{up}\x1b7\x1b[?7l\r\n{body}\x1b[?7h\x1b8"


class LiveRegion:
    """The lines below the cursor of a terminal. Thread-safe.

    Args:
        file: that pytest writes to; a terminal.
        column: the width of what pytest has written on its current line.
        on_erased: called when the lines should be shown again. Not done at once: an exception of a signal handler,
            which comes in pytest's own thread, could end the drawing half-way.
    """

    def __init__(self, file: TextIO, column: Callable[[], int], on_erased: Callable[[], object]) -> None:
        self._file = file
        self._column = column
        self._on_erased = on_erased
        # Capture redirects the file's own while tests run.
        self._fd = os.dup(file.fileno())
        self._place = _place(self._fd)
        self._lock = threading.RLock()
        self._lines: list[str] = []
        self._is_drawn = False

    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal now; 0 where it has gone."""
        try:
            return os.get_terminal_size(self._fd)
        except (OSError, ValueError):
            return 0, 0

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines; each is shorter than the terminal is wide."""
        with self._lock:
            if self._is_drawn and list(lines) == self._lines:
                return
            was_drawn, self._lines = self._is_drawn, list(lines)
            if lines and not self._is_at_edge():
                self._is_drawn = self._write(drawing(self._lines))
            elif was_drawn:
                self._erase()

    def close(self) -> None:
        """Erase the lines, for good."""
        with self._lock:
            if self._fd >= 0:
                self.show(())
                os.close(self._fd)
                self._fd = -1

    def before(self, text: str) -> None:
        """pytest is about to write ``text``."""
        with self._lock:
            if self._is_drawn and self._disturbs(text) and self._is_reached():
                self._erase()

    def after(self) -> None:
        """What pytest has written is on the terminal."""
        if self._lines and not self._is_drawn:
            self._on_erased()

    def _disturbs(self, text: str) -> bool:
        """Whether it may leave the line that it begins on."""
        return "\n" in text or "\r" in text or self._column() >= self.size()[0]

    def _is_at_edge(self) -> bool:
        """Whether a line of pytest's is full: the cursor is then beyond the last column, and must not be moved."""
        column, width = self._column(), self.size()[0]
        return column > 0 and (width == 0 or column % width == 0)

    def _is_reached(self) -> bool:
        """Whether pytest's file is the terminal now, and not captured."""
        try:
            return self._fd >= 0 and _place(self._file.fileno()) == self._place
        except (OSError, ValueError):
            return False

    def _erase(self) -> None:
        self._write(_ERASE)
        self._is_drawn = False

    def _write(self, text: str) -> bool:
        """Whether it is on the terminal: one that has gone, or is not read, is no reason to fail."""
        data = text.encode(self._file.encoding or "utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return False
        return True


def _place(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_rdev, found.st_ino


class RegionFile:
    """pytest's file: what is written to it comes above the lines of a region."""

    def __init__(self, file: TextIO, region: LiveRegion) -> None:
        self._file = file
        self._region = region

    def write(self, text: str) -> int:
        """Write; the region makes room."""
        self._region.before(text)
        return self._file.write(text)

    def flush(self) -> None:
        """Flush; the region comes back."""
        self._file.flush()
        self._region.after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
