"""The steps that a trial reports: how long each took, and which one was the last."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_aorta.trials.records import Event

#: Steps whose times are kept; of more steps every second, fourth, ... one is, from the whole run.
KEPT = 10_000


class StepClock:
    """Notes when steps are reported while it runs, which it does not in ``setup()``.

    Each report says how many steps are done. The steps reported at one moment share the time since the moment before
    it: a pipe may bring many lines at once. The first report has none before it, and a lower number begins a new count.
    """

    def __init__(self) -> None:
        self._milliseconds = array("d")
        self._stride = 1
        self._seen = 0
        self._step: int | None = None
        #: Times of the last report and the one before, and steps done in between.
        self._at = self._before = 0.0
        self._done = 0
        self.is_running = False
        #: Also receives each reported step.
        self.also_tell: Callable[[int], object] | None = None

    def report(self, step: Any, now: float) -> None:
        """``step`` steps are done, at ``now`` seconds of a clock. What is no ``int`` ends the count."""
        if not self.is_running:
            return
        if self.also_tell is not None and type(step) is int:
            self.also_tell(step)
        if type(step) is not int:
            self.is_running = False
            self._milliseconds, self._done = array("d"), 0
            return
        if self._step is None or step < self._step:
            self._share()
            self._before = self._at = now
        elif step > self._step:
            if now > self._at:
                self._share()
                self._before, self._at = self._at, now
            self._done += step - self._step
        self._step = step

    def times_ms(self) -> list[float]:
        self._share()
        return self._milliseconds.tolist()

    def _share(self) -> None:
        if self._at > self._before:
            each = (self._at - self._before) * 1000 / max(1, self._done)
            for _ in range(min(self._done, KEPT)):
                self._keep(each)
        self._done = 0

    def _keep(self, milliseconds: float) -> None:
        if self._seen % self._stride == 0:
            self._milliseconds.append(round(milliseconds, 6))
            if len(self._milliseconds) == KEPT:
                self._milliseconds = self._milliseconds[::2]
                self._stride *= 2
        self._seen += 1


#: Step and total; -1 stands for no total.
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
        """Note that ``step`` of ``total`` steps are done. Ignores values that are not integers of 64 bits."""
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


def read_steps(path: Path) -> Event | None:
    """The last step in a file of ``StepCounter``, as an event; ``None`` when no step was reported."""
    try:
        step, total = _FORMAT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return {"type": "progress", "step": step, "total": None if total == -1 else total}


class SaidSteps:
    """Steps in the output of one process, or of several processes that cannot be told apart.

    A number that goes back to the first one begins a new count, such as an epoch. A number that goes back to any other
    one comes from another process; then the time of a step counts from when any process first said it.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.said_ms: list[float] = []
        self.are_mixed = False
        self._first = self._most = self._number = 0
        #: Of all that is said, and of when each step is first said.
        self._clock, self._of_first = StepClock(), StepClock()
        self._clock.is_running = self._of_first.is_running = True

    def report(self, step: int, at: float) -> None:
        if self.step is None:
            self._first, self._most = step, step - 1
        elif self._first < step < self.step:
            self.are_mixed = True
        if step > self._most:
            self._most = step
            self._number += 1
            self._of_first.report(step, at)
        self._clock.report(step, at)
        self.step = step

    @property
    def numbers(self) -> tuple[int, int] | None:
        """The first step, and how many were said, one by one; ``None`` where some were left out."""
        return (self._first, self._number) if self._number == self._most - self._first + 1 > 0 else None

    @property
    def times_ms(self) -> list[float]:
        return self.said_ms or (self._of_first if self.are_mixed else self._clock).times_ms()
