"""A graph whose reports are kept, and footprints of an imaginary matrix, for tests that need no memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product

from pytest_aorta.runtime.graph import Footprint, Graph, Node, Tag

#: Rows and columns of the matrix, and bytes of an item.
ROWS, COLUMNS, ITEM = 8, 8, 4


class GraphBench:
    """A graph, and what it has reported: names of nodes by kind of report, and all of it in order."""

    def __init__(self) -> None:
        self.graph = Graph(self._ready, self._settled, self._consumed)
        self.ready: list[str] = []
        self.settled: list[str] = []
        self.consumed: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.nodes: list[Node] = []

    def add(self, name: str, *accesses: tuple[Footprint, Tag], after: Sequence[Node] = (), run: Hashable = 1) -> Node:
        node = self.graph.add(f"payload of {name}", run, accesses, after, name)
        self.nodes.append(node)
        return node

    def running(self, name: str, *accesses: tuple[Footprint, Tag], after: Sequence[Node] = ()) -> Node:
        """Add a node that can run at once, and claim it."""
        node = self.add(name, *accesses, after=after)
        assert self.graph.claim(node)
        return node

    def finish(self, *nodes: Node) -> None:
        """Claim and complete each of them."""
        for node in nodes:
            assert self.graph.claim(node), node
            self.graph.complete(node)

    def break_down(self, node: Node, error: BaseException) -> None:
        """Claim a node and fail it."""
        assert self.graph.claim(node)
        self.graph.fail(node, error)

    def leave_scope(self) -> None:
        """Let go of every node that was added."""
        for node in self.nodes:
            self.graph.release_scope(node)

    def is_empty(self) -> bool:
        """Once the runs of its nodes have ended."""
        for node in self.nodes:
            self.graph.end_run(node.run)
        return self.graph.live == 0 and len(self.graph.writers) == 0

    def _ready(self, node: Node) -> None:
        self.ready.append(node.label)
        self.told.append(("ready", node.label))

    def _settled(self, node: Node) -> None:
        self.settled.append(node.label)
        self.told.append(("settled", node.label))

    def _consumed(self, node: Node) -> None:
        self.consumed.append(node.label)
        self.told.append(("consumed", node.label))


def tile(rows: tuple[int, int] = (0, ROWS), columns: tuple[int, int] = (0, COLUMNS), of: Hashable = "x") -> Footprint:
    """Rows and columns, from and up to, of the matrix ``of``."""
    (top, bottom), (left, right) = rows, columns
    return Footprint(of, (top * COLUMNS + left) * ITEM, (bottom - top, right - left), (COLUMNS * ITEM, ITEM), ITEM)


def bytes_of(footprint: Footprint) -> set[int]:
    """Every byte, by counting."""
    return {
        footprint.offset + sum(i * stride for i, stride in zip(index, footprint.layout.strides, strict=True)) + byte
        for index in product(*map(range, footprint.layout.shape))
        for byte in range(footprint.layout.itemsize)
    }


def reads(footprint: Footprint) -> tuple[Footprint, Tag]:
    return footprint, Tag.INPUT


def writes(footprint: Footprint) -> tuple[Footprint, Tag]:
    return footprint, Tag.OUTPUT


def changes(footprint: Footprint) -> tuple[Footprint, Tag]:
    return footprint, Tag.INOUT


X, Y = tile(of="x"), tile(of="y")
