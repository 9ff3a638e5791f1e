"""Wait for a quiet machine before a measurement, and repeat a disturbed one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.machine import BackgroundLoad

Measure = Callable[[], Sequence[float]]

#: Seconds that are looked at before a measurement, and for which a quiet moment is waited for.
_LOOK, _PATIENCE = 2.0, 1800.0

#: Measurements after which one is taken as it is.
_ATTEMPTS = 10


class Quiet:
    """``limit`` is the part of all cores that others may use; without one, everything is taken as it is."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._patience = _PATIENCE

    def __call__(self, measure: Measure) -> Sequence[float]:
        """One measurement."""
        if self._limit is None:
            return measure()
        for _ in range(_ATTEMPTS):
            self._wait(self._limit)
            load = BackgroundLoad()
            values = measure()
            if load.share() <= self._limit:
                return values
        print(f"(not one of {_ATTEMPTS} measurements was undisturbed: the last one counts)")
        return values

    def _wait(self, limit: float) -> None:
        while self._patience > 0:
            load = BackgroundLoad()
            time.sleep(_LOOK)
            if load.share() <= limit:
                return
            self._patience -= _LOOK
