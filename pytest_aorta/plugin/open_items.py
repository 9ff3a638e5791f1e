"""Items that have begun, and whose last report has not come, in the process that owns the reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class OpenItems:
    """Counts beginnings and ends of items.

    Attributes:
        workers: how many processes run every item: more than one under ``--dist each``, where pytest does not say which
            of them begins an item. Each runs them in their order, so it is at the first that it has not ended.
    """

    def __init__(self) -> None:
        self.workers = 1
        self._begun: Counter[str] = Counter()
        self._ended: dict[str, set[int]] = {}

    def begin(self, nodeid: str) -> None:
        """An item has begun."""
        self._begun[nodeid] += 1

    def end(self, nodeid: str, worker: int = 0) -> None:
        """It is over, in this one of the processes that run it."""
        if self.workers == 1:
            self._begun.pop(nodeid, None)
        else:
            self._ended.setdefault(nodeid, set()).add(worker)

    def unfinished(self, order: Sequence[str]) -> list[tuple[str, int]]:
        """The node id of each open item, with the worker that runs it; ``order``: of all node ids."""
        if self.workers == 1:
            return [(nodeid, 0) for nodeid in self._begun]
        found: list[tuple[str, int]] = []
        left = Counter({nodeid: begun - len(self._ended.get(nodeid, ())) for nodeid, begun in self._begun.items()})
        for worker in range(self.workers):
            nodeid = next((each for each in order if worker not in self._ended.get(each, ())), "")
            if left[nodeid] > 0:
                left[nodeid] -= 1
                found.append((nodeid, worker))
        return found
