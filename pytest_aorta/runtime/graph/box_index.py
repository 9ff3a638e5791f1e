"""Boxes of one memory, found by what they meet, without looking at the others.

Boxes of one grid and about one size are together, in cells of that size. One that meets a given box is in a cell that
box meets or in one just before it, in a few cells therefore, unless the given box is much larger; and then there are
about as many boxes to be found as cells to be looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from pytest_aorta.runtime.graph.boxes import Box, Pitches, Ranges


class Boxed(Protocol):
    """An item: it has a box, and is compared by identity or ``==``."""

    @property
    def pitches(self) -> Pitches:
        """The grid of its box."""

    @property
    def box(self) -> Box:
        """Where it is."""


Item = TypeVar("Item", bound=Boxed)

#: Grid, and per axis the binary logarithm of the size of a cell.
_Level = tuple[Pitches, tuple[int, ...]]


class BoxIndex(Generic[Item]):
    """Items by their boxes, which do not change."""

    def __init__(self) -> None:
        #: What is in each cell: one item, as in most of them, or an ordered set of items.
        self._levels: dict[_Level, dict[tuple[int, ...], Item | dict[Item, None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def grids(self) -> set[Pitches]:
        """The grids of all items."""
        return {pitches for pitches, _ in self._levels}

    def add(self, item: Item) -> None:
        """Add an item that is not here."""
        sizes, cell = _place(item.box.ranges)
        cells = self._levels.setdefault((item.pitches, sizes), {})
        there = cells.get(cell)
        if there is None:
            cells[cell] = item
        elif isinstance(there, dict):
            there[item] = None
        else:
            cells[cell] = {there: None, item: None}
        self._count += 1

    def remove(self, item: Item) -> None:
        """Remove an item that is here."""
        sizes, cell = _place(item.box.ranges)
        cells = self._levels[item.pitches, sizes]
        there = cells[cell]
        if isinstance(there, dict):
            del there[item]
        self._count -= 1
        if not isinstance(there, dict) or not there:
            del cells[cell]
            if not cells:
                del self._levels[item.pitches, sizes]

    def meeting(self, boxes: dict[Pitches, Box]) -> Iterator[tuple[Item, Box]]:
        """Items that a view meets, as far as boxes say; with the box of the view in the same grid.

        Args:
            boxes: of the view, in every grid of ``grids``.
        """
        for (pitches, sizes), cells in self._levels.items():
            box = boxes[pitches]
            spans = [
                range((low - (1 << size) + 1) >> size, ((high - 1) >> size) + 1)
                for (low, high), size in zip(box.ranges, sizes, strict=True)
            ]
            if math.prod(map(len, spans)) > len(cells):
                found: Iterator[Item | dict[Item, None]] = iter(cells.values())
            else:
                found = (cells[cell] for cell in itertools.product(*spans) if cell in cells)
            for there in found:
                for item in there if isinstance(there, dict) else (there,):
                    if box.meets(item.box):
                        yield item, box


def _place(ranges: Ranges) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and place of the cell of a box: the least powers of two that it fits into, and where it begins."""
    sizes = tuple((high - low - 1).bit_length() for low, high in ranges)
    return sizes, tuple(low >> size for (low, _), size in zip(ranges, sizes, strict=True))
