"""Views as boxes: the bytes of a view, as rows and columns of a grid, or as more axes of it.

The pitches of a grid are numbers of bytes, from the greatest on. With pitches ``(p, q)``, byte ``x`` of the memory is
at ``(x // p, x % p // q, x % p % q)``: the mixed radix of which a row-major array of three axes makes its addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

Pitches = tuple[int, ...]

#: First and one past the last coordinate, for every axis.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Holds every byte of a view; ``exact``: and no other one."""

    ranges: Ranges
    exact: bool

    def meets(self, other: Box) -> bool:
        """Whether the boxes, of one grid, have a byte in common."""
        for (low, high), (other_low, other_high) in zip(self.ranges, other.ranges, strict=True):
            if high <= other_low or other_high <= low:
                return False
        return True

    def holds(self, other: Box) -> bool:
        """Whether every byte of the other box, of the same grid, is in this one."""
        for (low, high), (other_low, other_high) in zip(self.ranges, other.ranges, strict=True):
            if other_low < low or high < other_high:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Pattern:
    """The bytes of a view from its first one on: runs of ``run`` bytes, repeated along ``steps``.

    ``steps`` are pairs of a stride in bytes, from the greatest on, and the number of steps along it.
    """

    run: int
    steps: tuple[tuple[int, int], ...]
    #: The grid in which the view is a box most likely: its own strides.
    pitches: Pitches = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pitches", tuple(stride for stride, _ in self.steps))


def pattern(itemsize: int, steps: Iterable[tuple[int, int]]) -> Pattern:
    """Items of so many bytes, repeated along steps of any order; axes that go on where another one ends are one."""
    run = itemsize
    gaps: list[tuple[int, int]] = []
    for stride, count in sorted(steps):
        if gaps and stride == gaps[-1][0] * (gaps[-1][1] + 1):
            gaps[-1] = gaps[-1][0], (gaps[-1][1] + 1) * (count + 1) - 1
        elif not gaps and stride <= run:
            run += stride * count
        else:
            gaps.append((stride, count))
    gaps.reverse()
    return Pattern(run, tuple(gaps))


def box_of(offset: int, pattern: Pattern, pitches: Pitches) -> Box:
    """The box of a view that begins at a byte; around more than its bytes where it is none in this grid."""
    ranges: list[tuple[int, int]] = []
    steps, low, exact = pattern.steps, offset, True
    for axis, pitch in enumerate(pitches):
        rows, reach, inner = 0, pattern.run - 1, []
        for stride, count in steps:
            if stride % pitch:
                reach += stride * count
                inner.append((stride, count))
            else:
                exact = exact and stride == pitch and not rows
                rows += stride // pitch * count
        row, column = divmod(low, pitch)
        if column + reach >= pitch:  # on into the next row
            last = low + rows * pitch + reach
            ranges.append((row, last // pitch + 1))
            whole = not steps and not column and not (last + 1) % pitch
            edges = (*pitches[axis:], 1)
            ranges += [(0, -(-outer // edge)) for outer, edge in itertools.pairwise(edges)]
            return Box(tuple(ranges), exact and whole)
        ranges.append((row, row + rows + 1))
        low, steps = column, tuple(inner)
    reach = pattern.run + sum(stride * count for stride, count in steps)
    return Box((*ranges, (low, low + reach)), exact and not steps)
