"""A range of plausible values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float

    def within(self, low: float, high: float) -> bool:
        """Whether all of it lies between two values."""
        return low <= self.low and self.high <= high
