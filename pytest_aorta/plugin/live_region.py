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
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

#: Erases what is below and behind the cursor.
_ERASE = "\x1b[J"

#: Seconds between two drawings, but for those of the ticker, which comes less often.
_INTERVAL = 0.2


def drawing(lines: Sequence[str]) -> str:
    """What draws these lines, which must fit, below the cursor, and leaves the cursor where it is."""
    down, up = "\x1bD" * len(lines), f"\x1b[{len(lines)}A"
    body = "".join(f"\r\n{line}" for line in lines)
    # Wide characters may not fit after all: the terminal cuts lines instead of wrapping them.
    return f"{_ERASE}{down}{up}\x1b7\x1b[?7l{body}\x1b[?7h\x1b8"


class LiveRegion:
    """The lines below the cursor of a terminal. Thread-safe.

    Args:
        file: that pytest writes to; a terminal.
        column: the width of what pytest has written on its current line.
    """

    def __init__(self, file: TextIO, column: Callable[[], int]) -> None:
        self._file = file
        self._column = column
        # Capture redirects the file's own while tests run.
        self._fd = os.dup(file.fileno())
        self._place = _place(self._fd)
        self._lock = threading.RLock()
        self._lines: list[str] = []
        self._is_drawn = False
        self._drawn_at = 0.0

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
            if lines:
                self._draw()
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
        with self._lock:
            late = time.monotonic() - self._drawn_at >= _INTERVAL
            if self._lines and not self._is_drawn and late and self._is_reached():
                self._draw()

    def _disturbs(self, text: str) -> bool:
        """Whether it may leave the line that it begins on."""
        return "\n" in text or "\r" in text or self._column() >= self.size()[0]

    def _is_reached(self) -> bool:
        """Whether pytest's file is the terminal now, and not captured."""
        try:
            return self._fd >= 0 and _place(self._file.fileno()) == self._place
        except (OSError, ValueError):
            return False

    def _draw(self) -> None:
        self._is_drawn = self._write(drawing(self._lines))
        self._drawn_at = time.monotonic()

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
