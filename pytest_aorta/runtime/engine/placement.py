"""Which ready task goes to which idle endpoint. No locks, no threads: the dispatcher calls it under its own lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_aorta.runtime.engine.tasks import Endpoint, TaskKind
from pytest_aorta.runtime.graph.nodes import State

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.runs import ReadyQueues
    from pytest_aorta.runtime.graph.nodes import Node

Match = tuple["Node", list[Endpoint]]

_READY = State.READY


class Placement:
    """The endpoints of a worker by kind and id."""

    def __init__(self) -> None:
        self.pools: dict[TaskKind, dict[int, Endpoint]] = {kind: {} for kind in TaskKind}
        self._sub = self.pools[TaskKind.SUB]
        self._next = self.pools[TaskKind.NEXT_LEVEL]
        self._job = self.pools[TaskKind.JOB]

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint."""
        self.pools[endpoint.kind][endpoint.id] = endpoint

    def check_id(self, kind: TaskKind, worker: object) -> int:
        """An id of an endpoint of that kind; raises ``TypeError`` or ``ValueError`` for any other object."""
        known = self.pools[kind]
        if isinstance(worker, bool) or not isinstance(worker, int):
            kind_of = type(worker).__name__
            raise TypeError(f"the id of a worker is an int, not {worker!r} ({kind_of})")
        if worker not in known:
            valid = ", ".join(map(str, known)) or "none: there are no workers of the next level"
            raise ValueError(f"{worker!r} is not the id of a worker of the next level; valid: {valid}")
        return worker

    def check_size(self, kind: TaskKind, needed: int) -> None:
        """Raise ``ValueError`` for a group that is empty, or larger than the number of endpoints."""
        known = len(self.pools[kind])
        if not needed:
            raise ValueError("a group has at least one member")
        if needed > known:
            raise ValueError(f"{needed} {kind.value} needed at a time, but there are {known}")

    def match(self, queues: ReadyQueues) -> Match | None:
        """The next task that can start now, and where; it is removed from its queue."""
        for queue in queues.all():
            while queue and queue[0].state is not _READY:  # cancelled meanwhile
                queue.popleft()
        return (
            (self._match_next_level(queues) if queues.directed or queues.groups or queues.anywhere else None)
            or (self._match_sub(queues.sub) if queues.sub else None)
            or (self._match_job(queues.job) if queues.job else None)
        )

    def _match_next_level(self, queues: ReadyQueues) -> Match | None:
        pool, reserved = self._next, set()
        if queues.groups:
            targets = [pool[member.worker] for member in queues.groups[0].payload.members]
            if all(map(_is_idle, targets)):
                return queues.groups.popleft(), targets
            reserved = {endpoint.id for endpoint in targets}
        for worker, queue in queues.directed.items():
            if queue and worker not in reserved and _is_idle(pool[worker]):
                return queue.popleft(), [pool[worker]]
        idle = [endpoint for endpoint in pool.values() if _is_idle(endpoint) and endpoint.id not in reserved]
        return _take_first(queues.anywhere, idle)

    def _match_sub(self, queue: deque[Node]) -> Match | None:
        needed, idle = len(queue[0].payload.members), []
        for endpoint in self._sub.values():
            if _is_idle(endpoint):
                idle.append(endpoint)
                if len(idle) == needed:
                    return queue.popleft(), idle
        return None

    def _match_job(self, queue: deque[Node]) -> Match | None:
        # The host with the fewest jobs first.
        return _take_first(queue, sorted(filter(_is_idle, self._job.values()), key=lambda endpoint: endpoint.busy))

    def take_hopeless(self, queues: ReadyQueues) -> Iterator[tuple[Node, Endpoint]]:
        """Remove ready tasks that no endpoint can ever run, each with an endpoint that is out of service."""
        if not any(endpoint.gone for pool in self.pools.values() for endpoint in pool.values()):
            return
        pool = self._next
        for worker, queue in queues.directed.items():
            while queue and pool[worker].gone:
                yield queue.popleft(), pool[worker]
        for node in list(queues.groups):
            gone = [pool[member.worker] for member in node.payload.members if pool[member.worker].gone]
            if gone:
                queues.groups.remove(node)
                yield node, gone[0]
        for queue, pool in ((queues.anywhere, self._next), (queues.sub, self._sub), (queues.job, self._job)):
            for node in list(queue):
                eligible = node.payload.members[0].eligible
                fit = [endpoint for endpoint in pool.values() if eligible is None or endpoint.id in eligible]
                if sum(not endpoint.gone for endpoint in fit) < len(node.payload.members):
                    queue.remove(node)
                    yield node, next(endpoint for endpoint in fit if endpoint.gone)


def _take_first(queue: deque[Node], idle: list[Endpoint]) -> Match | None:
    """The first task that one of the idle endpoints may run; a task for other endpoints lets later ones pass."""
    if not queue or not idle:
        return None
    for position, node in enumerate(queue):
        member = node.payload.members[0]
        fit = [endpoint for endpoint in idle if member.eligible is None or endpoint.id in member.eligible]
        if fit:
            del queue[position]
            return node, [next((endpoint for endpoint in fit if endpoint.id == member.affinity), fit[0])]
    return None


def _is_idle(endpoint: Endpoint) -> bool:
    return endpoint.gone is None and endpoint.ready and endpoint.busy < endpoint.capacity
