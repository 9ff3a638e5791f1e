"""Step times of a workload that returns none: the time between its reports of steps."""

from __future__ import annotations

from array import array
from typing import Any

#: Steps whose times are kept; of more steps every second, fourth, ... one is, from the whole run.
KEPT = 10_000


class StepClock:
    """Takes down when steps are reported, from ``start()`` on.

    Each report says how many steps are done. The time since the report before it is shared equally by the steps in
    between. The first report has none before it, and a number that is not higher begins a new count.
    """

    def __init__(self) -> None:
        self._milliseconds = array("d")
        self._stride = 1
        self._seen = 0
        self._step: int | None = None
        self._at = 0.0
        self._is_running = False

    def start(self) -> None:
        """What was reported before, in ``setup()``, does not count."""
        self._is_running = True
        self._step = None

    def report(self, step: Any, now: float) -> None:
        """``step`` steps are done, at ``now`` seconds of a clock. What is no ``int`` ends the count."""
        if not self._is_running:
            return
        if type(step) is not int:
            self._is_running = False
            self._milliseconds = array("d")
            return
        if self._step is not None and step > self._step:
            done = step - self._step
            each = (now - self._at) * 1000 / done
            for _ in range(min(done, KEPT)) if done > 1 else (0,):
                self._keep(each)
        self._step, self._at = step, now

    def times_ms(self) -> list[float]:
        """Durations of the steps in milliseconds, in their order."""
        return [round(time, 6) for time in self._milliseconds]

    def _keep(self, milliseconds: float) -> None:
        if self._seen % self._stride == 0:
            self._milliseconds.append(milliseconds)
            if len(self._milliseconds) == KEPT:
                self._milliseconds = self._milliseconds[::2]
                self._stride *= 2
        self._seen += 1
