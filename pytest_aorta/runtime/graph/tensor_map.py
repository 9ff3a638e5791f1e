"""Which node writes which bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from pytest_aorta.runtime.graph.box_index import BoxIndex
from pytest_aorta.runtime.graph.boxes import Box, Pitches
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import Node

Key = tuple[Hashable, Hashable]

#: Writes of nodes that have completed, of one run and one backing, that are still found.
MAX_COMPLETED = 64


@dataclass(eq=False, frozen=True, slots=True)
class Entry:
    """A node writes these bytes; ``writes`` is where the entry is, or was."""

    writes: _Writes
    footprint: Footprint
    node: Node

    @property
    def pitches(self) -> Pitches:
        """The grid of its box."""
        return self.footprint.pitches

    @property
    def box(self) -> Box:
        """Around all of its bytes."""
        return self.footprint.own_box


class TensorMap:
    """For every run and backing, the writes that a later reader has to wait for. Runs do not see each other's.

    An access costs what it finds: writes beside it are not looked at, whether it is to rows, columns or tiles.
    """

    def __init__(self) -> None:
        self._writes: dict[Key, _Writes] = {}
        self._of_node: dict[Node, tuple[Entry, ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_node.values()))

    def writers(self, run: Hashable, footprint: Footprint) -> list[Node]:
        """The nodes whose writes meet ``footprint``, each once."""
        writes = self._writes.get((run, footprint.backing))
        if writes is None or footprint.empty:
            return []
        return list(dict.fromkeys(entry.node for entry in writes.meeting(footprint)))

    def insert(self, run: Hashable, footprint: Footprint, node: Node) -> list[Entry]:
        """Add a write. Those that it covers wholly are replaced and returned; those that it covers in part stay."""
        if footprint.empty:
            return []
        key = (run, footprint.backing)
        writes = self._writes.get(key)
        if writes is None:
            writes = self._writes[key] = _Writes(key)
        replaced = list(writes.covered_by(footprint))
        for entry in replaced:
            self._remove(entry)
        self.restore(Entry(writes, footprint, node))
        return replaced

    def restore(self, entry: Entry) -> None:
        """Add an entry that was replaced once more, and replace nothing."""
        writes = self._writes.setdefault(entry.writes.key, entry.writes)
        if writes is not entry.writes:  # all that was in those has been removed meanwhile
            entry = Entry(writes, entry.footprint, entry.node)
        writes.add(entry)
        self._of_node[entry.node] = (*self._of_node.get(entry.node, ()), entry)

    def completed(self, node: Node) -> None:
        """A node is done: nothing waits for its writes any more. A reader that comes soon still finds, and holds, it.

        Of completed writes, the newest ones stay. However many tasks a run has had, a reader of all of a memory then
        meets those that are not done, and a bounded number of others.
        """
        for entry in self._of_node.get(node, ()):
            done = entry.writes.done
            done.append(entry)
            while len(done) > MAX_COMPLETED:
                oldest = done.popleft()
                if oldest in self._of_node.get(oldest.node, ()):
                    self._remove(oldest)

    def forget(self, node: Node) -> None:
        """Remove what is left of a node's writes; entries that have replaced some of them stay."""
        for entry in self._of_node.get(node, ()):
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        entry.writes.remove(entry)
        if not entry.writes:
            del self._writes[entry.writes.key]
            entry.writes.done.clear()  # no cycle is left for the garbage collector
        own = tuple([other for other in self._of_node[entry.node] if other is not entry])
        if own:
            self._of_node[entry.node] = own
        else:
            del self._of_node[entry.node]


class _Writes:
    """The entries of one run and one backing."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._index: BoxIndex[Entry] = BoxIndex()
        #: Those whose nodes have completed, and some that are not here any more, the oldest one first.
        self.done: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._index)

    def add(self, entry: Entry) -> None:
        self._index.add(entry)

    def remove(self, entry: Entry) -> None:
        self._index.remove(entry)

    def meeting(self, footprint: Footprint) -> Iterator[Entry]:
        """Entries that have a byte in common with a footprint."""
        boxes = {pitches: footprint.box(pitches) for pitches in self._index.grids}
        for entry, box in self._index.meeting(boxes):
            if (entry.box.exact and box.exact) or entry.footprint.overlaps(footprint):
                yield entry

    def covered_by(self, footprint: Footprint) -> Iterator[Entry]:
        """Entries that a footprint covers wholly."""
        boxes = {pitches: footprint.box(pitches) for pitches in self._index.grids}
        for entry, box in self._index.meeting(boxes):
            if box.exact and entry.box.exact:
                covered = box.holds(entry.box)
            else:
                own = footprint.own_box
                covered = own.exact and own.holds(entry.footprint.box(footprint.pitches))
                covered = covered or footprint.covers(entry.footprint)
            if covered:
                yield entry
