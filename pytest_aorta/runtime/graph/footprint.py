"""Which bytes of which memory a tensor touches, and whether two views overlap."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from pytest_aorta.runtime.graph.boxes import Box, Pattern, Pitches, box_of, pattern
from pytest_aorta.runtime.memory.torch_storage import storage_id

if TYPE_CHECKING:
    import torch

#: Positions looked at before a question about two views is given up; views of one layout need a handful.
_EFFORT = 512


@dataclass(frozen=True)
class Layout:
    """How the bytes of a view lie, from its first one on; ``strides`` and ``itemsize`` in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(f"{len(self.shape)} dimensions but {len(self.strides)} strides")
        if self.itemsize < 1 or min((*self.shape, *self.strides), default=0) < 0:
            raise ValueError(f"no view has negative numbers or empty items: {self}")

    @cached_property
    def empty(self) -> bool:
        """Whether no byte is touched at all."""
        return 0 in self.shape

    @cached_property
    def nbytes(self) -> int:
        """From the first byte to the last one."""
        return 0 if self.empty else self.itemsize + sum(s * n for s, n in self.steps.items())

    @cached_property
    def steps(self) -> dict[int, int]:
        """Stride to the most steps along it. Axes of one stride are one, and an axis of size 1 is none."""
        steps: dict[int, int] = {}
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size > 1 and stride:
                steps[stride] = steps.get(stride, 0) + size - 1
        return steps

    @cached_property
    def pattern(self) -> Pattern:
        """The bytes, as runs that are repeated."""
        return pattern(self.itemsize, self.steps.items())

    @cached_property
    def solid(self) -> bool:
        """Whether every byte from the first to the last one is touched."""
        return _Sums([(s, 0, n) for s, n in self.steps.items()] + [(1, 0, self.itemsize - 1)]).solid


#: Very many views, the rows of a matrix say, have one.
_layout_of = lru_cache(maxsize=1024)(Layout)


@dataclass(init=False, slots=True)
class Footprint:
    """The bytes of ``backing`` that a view touches; ``offset``, ``strides`` and ``itemsize`` in bytes. Immutable."""

    backing: Hashable
    offset: int
    layout: Layout
    _own_box: Box | None = field(compare=False, repr=False)

    def __init__(
        self, backing: Hashable, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        self.backing = backing
        self.offset = offset
        self.layout = _layout_of(shape, strides, itemsize)
        self._own_box = None
        if offset < 0:
            raise ValueError(f"no view has negative numbers or empty items: {self}")

    @property
    def empty(self) -> bool:
        """Whether no byte is touched at all."""
        return self.layout.empty

    @property
    def stop(self) -> int:
        """One past the last byte; the first is at ``offset``."""
        return self.offset + self.layout.nbytes

    @property
    def pitches(self) -> Pitches:
        """The grid in which it is a box most likely."""
        return self.layout.pattern.pitches

    @property
    def own_box(self) -> Box:
        """The box that it is in the grid of its own strides."""
        if self._own_box is None:
            self._own_box = self.box(self.pitches)
        return self._own_box

    def box(self, pitches: Pitches) -> Box:
        """Its box in a grid."""
        return box_of(self.offset, self.layout.pattern, pitches)

    def overlaps(self, other: Footprint) -> bool:
        """Whether a byte is touched by both.

        Exact for views of one layout (rows, columns, tiles, steps of a matrix, transposed or not). A pair of layouts
        too unlike to decide in a few steps counts as overlapping when the ranges of their bytes meet.
        """
        if self.backing != other.backing or self.empty or other.empty:
            return False
        if self.stop <= other.offset or other.stop <= self.offset:
            return False
        own, its = self.layout, other.layout
        if own.solid and (its.solid or self.offset <= other.offset):
            return True
        if its.solid and other.offset <= self.offset:
            return True
        # Byte offset + i*s + j*t + e is touched for all i, j, e within the shape. Both touch a byte if and only if
        # the differences of their indices, each within bounds of its own, make up the difference of the offsets.
        terms = [(stride, -its.steps.get(stride, 0), own.steps.get(stride, 0)) for stride in {**own.steps, **its.steps}]
        sums = _Sums([*terms, (1, 1 - its.itemsize, own.itemsize - 1)])
        return sums.hit(other.offset - self.offset) is not False

    def covers(self, other: Footprint) -> bool:
        """Whether every byte of ``other`` is touched by this one; False where that is hard to find out."""
        if self.backing != other.backing:
            return False
        if other.empty:
            return True
        if other.offset < self.offset or self.stop < other.stop:
            return False
        own, its = self.layout, other.layout
        if own.solid:
            return True
        # The other one, as a box of indices, fits into this one at some position.
        if own.itemsize < its.itemsize or any(own.steps.get(s, 0) < n for s, n in its.steps.items()):
            return False
        terms = [(stride, 0, steps - its.steps.get(stride, 0)) for stride, steps in own.steps.items()]
        sums = _Sums([*terms, (1, 0, own.itemsize - its.itemsize)])
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
