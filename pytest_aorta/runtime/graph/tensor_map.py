"""Which node writes which bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass

from pytest_aorta.runtime.graph.footprint import Footprint
from pytest_aorta.runtime.graph.nodes import Node

Key = tuple[Hashable, Hashable]


@dataclass(eq=False, frozen=True, slots=True)
class Entry:
    """A node writes these bytes."""

    key: Key
    footprint: Footprint
    node: Node


class TensorMap:
    """For every run and backing, the writes that a later reader has to wait for. Runs do not see each other's."""

    def __init__(self) -> None:
        self._writes: dict[Key, _Writes] = {}
        self._of_node: dict[Node, dict[Entry, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_node.values()))

    def writers(self, run: Hashable, footprint: Footprint) -> list[Node]:
        """The nodes whose writes meet ``footprint``, each once."""
        writes = self._writes.get((run, footprint.backing))
        if writes is None:
            return []
        return list(dict.fromkeys(e.node for e in writes.near(footprint) if e.footprint.overlaps(footprint)))

    def insert(self, run: Hashable, footprint: Footprint, node: Node) -> list[Entry]:
        """Add a write. Those that it covers wholly are replaced and returned; those that it covers in part stay."""
        if footprint.empty:
            return []
        key = (run, footprint.backing)
        writes = self._writes.get(key)
        replaced = [e for e in writes.near(footprint) if footprint.covers(e.footprint)] if writes else []
        for entry in replaced:
            self._remove(entry)
        self.restore(Entry(key, footprint, node))
        return replaced

    def restore(self, entry: Entry) -> None:
        """Add an entry that was replaced once more, and replace nothing."""
        self._writes.setdefault(entry.key, _Writes()).add(entry)
        self._of_node.setdefault(entry.node, {})[entry] = None

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
    """The entries of one backing by their first byte, so that a thousand small ones need not all be looked at."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[Entry] = []
        self._longest = 0  # bytes from first to last, of all that have ever been here

    def __len__(self) -> int:
        return len(self._entries)

    def near(self, footprint: Footprint) -> list[Entry]:
        """All entries that may meet ``footprint``, and some that do not."""
        first = bisect_left(self._starts, footprint.offset - self._longest)
        return self._entries[first : bisect_left(self._starts, footprint.stop, first)]

    def add(self, entry: Entry) -> None:
        start = entry.footprint.offset
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._entries.insert(at, entry)
        self._longest = max(self._longest, entry.footprint.stop - start)

    def remove(self, entry: Entry) -> None:
        at = self._entries.index(entry, bisect_left(self._starts, entry.footprint.offset))
        del self._starts[at], self._entries[at]
