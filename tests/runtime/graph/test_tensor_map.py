"""Who has written what a reader reads, against sets of bytes; and at a cost that does not grow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from graph_bench import GraphBench, bytes_of, changes, reads, writes
from hypothesis import given
from hypothesis import strategies as st

from pytest_aorta.runtime.graph.boxes import box_of
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import Node
from pytest_aorta.runtime.graph.tensor_map import MAX_COMPLETED, TensorMap


@dataclass
class ByteMap:
    """The same as a ``TensorMap``, in a few lines that look at every byte of everything."""

    writes: list[tuple[Node, frozenset[int]]] = field(default_factory=list)

    def writers(self, footprint: Footprint) -> set[Node]:
        return {node for node, there in self.writes if there & bytes_of(footprint)}

    def insert(self, footprint: Footprint, node: Node) -> set[Node]:
        mine = frozenset(bytes_of(footprint))
        replaced = {other for other, there in self.writes if there <= mine} if mine else set()
        if mine:
            self.writes = [(other, there) for other, there in self.writes if not there <= mine]
            self.writes.append((node, mine))
        return replaced


@st.composite
def slices(draw: st.DrawFn, most: int = 1) -> Footprint:
    """A part of an array of three axes, transposed or not, in steps, that does not begin where its memory does."""
    shape, strides, itemsize = [3, 4, 5], [40, 10, 2], 2
    offset = 26
    for axis, size in enumerate(shape):
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start, size))
        step = draw(st.integers(1, most))
        offset += start * strides[axis]
        shape[axis], strides[axis] = -(-(stop - start) // step), strides[axis] * step
    order = draw(st.permutations(range(3)))
    return Footprint("x", offset, tuple(shape[i] for i in order), tuple(strides[i] for i in order), itemsize)


@st.composite
def layouts(draw: st.DrawFn) -> Footprint:
    """Any view: other types, strides of no order, windows that overlap themselves."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, 12)) * itemsize for _ in shape]
    return Footprint("x", draw(st.integers(0, 30)) * itemsize, tuple(shape), tuple(strides), itemsize)


@given(st.lists(slices(), max_size=25), st.data())
def test_the_writers_of_parts_of_an_array_are_those_that_sets_of_bytes_give(
    accesses: list[Footprint], data: st.DataObject
) -> None:
    found, expected = TensorMap(), ByteMap()
    nodes: list[Node] = []
    for number, footprint in enumerate(accesses):
        node = Node(number, 1)
        nodes.append(node)
        assert set(found.writers(1, footprint)) == expected.writers(footprint)
        replaced = {entry.node for entry in found.insert(1, footprint, node)}
        assert replaced == expected.insert(footprint, node)
        if data.draw(st.integers(0, 4)) == 0:
            gone = data.draw(st.sampled_from(nodes))
            found.forget(gone)
            expected.writes = [(other, there) for other, there in expected.writes if other is not gone]
        assert len(found) == len(expected.writes)


@given(st.lists(layouts() | slices(most=3), max_size=25))
def test_no_writer_of_any_view_is_overlooked_and_none_is_dropped_for_less_than_all_it_wrote(
    accesses: list[Footprint],
) -> None:
    found = TensorMap()
    there: list[tuple[Node, set[int]]] = []
    for number, footprint in enumerate(accesses):
        node, mine = Node(number, 1), bytes_of(footprint)
        assert set(found.writers(1, footprint)) >= {other for other, bytes_ in there if bytes_ & mine}
        replaced = {entry.node for entry in found.insert(1, footprint, node)}
        assert all(bytes_ <= mine for other, bytes_ in there if other in replaced)
        there = [(other, bytes_) for other, bytes_ in there if other not in replaced]
        if mine:
            there.append((node, mine))


@given(layouts() | slices(most=3), st.lists(st.integers(2, 60), max_size=3, unique=True))
def test_a_box_holds_its_view_and_an_exact_one_nothing_else(footprint: Footprint, numbers: list[int]) -> None:
    if footprint.empty:
        return
    pitches = tuple(sorted(numbers, reverse=True))
    for grid in (pitches, footprint.pitches):
        box = box_of(footprint.offset, footprint.layout.pattern, grid)
        held = {byte for byte in range(footprint.stop + 200) if is_in(byte, grid, box.ranges)}
        assert bytes_of(footprint) <= held
        assert not box.exact or bytes_of(footprint) == held


def is_in(byte: int, pitches: tuple[int, ...], ranges: Any) -> bool:
    place = []
    for pitch in pitches:
        row, byte = divmod(byte, pitch)
        place.append(row)
    return all(low <= at < high for at, (low, high) in zip([*place, byte], ranges, strict=True))


def test_completed_writes_of_a_memory_are_few_and_those_that_are_not_are_all_there() -> None:
    bench = GraphBench()
    rows = [Footprint("x", 4 * row, (1,), (4,), 4) for row in range(4 * MAX_COMPLETED)]
    nodes = [bench.add(str(number), writes(row)) for number, row in enumerate(rows)]
    bench.finish(*nodes[:-2])

    reader = bench.add("reader", reads(Footprint("x", 0, (4 * MAX_COMPLETED,), (4,), 4)))

    assert set(nodes[-2:]) < set(reader.producers)
    assert reader.fan_in == 2
    assert len(reader.producers) == MAX_COMPLETED + 2
    bench.finish(*nodes[-2:], reader)
    bench.leave_scope()
    assert bench.is_empty()


def rows(count: int) -> Iterator[Footprint]:
    return (Footprint("x", 4 * count * row, (1, count), (4 * count, 4), 4) for row in range(count))


def columns(count: int) -> Iterator[Footprint]:
    return (Footprint("x", 4 * column, (count, 1), (4 * count, 4), 4) for column in range(count))


def tiles(count: int) -> Iterator[Footprint]:
    side = int(count**0.5)
    for number in range(count):
        row, column = number // side % side, number % side
        yield Footprint("x", 4 * (row * 8 * side * 8 + column * 8), (8, 8), (4 * side * 8, 4), 4)


def planes(count: int) -> Iterator[Footprint]:
    """``x[:, number]`` of an array of three axes."""
    return (Footprint("x", 4 * 3 * number, (5, 3), (4 * 3 * count, 4), 4) for number in range(count))


def blocks(count: int) -> Iterator[Footprint]:
    """Cubes of 2 x 2 x 2 of an array of three axes."""
    side = round(count ** (1 / 3))
    strides = (4 * (2 * side) ** 2, 4 * 2 * side, 4)
    for number in range(side**3):
        at = (number // side**2, number // side % side, number % side)
        yield Footprint("x", sum(2 * i * stride for i, stride in zip(at, strides, strict=True)), (2, 2, 2), strides, 4)


def windows(count: int) -> Iterator[Footprint]:
    """Each meets the ones before and after it."""
    return (Footprint("x", 4 * number, (3,), (4,), 4) for number in range(count))


def mixed_shapes(count: int) -> Iterator[Footprint]:
    """Matrices of different shapes in one memory, as those from ``alloc`` are, by columns."""
    for number in range(count // 8):
        width = 8 + number % 5
        yield from (Footprint("x", 4096 * number + 4 * column, (8, 1), (4 * width, 4), 4) for column in range(8))


def calls_per_item(make: Callable[[int], Iterator[Footprint]], count: int) -> float:
    """Calls of functions that adding a task takes, on average: whole, each part, whole, each part once more, whole."""
    parts = list(make(count))
    whole = Footprint("x", 0, (max(part.stop for part in parts) // 4,), (4,), 4)
    calls = 0

    def count_call(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    bench = GraphBench()
    sys.setprofile(count_call)
    try:
        for access in (writes(whole), *map(changes, parts), reads(whole), *map(changes, parts), changes(whole)):
            bench.add("", access)
    finally:
        sys.setprofile(None)
    return calls / (2 * len(parts))


@pytest.mark.parametrize("make", [rows, columns, tiles, planes, blocks, windows, mixed_shapes])
def test_a_part_of_a_memory_costs_the_same_however_many_there_are(make: Callable[[int], Iterator[Footprint]]) -> None:
    assert calls_per_item(make, 900) < 1.15 * calls_per_item(make, 144)
