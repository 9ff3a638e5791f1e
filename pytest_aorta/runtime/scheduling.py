"""What waits, and where it can run: tasks, runs, queues of ready tasks, idle endpoints. No threads, no processes.

The dispatcher calls all of this under its lock.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aorta.runtime.graph import Node, State
from pytest_aorta.runtime.records import Completion, Outcome, TaskFailure, TaskRecord

if TYPE_CHECKING:
    from pytest_aorta.runtime.arguments import TaskArgs
    from pytest_aorta.runtime.callables import Definition
    from pytest_aorta.runtime.hazards import Hazards


class TaskKind(enum.Enum):
    """Which pool of endpoints a task goes to; the value names its endpoints in messages."""

    SUB = "SUB workers"
    NEXT_LEVEL = "workers of the next level"


@dataclass(eq=False, slots=True)
class Member:
    """A callable to run at one endpoint: the only member of a task, or one of a group.

    ``worker`` is the id of the endpoint that must run it, ``eligible`` the ids of those that may; ``None`` stands for
    any. ``config`` is pickled, once submitted. With ``first_item``, it is a list of items, of which the first has this
    number, and each is a call.
    """

    definition: Definition | None = None
    args: TaskArgs | None = None
    config: Any = None
    #: The scalars, pickled, where one is neither a number nor a text.
    scalars: bytes | None = None
    #: Tasks (``TaskRef``) whose results stand in the config and the scalars.
    references: tuple[Any, ...] = ()
    worker: int | None = None
    eligible: frozenset[int] | None = None
    first_item: int | None = None
    completion: Completion | None = None
    ran_on: str | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(eq=False, slots=True)
class GraphTask(Member):
    """The payload of a node: a group, or a task of one member, which it is itself.

    There may be very many, and the garbage collector walks all of their containers time and again: what is empty is
    none, and a record is made when it is asked for.
    """

    kind: TaskKind = TaskKind.SUB
    group: tuple[Member, ...] = ()
    timeout: float | None = None
    submitted: float = field(default_factory=time.time)
    outcome: Outcome | None = None
    failure: TaskFailure | None = None
    running: tuple[Dispatch, ...] = ()
    #: Its place in the queue of those that are ready.
    order: int = 0
    #: Whether its outcome is final; until then, a taken lock for the threads that wait for it.
    has_settled: bool = False
    settled: threading.Lock | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        return self.group or (self,)


@dataclass(eq=False, slots=True)
class Dispatch:
    id: int
    node: Node
    member: Member
    endpoint: Endpoint
    #: Cancels its deadline.
    deadline: Callable[[], object] | None = None
    #: Its completion, if it is being ended early.
    stopping: Completion | None = None
    over: bool = False


class Endpoint(Protocol):
    """A process or a host that tasks are sent to. Called within turns of the dispatcher; nothing may block."""

    id: int
    kind: TaskKind
    name: str
    busy: int
    #: Whether it has started, and has not died since.
    ready: bool
    #: Why it is out of service for good.
    gone: TaskFailure | None

    def start(self, dispatch: Dispatch) -> None: ...

    def stop(self, dispatch: Dispatch, why: str) -> None: ...


def record_of(node: Node) -> TaskRecord:
    task: GraphTask = node.payload
    assert task.outcome is not None
    if len(task.group) < 2:
        return _member_record(node, task.group[0] if task.group else task, task.outcome, task.failure)
    members = []
    for member in task.group:
        completion = member.completion or Completion(Outcome.SKIPPED)
        members.append(_member_record(node, member, completion.outcome, completion.failure))
    return TaskRecord(
        id=node.id,
        label=node.label,
        outcome=task.outcome,
        failure=task.failure,
        submitted=task.submitted,
        started=min((member.started for member in members if member.started is not None), default=None),
        ended=max((member.ended for member in members if member.ended is not None), default=None),
        members=tuple(members),
    )


def _member_record(node: Node, member: Member, outcome: Outcome, failure: TaskFailure | None) -> TaskRecord:
    payload = None if member.completion is None else member.completion.payload
    submitted = node.payload.submitted
    # By position, which is faster: there is one for every task.
    return TaskRecord(
        node.id, node.label, outcome, payload, failure, member.ran_on, submitted, member.started, member.ended
    )


# Queues

#: Tasks of one key can run at the same places: ``("sub", members)``, ``("worker", id)``, ``("any", eligible)`` and
#: ``("group", None)``.
Key = tuple[str, Any]


def _key(task: GraphTask) -> Key:
    if task.kind is TaskKind.SUB:
        return "sub", len(task.group) or 1
    if len(task.group) > 1:
        return "group", None
    first = task.members[0]
    return ("any", first.eligible) if first.worker is None else ("worker", first.worker)


class ReadyQueues:
    """The ready tasks of one run, in the order in which they became ready, with a queue for every key.

    Only the heads are looked at: whether one can start, or none ever will, is asked once for each key, of which there
    are few. A busy worker delays only the tasks for itself.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, deque[Node]] = {}
        self._order = itertools.count()

    def push(self, node: Node) -> None:
        node.payload.order = next(self._order)
        self._queues.setdefault(_key(node.payload), deque()).append(node)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def heads(self) -> list[tuple[Key, Node]]:
        found = []
        for key, queue in list(self._queues.items()):
            while queue and queue[0].state is not State.READY:  # cancelled meanwhile
                queue.popleft()
            if queue:
                found.append((key, queue[0]))
            else:
                del self._queues[key]
        if len(found) > 1:
            found.sort(key=lambda head: head[1].payload.order)
        return found

    def take(self, key: Key) -> None:
        queue = self._queues[key]
        queue.popleft()
        if not queue:
            del self._queues[key]


class Placement:
    """The endpoints of a worker by kind and id."""

    def __init__(self) -> None:
        self.pools: dict[TaskKind, dict[int, Endpoint]] = {kind: {} for kind in TaskKind}
        self._sub = self.pools[TaskKind.SUB]
        self._next = self.pools[TaskKind.NEXT_LEVEL]

    def add(self, endpoint: Endpoint) -> None:
        self.pools[endpoint.kind][endpoint.id] = endpoint

    def check_id(self, worker: object) -> int:
        """An id of a worker of the next level; raises ``TypeError`` or ``ValueError`` for any other object."""
        if isinstance(worker, bool) or not isinstance(worker, int):
            raise TypeError(f"the id of a worker is an int, not {worker!r} ({type(worker).__name__})")
        if worker not in self._next:
            valid = ", ".join(map(str, self._next)) or "none: there are no workers of the next level"
            raise ValueError(f"{worker!r} is not the id of a worker of the next level; valid: {valid}")
        return worker

    def check_size(self, kind: TaskKind, needed: int) -> None:
        """Raise ``ValueError`` for a group that is empty, or larger than the number of endpoints."""
        known = len(self.pools[kind])
        if not needed:
            raise ValueError("a group has at least one member")
        if needed > known:
            raise ValueError(f"{needed} {kind.value} needed at a time, but there are {known}")

    def match(self, queues: ReadyQueues) -> tuple[Node, list[Endpoint]] | None:
        """The next task that can start now, and where; it is removed from its queue.

        Of the groups, the first one reserves its workers; a group of SUB workers lets no later SUB task pass.
        """
        subs = [it for it in self._sub.values() if not it.busy and it.ready and it.gone is None]
        idle = {id: it for id, it in self._next.items() if not it.busy and it.ready and it.gone is None}
        if not subs and not idle:
            return None
        heads = queues.heads()
        group = next((node for (kind, _), node in heads if kind == "group"), None)
        if group is not None:
            workers = [member.worker for member in group.payload.members]
            if all(worker in idle for worker in workers):
                queues.take(("group", None))
                return group, [idle[worker] for worker in workers]
            idle = {id: endpoint for id, endpoint in idle.items() if id not in workers}
        for key, node in heads:
            kind, what = key
            found: list[Endpoint] = []
            if kind == "sub":
                found, subs = (subs[:what], subs) if what <= len(subs) else ([], [])
            elif kind == "worker":
                found = [idle[what]] if what in idle else []
            elif kind == "any":
                found = [endpoint for endpoint in idle.values() if what is None or endpoint.id in what][:1]
            if found:
                queues.take(key)
                return node, found
        return None

    def take_hopeless(self, queues: ReadyQueues) -> tuple[Node, Endpoint] | None:
        """Remove the first of the next tasks that no endpoint can ever run; with one that is out of service."""
        if not [it for it in (*self._sub.values(), *self._next.values()) if it.gone]:
            return None
        for key, node in queues.heads():
            lacking = self._lacking(key, node)
            if lacking is not None:
                queues.take(key)
                return node, lacking
        return None

    def _lacking(self, key: Key, node: Node) -> Endpoint | None:
        kind, what = key
        if kind == "sub":
            gone = [it for it in self._sub.values() if it.gone]
            return gone[0] if what > len(self._sub) - len(gone) else None
        if kind == "any":
            fit = [it for id, it in self._next.items() if what is None or id in what]
            return fit[0] if all(it.gone for it in fit) else None
        needed = [self._next[member.worker] for member in node.payload.members]
        return next((it for it in needed if it.gone), None)


# Runs


class RingFull(RuntimeError): ...


class GraphRun:
    """A graph of tasks that is built, closed, and waited for as a whole; guarded by the dispatcher's lock.

    Every run has a ring of its own: if two shared one, the later one could fill it with tasks that cannot start before
    the earlier one has ended.
    """

    def __init__(
        self, *, ring_size: int, fail_fast: bool = False, keeps: Any = None, hazards: Hazards | None = None
    ) -> None:
        self.ring_size = ring_size
        self.hazards = hazards
        #: Tasks that have not ended, and whether a submission waits for one of them.
        self.unsettled = 0
        self.waited_for = False
        self.fail_fast = fail_fast
        #: References that its tasks may need until all have ended.
        self.keeps = keeps
        self.queues = ReadyQueues()
        #: Its tasks that are not consumed, in the order of their submission, and the records of those that are, by id.
        self.nodes: dict[Node, None] = {}
        self.records: dict[int, TaskRecord] = {}
        self.first_failure: TaskRecord | None = None
        #: Tasks in a row, of one callable, whose process has died while it ran them; by the callable's digest.
        self.killed: dict[str, set[int]] = {}
        #: Why it accepts no further task, if it was cancelled.
        self.cancelled: str | None = None
        #: Whether its graph is complete, and whether all tasks have ended, too.
        self.closed = False
        self.ended = threading.Event()

    def take_slot(self) -> None:
        """A slot of the ring for a new task; raises ``RingFull``."""
        if self.unsettled >= self.ring_size:
            raise RingFull(
                f"the ring is full: {self.unsettled} tasks of this run have not ended; submit fewer at a time, or raise"
                " ring_size or ring_timeout of the worker"
            )
        self.unsettled += 1
