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

    def intersection(self, other: Interval) -> Interval:
        """What both cover; where they do not meet, the point of this one that is nearest to the other."""
        low = min(max(self.low, other.low), self.high)
        return Interval(low, max(low, min(self.high, other.high)))
