"""Which bytes of which memory a tensor touches, and whether two views overlap."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_aorta.runtime.graph.boxes import Box, Pattern, Pitches, box_of, pattern
from pytest_aorta.runtime.memory.torch_storage import storage_id

if TYPE_CHECKING:
    import torch

#: Positions looked at before a question about two views is given up; views of one layout need a handful.
_EFFORT = 512


@dataclass(frozen=True)
class Footprint:
    """The bytes of ``backing`` that a view touches; ``offset``, ``strides`` and ``itemsize`` in bytes."""

    backing: Hashable
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(f"{len(self.shape)} dimensions but {len(self.strides)} strides")
        if self.offset < 0 or self.itemsize < 1 or min((*self.shape, *self.strides), default=0) < 0:
            raise ValueError(f"no view has negative numbers or empty items: {self}")

    @cached_property
    def empty(self) -> bool:
        """Whether no byte is touched at all."""
        return 0 in self.shape

    @cached_property
    def stop(self) -> int:
        """One past the last byte; the first is at ``offset``."""
        return self.offset if self.empty else self.offset + self.itemsize + sum(s * n for s, n in self._steps.items())

    @cached_property
    def _steps(self) -> dict[int, int]:
        """Stride to the most steps along it. Axes of one stride are one, and an axis of size 1 is none."""
        steps: dict[int, int] = {}
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size > 1 and stride:
                steps[stride] = steps.get(stride, 0) + size - 1
        return steps

    @cached_property
    def pattern(self) -> Pattern:
        """Its bytes, as runs that are repeated."""
        return pattern(self.itemsize, self._steps.items())

    @cached_property
    def own_box(self) -> Box:
        """The box that it is in the grid of its own strides."""
        return self.box(self.pattern.pitches)

    def box(self, pitches: Pitches) -> Box:
        """Its box in a grid."""
        return box_of(self.offset, self.pattern, pitches)

    @cached_property
    def _solid(self) -> bool:
        """Whether every byte from ``offset`` to ``stop`` is touched."""
        return _Sums([(s, 0, n) for s, n in self._steps.items()] + [(1, 0, self.itemsize - 1)]).solid

    def overlaps(self, other: Footprint) -> bool:
        """Whether a byte is touched by both.

        Exact for views of one layout (rows, columns, tiles, steps of a matrix, transposed or not). A pair of layouts
        too unlike to decide in a few steps counts as overlapping when the ranges of their bytes meet.
        """
        if self.backing != other.backing or self.empty or other.empty:
            return False
        if self.stop <= other.offset or other.stop <= self.offset:
            return False
        if self._solid and (other._solid or self.offset <= other.offset):
            return True
        if other._solid and other.offset <= self.offset:
            return True
        # Byte offset + i*s + j*t + e is touched for all i, j, e within the shape. Both touch a byte if and only if
        # the differences of their indices, each within bounds of its own, make up the difference of the offsets.
        terms = [
            (stride, -other._steps.get(stride, 0), self._steps.get(stride, 0))
            for stride in {**self._steps, **other._steps}
        ]
        sums = _Sums([*terms, (1, 1 - other.itemsize, self.itemsize - 1)])
        return sums.hit(other.offset - self.offset) is not False

    def covers(self, other: Footprint) -> bool:
        """Whether every byte of ``other`` is touched by this one; False where that is hard to find out."""
        if self.backing != other.backing:
            return False
        if other.empty:
            return True
        if other.offset < self.offset or self.stop < other.stop:
            return False
        if self._solid:
            return True
        # The other one, as a box of indices, fits into this one at some position.
        if self.itemsize < other.itemsize or any(self._steps.get(s, 0) < n for s, n in other._steps.items()):
            return False
        terms = [(stride, 0, steps - other._steps.get(stride, 0)) for stride, steps in self._steps.items()]
        sums = _Sums([*terms, (1, 0, self.itemsize - other.itemsize)])
        return sums.hit(other.offset - self.offset) is True


class _Sums:
    """The sums of one multiple each of some strides. A term is ``(stride, least factor <= 0, greatest factor >= 0)``.

    One of the terms must have stride 1.
    """

    def __init__(self, terms: Iterable[tuple[int, int, int]]) -> None:
        self._terms = sorted(terms, reverse=True)
        # Of the terms from each one on: the least and greatest sum, and whether all numbers between are sums, too.
        self._least, self._greatest, self._dense = [0], [0], [True]
        for stride, low, high in reversed(self._terms):
            dense = self._dense[-1] and (low == high or stride <= self._greatest[-1] - self._least[-1] + 1)
            self._dense.append(dense)
            self._least.append(self._least[-1] + stride * low)
            self._greatest.append(self._greatest[-1] + stride * high)
        for suffixes in (self._least, self._greatest, self._dense):
            suffixes.reverse()

    @property
    def solid(self) -> bool:
        """Whether every number from the least to the greatest sum is one."""
        return self._dense[0]

    def hit(self, target: int) -> bool | None:
        """Whether ``target`` is a sum; None when that takes too long to find out."""
        if not self._least[0] <= target <= self._greatest[0]:
            return False
        effort = _EFFORT
        open_ends = [(0, target)]
        while open_ends:
            at, rest = open_ends.pop()
            if self._dense[at]:
                return True  # only sums within reach are opened
            stride, low, high = self._terms[at]
            low = max(low, -((self._greatest[at + 1] - rest) // stride))
            high = min(high, (rest - self._least[at + 1]) // stride)
            effort -= max(1, high - low + 1)
            if effort < 0:
                return None
            open_ends += [(at + 1, rest - k * stride) for k in range(low, high + 1)]
        return False


def footprint_of(tensor: torch.Tensor) -> Footprint:
    """The bytes that a dense tensor touches. Views share a backing when they share a storage. Thread-safe."""
    itemsize = tensor.element_size()
    strides: Sequence[int] = tensor.stride()
    return Footprint(
        backing=("storage", storage_id(tensor)),
        offset=int(tensor.storage_offset()) * itemsize,
        shape=tuple(tensor.shape),
        strides=tuple(stride * itemsize for stride in strides),
        itemsize=itemsize,
    )
