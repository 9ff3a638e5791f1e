"""Whole rounds until a time is over: trial i of every cell, then trial i + 1."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from pytest_aorta.workspace.atomic import locked

_CLOCK = "clock"


class Rounds:
    """Which rounds may be run. One that has begun is completed; none begins when the time is over.

    Args:
        seconds: from the first trial that is really run.
        folder: that the xdist workers share; ``None`` where one process does it all.
    """

    def __init__(self, seconds: float, folder: Path | None = None) -> None:
        self.seconds = seconds
        self._folder = folder
        self._begun: set[str] = set()
        self._ends_at: float | None = None

    def begin(self, name: str) -> bool:
        """Whether a trial of this round may be run; the first one of a round begins it."""
        if name in self._begun:
            return True
        if self._folder is not None:
            # What another worker has begun in time must not be missed, nor may one begin after another has given up.
            with locked(self._folder):
                may_begin = self._agree(name)
        else:
            may_begin = self._is_in_time()
        if may_begin:
            self._begun.add(name)
        return may_begin

    def _is_in_time(self) -> bool:
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self.seconds
        return now < self._ends_at

    def _agree(self, name: str) -> bool:
        """The same with the other workers; the monotonic clock is one for all processes of a host."""
        assert self._folder is not None
        clock = self._folder / _CLOCK
        mark = self._folder / f"round-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        if self._ends_at is None:
            if not clock.exists():
                clock.write_text(repr(time.monotonic() + self.seconds))
            self._ends_at = float(clock.read_text())
        if mark.exists():
            return True
        if not self._is_in_time():
            return False
        mark.touch()
        return True
