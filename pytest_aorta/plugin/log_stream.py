"""With ``-s``: what a trial prints, on the terminal while it runs."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
from pathlib import Path

from pytest_aorta.common.texts import printable

#: Seconds between two looks at the logs.
_INTERVAL = 0.1


class LogStream:
    """Copies a trial's logs to standard output as they grow, until it is closed.

    Args:
        folder: the trial's artifacts.
        begun: whether the logs that are there now are the trial's; else they are of an earlier run, and not shown.
    """

    def __init__(self, folder: Path, *, begun: bool) -> None:
        self._logs = [_Log(folder / name, begun=begun) for name in ("stdout.log", "stderr.log")]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="aorta-log-stream", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is left."""
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        for log in self._logs:
            text = log.read()
            if text:
                sys.stdout.write(printable(text))
                sys.stdout.flush()


class _Log:
    """One log, and how far it has been read."""

    def __init__(self, path: Path, *, begun: bool) -> None:
        self._path = path
        self._earlier = None if begun else _number(path)
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """What has been appended since the last call; nothing of the middle of a log that was cut to its limit."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._earlier:
                file.seek(min(self._offset, status.st_size))
                content = file.read()
                self._offset = file.tell()
                return self._decoder.decode(content)
        return ""


def _number(path: Path) -> int | None:
    """The inode of a file, ``None`` where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
