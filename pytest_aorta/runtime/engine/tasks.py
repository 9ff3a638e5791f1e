"""The payload of a node of the graph: one task, or the members of a group, and what became of each."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aorta.runtime.records import Completion, Outcome, TaskFailure, TaskRecord

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.poller import Timer
    from pytest_aorta.runtime.graph.args import TaskArgs
    from pytest_aorta.runtime.graph.nodes import Node
    from pytest_aorta.runtime.memory.callables import Definition


class TaskKind(enum.Enum):
    """Which pool of endpoints a task goes to; the value names its endpoints in messages."""

    SUB = "SUB workers"
    NEXT_LEVEL = "workers of the next level"
    JOB = "slots"


@dataclass(frozen=True)
class Job:
    """A task that runs on a thread of the host worker, and drives processes of its own.

    Attributes:
        target: ``module:function``, called as ``function(job, payload)`` with a ``JobContext``; returns JSON values.
        payload: any object; pickled when it goes to another process.
        preparation: must have succeeded once on a host before the first job with its key starts there.
        on_start: called on the submitting side, with the name of the endpoint, just before the job starts.
        on_event: called on the submitting side with each event that the job emits.
    """

    target: str
    payload: Any
    preparation: Preparation | None = None
    on_start: Callable[[str], None] | None = None
    on_event: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Preparation:
    """A job that others of the same ``key`` wait for. When it fails, they fail, and none of them starts."""

    key: str
    target: str
    payload: Any


@dataclass(eq=False, slots=True)
class Member:
    """A callable or a job to run at one endpoint: the only member of a task, or one of a group.

    ``worker`` is the id of the endpoint that must run it, ``affinity`` of a preferred one, ``eligible`` the ids of
    those that may; ``None`` stands for any. With ``first_item``, its configuration is a list of items, of which the
    first has this number, and each is a call.
    """

    definition: Definition | None = None
    args: TaskArgs | None = None
    config: Any = None
    job: Job | None = None
    worker: int | None = None
    affinity: int | None = None
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
    urgent: bool = False
    submitted: float = field(default_factory=time.time)
    outcome: Outcome | None = None
    failure: TaskFailure | None = None
    running: tuple[Dispatch, ...] = ()
    #: Its place in the queue of those that are ready.
    order: Any = None
    #: Whether its outcome is final. Until then, the event of the threads that wait for it, and its callbacks.
    has_settled: bool = False
    settled: threading.Event | None = None
    callbacks: list[Callable[[TaskRecord], None]] | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """At least one."""
        return self.group or (self,)

    @property
    def label(self) -> str:
        """A name for records and messages."""
        first = self.group[0] if self.group else self
        if first.definition is not None:
            return first.definition.name
        assert first.job is not None
        return first.job.target


@dataclass(eq=False, slots=True)
class Dispatch:
    """A member that was sent to an endpoint."""

    id: int
    node: Node
    member: Member
    endpoint: Endpoint
    deadline: Timer | None = None
    #: Its completion, if it is being ended early.
    stopping: Completion | None = None
    over: bool = False
    #: Whether the endpoint has begun; guarded by the endpoint.
    sent: bool = False


class Endpoint(Protocol):
    """A process, a host or a thread that tasks are sent to."""

    id: int
    kind: TaskKind
    name: str
    #: How many tasks it runs at a time, and runs now.
    capacity: int
    busy: int
    #: Why it is out of service for good.
    gone: TaskFailure | None

    @property
    def ready(self) -> bool:
        """Whether it has started, and has not died since."""

    def assign(self, dispatch: Dispatch) -> None:
        """It is about to be started there: within the turn that has chosen the endpoint."""

    def start(self, dispatch: Dispatch) -> None:
        """Begin, without the dispatcher's lock; must not block. The end is reported to ``Dispatcher.ended``."""

    def stop(self, dispatch: Dispatch, why: str) -> None:
        """End it early, without the dispatcher's lock; must not block. May come before ``start``, or instead."""


def settled_record(node: Node) -> TaskRecord | None:
    """The record of a task; ``None`` while it has not settled."""
    return record_of(node) if node.payload.has_settled else None


def record_of(node: Node) -> TaskRecord:
    """The record of a task that has an outcome."""
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
