"""The ready tasks of a run, in queues of which only the heads are looked at."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_aorta.runtime.engine.tasks import GraphTask, TaskKind
from pytest_aorta.runtime.graph.nodes import State

if TYPE_CHECKING:
    from pytest_aorta.runtime.graph.nodes import Node

Key = TypeVar("Key", bound=Hashable)

#: The ids of the workers that may run a task; all, if ``None``.
Eligible = frozenset[int] | None

_READY = State.READY


class Sorted(dict[Key, "deque[Node]"]):
    """Tasks in an order, with a queue for every key: those of one key can run at the same places.

    Whether one can start, or none ever will, is asked once for each key, of which there are few. The keys are those of
    the tasks that are here, and perhaps of some that have been cancelled. Nearly all tasks come in order, and are last
    in their queue.
    """

    def push(self, key: Key, order: Any, node: Node) -> None:
        """Add a task; no two have the same order."""
        node.payload.order = order
        queue = self.get(key)
        if queue is None:
            queue = self[key] = deque()
        if not queue or _order_of(queue[-1]) < order:
            queue.append(node)
        else:
            bisect.insort(queue, node, key=_order_of)

    def first(self, fits: Callable[[Key], bool] | None = None) -> tuple[Key, Node] | None:
        """The first of the tasks whose keys fit; it stays."""
        best: tuple[Key, Node] | None = None
        for key in list(self):
            queue = self[key]
            while queue and queue[0].state is not _READY:  # cancelled meanwhile
                queue.popleft()
            if not queue:
                del self[key]
            elif (best is None or _order_of(queue[0]) < _order_of(best[1])) and (fits is None or fits(key)):
                best = key, queue[0]
        return best

    def take(self, key: Key) -> Node:
        """Take the first task of a key."""
        queue = self[key]
        node = queue.popleft()
        if not queue:
            del self[key]
        return node

    def drain(self, key: Key) -> Iterator[Node]:
        """Take all tasks of a key, in order."""
        return (node for node in self.pop(key) if node.state is _READY)


def _order_of(node: Node) -> Any:
    return node.payload.order


class ReadyQueues:
    """The ready tasks of one run, in the order in which they became ready.

    Tasks for one worker have a queue per worker, so that a busy worker delays only its own. Of the groups, only the
    first one reserves its workers. Jobs are in the order of their submission: those whose preparation ends first must
    not all come before the others.
    """

    def __init__(self) -> None:
        self.directed: defaultdict[int, deque[Node]] = defaultdict(deque)
        self.groups: deque[Node] = deque()
        #: The groups that need a worker.
        self._groups_of: defaultdict[int, dict[Node, None]] = defaultdict(dict)
        self.anywhere: Sorted[Eligible] = Sorted()
        #: By the number of members.
        self.sub: Sorted[int] = Sorted()
        self.job: Sorted[Eligible] = Sorted()
        self._order = itertools.count()

    def push(self, node: Node) -> None:
        """Add a task that has become ready."""
        task: GraphTask = node.payload
        if task.kind is TaskKind.SUB:
            self.sub.push(len(task.group) or 1, next(self._order), node)
            return
        first = task.members[0]
        if task.kind is TaskKind.JOB:
            self.job.push(first.eligible, (not task.urgent, node.id), node)  # urgent ones come first
        elif len(task.members) > 1:
            self.groups.append(node)
            for member in task.members:
                assert member.worker is not None
                self._groups_of[member.worker][node] = None
        elif first.worker is not None:
            self.directed[first.worker].append(node)
        else:
            self.anywhere.push(first.eligible, next(self._order), node)

    def __bool__(self) -> bool:
        """Whether a task is in one of them; perhaps one that has been cancelled."""
        return bool(self.sub or self.job or self.anywhere or self.groups or any(self.directed.values()))

    def first_group(self) -> Node | None:
        """The first group; it stays."""
        while self.groups:
            if self.groups[0].state is _READY:
                return self.groups[0]
            self.pop_group()
        return None

    def pop_group(self) -> Node:
        """Take the first group."""
        node = self.groups.popleft()
        for member in node.payload.members:
            if member.worker in self._groups_of:
                self._groups_of[member.worker].pop(node, None)
        return node

    def first_for(self, worker: int) -> Node | None:
        """The first task for one worker; it stays."""
        queue = self.directed[worker]
        while queue and queue[0].state is not _READY:
            queue.popleft()
        return queue[0] if queue else None

    def drain(self, worker: int) -> list[Node]:
        """Take all tasks and groups that cannot run without this worker."""
        found = [*self.directed.pop(worker, ()), *self._groups_of.pop(worker, ())]
        return [node for node in found if node.state is _READY]
