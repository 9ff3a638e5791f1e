"""Which node writes which bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from pytest_aorta.runtime.graph.box_index import BoxIndex
from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import Node

Key = tuple[Hashable, Hashable]

#: Writes of nodes that have completed, of one run and one backing, that are still found.
MAX_COMPLETED = 64


@dataclass(eq=False, frozen=True, slots=True)
class Entry:
    """A node writes these bytes."""

    key: Key
    footprint: Footprint
    node: Node


class TensorMap:
    """For every run and backing, the writes that a later reader has to wait for. Runs do not see each other's.

    An access costs what it finds: writes beside it are not looked at, whether it is to rows, columns or tiles.
    """

    def __init__(self) -> None:
        self._writes: dict[Key, _Writes] = {}
        self._of_node: dict[Node, dict[Entry, None]] = {}

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
        replaced = list(writes.covered_by(footprint)) if writes is not None else []
        for entry in replaced:
            self._remove(entry)
        self.restore(Entry(key, footprint, node))
        return replaced

    def restore(self, entry: Entry) -> None:
        """Add an entry that was replaced once more, and replace nothing."""
        self._writes.setdefault(entry.key, _Writes()).add(entry)
        self._of_node.setdefault(entry.node, {})[entry] = None

    def completed(self, node: Node) -> None:
        """A node is done: nothing waits for its writes any more. A reader that comes soon still finds, and holds, it.

        Of completed writes, the newest ones stay. However many tasks a run has had, a reader of all of a memory then
        meets those that are not done, and a bounded number of others.
        """
        for entry in self._of_node.get(node, ()):
            self._writes[entry.key].done.append(entry)
        for key in {entry.key for entry in self._of_node.get(node, ())}:
            done = self._writes[key].done
            while len(done) > MAX_COMPLETED:
                oldest = done.popleft()
                if oldest in self._of_node.get(oldest.node, ()):
                    self._remove(oldest)

    def forget(self, node: Node) -> None:
        """Remove what is left of a node's writes; entries that have replaced some of them stay."""
        if node in self._of_node:
            for entry in list(self._of_node[node]):
                self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        writes, own = self._writes[entry.key], self._of_node[entry.node]
        writes.remove(entry)
        if not writes:
            del self._writes[entry.key]
        del own[entry]
        if not own:
            del self._of_node[entry.node]


class _Writes:
    """The entries of one run and one backing."""

    def __init__(self) -> None:
        self._index: BoxIndex[Entry] = BoxIndex()
        #: Those whose nodes have completed, and some that are not here any more, the oldest one first.
        self.done: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._index)

    def add(self, entry: Entry) -> None:
        self._index.add(entry, entry.footprint.pattern.pitches, entry.footprint.own_box)

    def remove(self, entry: Entry) -> None:
        self._index.remove(entry, entry.footprint.pattern.pitches, entry.footprint.own_box)

    def meeting(self, footprint: Footprint) -> Iterator[Entry]:
        """Entries that have a byte in common with a footprint."""
        boxes = {pitches: footprint.box(pitches) for pitches in self._index.grids}
        for entry, its, box in self._index.meeting(boxes):
            if (its.exact and box.exact) or entry.footprint.overlaps(footprint):
                yield entry

    def covered_by(self, footprint: Footprint) -> Iterator[Entry]:
        """Entries that a footprint covers wholly."""
        boxes = {pitches: footprint.box(pitches) for pitches in self._index.grids}
        for entry, its, box in self._index.meeting(boxes):
            if box.exact and its.exact:
                covered = box.holds(its)
            else:
                own = footprint.own_box
                covered = own.exact and own.holds(entry.footprint.box(footprint.pattern.pitches))
                covered = covered or footprint.covers(entry.footprint)
            if covered:
                yield entry
