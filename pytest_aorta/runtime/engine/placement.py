"""Which ready task goes to which idle endpoint. No locks, no threads: the engine calls it under its own."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_aorta.runtime.graph.nodes import State

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.tasks import Endpoint, Kind, Work
    from pytest_aorta.runtime.graph.nodes import Node

Match = tuple["Node", list["Endpoint"]]

_READY = State.READY


class Queues:
    """The ready tasks of one run, in the order in which they became ready.

    A queue per directed worker, so that a busy one holds nobody else up; one for groups, whose head alone reserves
    its workers; one for tasks that any worker can take; one for SUB tasks and groups of them. Jobs are in the order in
    which they were submitted: the first preparation that is over must not put all its jobs before those of the others.
    """

    def __init__(self) -> None:
        self.directed: defaultdict[int, deque[Node]] = defaultdict(deque)
        self.groups: deque[Node] = deque()
        self.anywhere: deque[Node] = deque()
        self.sub: deque[Node] = deque()
        self.job: deque[Node] = deque()

    def push(self, node: Node) -> None:
        """A task has become ready."""
        work: Work = node.payload
        if work.kind == "sub":
            self.sub.append(node)
        elif work.kind == "job":
            insort(self.job, node, key=_turn)
        elif work.is_group:
            self.groups.append(node)
        elif work.members[0].worker is not None:
            self.directed[work.members[0].worker].append(node)
        else:
            self.anywhere.append(node)

    def __bool__(self) -> bool:
        """Whether there is anything in one of them."""
        return bool(self.sub or self.job or self.anywhere or self.groups or any(self.directed.values()))

    def all(self) -> list[deque[Node]]:
        """Every queue."""
        return [*self.directed.values(), self.groups, self.anywhere, self.sub, self.job]


class Placement:
    """The endpoints of a worker by kind and id."""

    def __init__(self) -> None:
        self.pools: dict[Kind, dict[int, Endpoint]] = {"sub": {}, "next": {}, "job": {}}

    def add(self, endpoint: Endpoint) -> None:
        """One more."""
        self.pools[endpoint.kind][endpoint.id] = endpoint

    def match(self, queues: Queues) -> Match | None:
        """The next task that can start now, and where; it has left its queue."""
        for queue in queues.all():
            while queue and queue[0].state is not _READY:  # cancelled meanwhile
                queue.popleft()
        return (
            (self._next_level(queues) if queues.directed or queues.groups or queues.anywhere else None)
            or (self._sub(queues.sub) if queues.sub else None)
            or (self._job(queues.job) if queues.job else None)
        )

    def _next_level(self, queues: Queues) -> Match | None:
        pool, reserved = self.pools["next"], set()
        if queues.groups:
            targets = [pool[member.worker] for member in queues.groups[0].payload.members]
            if all(map(_idle, targets)):
                return queues.groups.popleft(), targets
            reserved = {endpoint.id for endpoint in targets}
        for identity, queue in queues.directed.items():
            if queue and identity not in reserved and _idle(pool[identity]):
                return queue.popleft(), [pool[identity]]
        free = [endpoint for endpoint in pool.values() if _idle(endpoint) and endpoint.id not in reserved]
        return self._take(queues.anywhere, free)

    def _sub(self, queue: deque[Node]) -> Match | None:
        needed, free = len(queue[0].payload.members), []
        for endpoint in self.pools["sub"].values():
            if _idle(endpoint):
                free.append(endpoint)
                if len(free) == needed:
                    return queue.popleft(), free
        return None

    def _job(self, queue: deque[Node]) -> Match | None:
        # The emptiest host first.
        free = sorted(filter(_idle, self.pools["job"].values()), key=lambda endpoint: endpoint.busy)
        return self._take(queue, free)

    @staticmethod
    def _take(queue: deque[Node], free: list[Endpoint]) -> Match | None:
        if not queue or not free:
            return None
        for position, node in enumerate(queue):
            member = node.payload.members[0]
            # Those whose callable is for some workers only let others pass while these are busy.
            fit = [endpoint for endpoint in free if member.eligible is None or endpoint.id in member.eligible]
            if fit:
                del queue[position]
                return node, [next((endpoint for endpoint in fit if endpoint.id == member.affinity), fit[0])]
        return None

    def hopeless(self, queues: Queues) -> Iterator[tuple[Node, Endpoint]]:
        """Ready tasks that no endpoint will ever take, each with one that should have; they leave their queues."""
        if not any(endpoint.gone for pool in self.pools.values() for endpoint in pool.values()):
            return
        pool = self.pools["next"]
        for identity, queue in queues.directed.items():
            while queue and pool[identity].gone:
                yield queue.popleft(), pool[identity]
        for node in list(queues.groups):
            gone = [pool[member.worker] for member in node.payload.members if pool[member.worker].gone]
            if gone:
                queues.groups.remove(node)
                yield node, gone[0]
        kinds: tuple[tuple[deque[Node], Kind], ...] = (
            (queues.anywhere, "next"),
            (queues.sub, "sub"),
            (queues.job, "job"),
        )
        for queue, kind in kinds:
            for node in list(queue):
                eligible = node.payload.members[0].eligible
                fit = [one for one in self.pools[kind].values() if eligible is None or one.id in eligible]
                if sum(not endpoint.gone for endpoint in fit) < len(node.payload.members):
                    queue.remove(node)
                    yield node, next(endpoint for endpoint in fit if endpoint.gone)


def _turn(node: Node) -> tuple[bool, int]:
    """Where a job belongs in the queue: urgent ones come first."""
    return not node.payload.urgent, node.id


def _idle(endpoint: Endpoint) -> bool:
    return endpoint.gone is None and endpoint.ready and endpoint.busy < endpoint.capacity
