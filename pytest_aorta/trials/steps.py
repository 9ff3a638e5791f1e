"""The last step that a process has reported, in a file that others can read when the process has died."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_aorta.trials.events import ProgressEvent

#: Step and total; a total of -1 is none.
_FORMAT = struct.Struct("=qq")


def step_file(folder: Path, rank: int = 0) -> Path:
    """The file of a rank, or of a trial without ranks, in the ``folder`` that it writes to."""
    return folder / f"rank_{rank}.steps"


class StepCounter:
    """Writes steps through shared memory: no system call per step, and what is written survives SIGKILL.

    The file appears with the first step. Without it (the folder is gone, the disk is full, a file system that cannot
    map files), steps go nowhere.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: mmap.mmap | bytearray | None = None

    def set(self, step: Any, total: Any) -> None:
        """``step`` of ``total`` steps are done. Ignores what is no whole number of 64 bits."""
        try:
            # Not ``pack_into``, which sets the memory to 0 before it looks at the values.
            content = _FORMAT.pack(step, -1 if total is None else total)
        except struct.error:
            return
        if self._memory is None:
            self._memory = self._open(content)
        self._memory[:] = content

    def _open(self, content: bytes) -> mmap.mmap | bytearray:
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                # Written, not extended: a page that the disk has no room for would end the process with SIGBUS.
                os.write(fd, content)
                return mmap.mmap(fd, _FORMAT.size)
            finally:
                os.close(fd)
        return bytearray(_FORMAT.size)


def read_steps(path: Path) -> ProgressEvent | None:
    """The last step in a file of ``StepCounter``, as an event; ``None`` when no step was reported."""
    try:
        step, total = _FORMAT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return {"type": "progress", "step": step, "total": None if total == -1 else total}
