"""Boxes of one memory, found by what they meet, without looking at the others.

Boxes of one grid and about one size are together, in cells of that size. One that meets a given box is in a cell that
box meets or in one just before it, in a few cells therefore, unless the given box is much larger; and then there are
about as many boxes to be found as cells to be looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Generic, TypeVar

from pytest_aorta.runtime.graph.boxes import Box, Pitches, Ranges

Item = TypeVar("Item")

#: Grid, and per axis the binary logarithm of the size of a cell.
_Level = tuple[Pitches, tuple[int, ...]]


class BoxIndex(Generic[Item]):
    """Items with a box each; items are compared by identity or ``==``."""

    def __init__(self) -> None:
        self._levels: dict[_Level, dict[tuple[int, ...], dict[Item, Box]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def grids(self) -> set[Pitches]:
        """The grids of all items."""
        return {pitches for pitches, _ in self._levels}

    def add(self, item: Item, pitches: Pitches, box: Box) -> None:
        """Add an item that is not here."""
        sizes, cell = _place(box.ranges)
        self._levels.setdefault((pitches, sizes), {}).setdefault(cell, {})[item] = box
        self._count += 1

    def remove(self, item: Item, pitches: Pitches, box: Box) -> None:
        """Remove an item that was added with this box."""
        sizes, cell = _place(box.ranges)
        cells = self._levels[pitches, sizes]
        items = cells[cell]
        del items[item]
        self._count -= 1
        if not items:
            del cells[cell]
            if not cells:
                del self._levels[pitches, sizes]

    def meeting(self, boxes: dict[Pitches, Box]) -> Iterator[tuple[Item, Box, Box]]:
        """Items that a view meets, as far as boxes say; with the item's box, and the view's in the same grid.

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
                found: Iterator[dict[Item, Box]] = iter(cells.values())
            else:
                found = (cells[cell] for cell in itertools.product(*spans) if cell in cells)
            for items in found:
                for item, other in items.items():
                    if box.meets(other):
                        yield item, other, box


def _place(ranges: Ranges) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and place of the cell of a box: the least powers of two that it fits into, and where it begins."""
    sizes = tuple((high - low - 1).bit_length() for low, high in ranges)
    return sizes, tuple(low >> size for (low, _), size in zip(ranges, sizes, strict=True))
