"""Which ready task goes to which idle endpoint. No locks, no threads: the dispatcher calls it under its own lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pytest_aorta.runtime.engine.tasks import Endpoint, TaskKind

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.ready_queues import Eligible, ReadyQueues, Sorted
    from pytest_aorta.runtime.graph.nodes import Node

Match = tuple["Node", list[Endpoint]]


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

    def size(self, kind: TaskKind) -> int:
        """How many endpoints of that kind there are."""
        return len(self.pools[kind])

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
        return (
            (self._match_next_level(queues) if queues.directed or queues.groups or queues.anywhere else None)
            or (self._match_sub(queues.sub) if queues.sub else None)
            or (self._match_job(queues.job) if queues.job else None)
        )

    def _match_next_level(self, queues: ReadyQueues) -> Match | None:
        pool, reserved = self._next, set()
        group = queues.first_group()
        if group is not None:
            targets = [pool[member.worker] for member in group.payload.members]
            if all(map(_is_idle, targets)):
                return queues.pop_group(), targets
            reserved = {endpoint.id for endpoint in targets}
        for worker, queue in queues.directed.items():
            if worker not in reserved and _is_idle(pool[worker]) and queues.first_for(worker) is not None:
                return queue.popleft(), [pool[worker]]
        idle = [endpoint for endpoint in pool.values() if _is_idle(endpoint) and endpoint.id not in reserved]
        return _take_first(queues.anywhere, idle)

    def _match_sub(self, queue: Sorted[int]) -> Match | None:
        # A group that waits for more workers lets no later task pass.
        first = queue.first()
        if first is None:
            return None
        needed, idle = first[0], []
        for endpoint in self._sub.values():
            if _is_idle(endpoint):
                idle.append(endpoint)
                if len(idle) == needed:
                    return queue.take(needed), idle
        return None

    def _match_job(self, queue: Sorted[Eligible]) -> Match | None:
        # The host with the fewest jobs first.
        return _take_first(queue, sorted(filter(_is_idle, self._job.values()), key=lambda endpoint: endpoint.busy))

    def take_hopeless(self, queues: ReadyQueues) -> Iterator[tuple[Node, Endpoint]]:
        """Remove ready tasks that no endpoint can ever run, each with an endpoint that is out of service.

        Tasks that can still run somewhere are not looked at: whether they can depends on the queue that they are in.
        """
        if not any(endpoint.gone for pool in self.pools.values() for endpoint in pool.values()):
            return
        for endpoint in self._next.values():
            if endpoint.gone:
                for node in queues.drain(endpoint.id):
                    yield node, endpoint
        for queue, pool in ((queues.anywhere, self._next), (queues.job, self._job)):
            for eligible in list(queue):
                fit = _eligible(pool.values(), eligible)
                if all(endpoint.gone for endpoint in fit):
                    for node in queue.drain(eligible):
                        yield node, fit[0]
        gone = [endpoint for endpoint in self._sub.values() if endpoint.gone]
        for size in list(queues.sub) if gone else ():
            if size > len(self._sub) - len(gone):
                for node in queues.sub.drain(size):
                    yield node, gone[0]


def _take_first(queue: Sorted[Eligible], idle: list[Endpoint]) -> Match | None:
    """The first task that one of the idle endpoints may run; a task for other endpoints lets later ones pass."""
    if not queue or not idle:
        return None
    first = queue.first(lambda eligible: bool(_eligible(idle, eligible)))
    if first is None:
        return None
    eligible, node = first
    fit = _eligible(idle, eligible)
    affinity = node.payload.members[0].affinity
    return queue.take(eligible), [next((endpoint for endpoint in fit if endpoint.id == affinity), fit[0])]


def _eligible(endpoints: Iterable[Endpoint], eligible: Eligible) -> list[Endpoint]:
    return [endpoint for endpoint in endpoints if eligible is None or endpoint.id in eligible]


def _is_idle(endpoint: Endpoint) -> bool:
    return endpoint.busy < endpoint.capacity and endpoint.gone is None and endpoint.ready
