"""Bytes that views touch, against sets of bytes."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.runtime.graph import Footprint
from pytest_aorta.runtime.tensors import footprint_of


def bytes_of(footprint: Footprint) -> set[int]:
    """Every byte, by counting."""
    return {
        footprint.offset + sum(i * stride for i, stride in zip(index, footprint.layout.strides, strict=True)) + byte
        for index in product(*map(range, footprint.layout.shape))
        for byte in range(footprint.layout.itemsize)
    }


@st.composite
def views(draw: st.DrawFn, base: torch.Tensor, steps: int = 1) -> torch.Tensor:
    """A slice of every axis, or one index of it."""
    index: list[int | slice] = []
    for size in base.shape:
        start = draw(st.integers(0, size - 1))
        if draw(st.integers(0, 5)) == 0:
            index.append(start)
        else:
            index.append(slice(start, draw(st.integers(start, size)), draw(st.integers(1, steps))))
    return base[tuple(index)]


MATRIX = torch.zeros(6, 7, dtype=torch.int16)
CUBE = torch.zeros(3, 4, 5, dtype=torch.float32)
#: A matrix that begins in the middle of a row of its memory.
SHIFTED = torch.zeros(64, dtype=torch.int16)[5:47].view(6, 7)
MEMORY = torch.zeros(128, dtype=torch.int32)


@given(st.data(), st.sampled_from([MATRIX, CUBE, SHIFTED]))
def test_slices_overlap_if_and_only_if_they_share_a_byte(data: st.DataObject, base: torch.Tensor) -> None:
    one, other = (footprint_of(data.draw(views(base, steps=3))) for _ in range(2))
    shared = bytes_of(one) & bytes_of(other)

    assert one.overlaps(other) == other.overlaps(one) == bool(shared)


@given(st.data(), st.sampled_from([MATRIX, CUBE, SHIFTED]))
def test_a_slice_covers_only_what_it_holds_and_tiles_of_a_matrix_exactly(
    data: st.DataObject, base: torch.Tensor
) -> None:
    one, other = (data.draw(views(base)) for _ in range(2))
    first, second = footprint_of(one), footprint_of(other)
    held = bytes_of(second) <= bytes_of(first)

    assert held or not first.covers(second)
    if base.dim() == 2:
        assert first.covers(second) == held


@st.composite
def layouts(draw: st.DrawFn) -> torch.Tensor:
    """Any view of a piece of memory: strides of no order, windows that overlap themselves, other types."""
    base = MEMORY.view(draw(st.sampled_from([torch.int32, torch.int16, torch.uint8])))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, 12)) for _ in shape]
    last = len(base) - 1 - sum(stride * max(0, size - 1) for size, stride in zip(shape, strides, strict=True))
    return base.as_strided(shape, strides, draw(st.integers(0, last)))


@given(layouts(), layouts())
def test_no_layout_hides_a_byte(one: torch.Tensor, other: torch.Tensor) -> None:
    first, second = footprint_of(one), footprint_of(other)
    mine, theirs = bytes_of(first), bytes_of(second)

    assert first.overlaps(second) == bool(mine & theirs)
    if first.covers(second):
        assert theirs <= mine
    assert first.empty == (not mine)
    assert first.empty or first.stop == max(mine) + 1


def test_many_unlike_strides_are_answered_at_once() -> None:
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
    one = Footprint("x", 0, (50,) * 10, tuple(1_000_003 * p for p in primes), 1)
    other = Footprint("x", 1, (50,) * 10, tuple(1_000_033 * p for p in primes), 1)

    assert one.overlaps(other)


def test_memory_keeps_its_identity_when_it_becomes_shared() -> None:
    base = torch.zeros(4)
    before = footprint_of(base).backing

    base.untyped_storage().share_memory_()

    assert footprint_of(base).backing == before
