"""What a node of the graph stands for: one task, or the members of a group, and what became of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_aorta.runtime.records import Completion, Failure, Outcome, TaskRecord

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.event_loop import Timer
    from pytest_aorta.runtime.engine.runs import Run
    from pytest_aorta.runtime.graph.args import TaskArgs
    from pytest_aorta.runtime.graph.nodes import Node
    from pytest_aorta.runtime.memory.callables import Definition

#: Which pool of endpoints a task goes to. ``slab`` is memory, which nobody runs.
Kind = Literal["sub", "next", "job", "slab"]


@dataclass(frozen=True)
class Job:
    """A task that runs on a thread of the host worker itself, and drives processes of its own.

    Attributes:
        target: ``module:function``, called as ``function(job, payload)`` with a ``JobContext``; returns JSON values.
        payload: anything; pickled when it goes to another process.
        preparation: what has to have succeeded once on a host before the first job with its key starts there.
        on_start: called on the submitting side just before it starts.
        on_event: called on the submitting side with what the job emits.
    """

    target: str
    payload: Any
    preparation: Preparation | None = None
    on_start: Callable[[], None] | None = None
    on_event: Callable[[dict[str, Any]], None] | None = None


@dataclass(frozen=True)
class Preparation:
    """A job that others of the same ``key`` wait for; its failure is theirs, and none of them starts."""

    key: str
    target: str
    payload: Any


@dataclass(eq=False)
class Member:
    """One thing to run at one place. ``worker`` is where it must run, ``affinity`` where it had better."""

    definition: Definition | None = None
    args: TaskArgs | None = None
    config: Any = None
    job: Job | None = None
    worker: int | None = None
    affinity: int | None = None
    #: Ids of the workers that may run it; all, if ``None``.
    eligible: frozenset[int] | None = None
    completion: Completion | None = None
    ran_on: str | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(eq=False)
class Work:
    """The payload of a node."""

    kind: Kind
    members: list[Member]
    run: Run
    timeout: float | None = None
    urgent: bool = False
    slab: Any = None
    submitted: float = field(default_factory=time.time)
    outcome: Outcome | None = None
    failure: Failure | None = None
    running: list[Dispatch] = field(default_factory=list)
    waiting: int = 0
    record: TaskRecord | None = None
    settled: threading.Event | None = None
    callbacks: list[Callable[[TaskRecord], None]] = field(default_factory=list)

    @property
    def is_group(self) -> bool:
        """Whether it has several members, which start together."""
        return len(self.members) > 1


@dataclass(eq=False)
class Dispatch:
    """A member that was sent to an endpoint."""

    id: int
    node: Node
    member: Member
    endpoint: Endpoint
    deadline: Timer | None = None
    #: Why it is being ended, once it is.
    stopping: Completion | None = None
    over: bool = False


class Endpoint(Protocol):
    """What a task can be sent to. Hides where it is and how it is spoken to."""

    id: int
    kind: Kind
    name: str
    #: Tasks that it runs at a time, and that it runs now.
    capacity: int
    busy: int
    #: Why nothing is sent there any more; ``None`` while all is well.
    gone: Failure | None

    @property
    def ready(self) -> bool:
        """Whether it has started, and has not died since."""

    def start(self, dispatch: Dispatch) -> None:
        """Begin; must not block. Its end is told to ``Engine.ended``."""

    def stop(self, dispatch: Dispatch, why: str) -> None:
        """End it early; must not block."""


def record_of(node: Node) -> TaskRecord:
    """What became of a task that has an outcome."""
    work: Work = node.payload
    assert work.outcome is not None
    if len(work.members) == 1:
        only = work.members[0]
        payload = only.completion.payload if only.completion is not None else None
        return TaskRecord(
            node.id,
            node.label,
            work.outcome,
            payload,
            work.failure,
            only.ran_on,
            work.submitted,
            only.started,
            only.ended,
        )
    return TaskRecord(
        id=node.id,
        label=node.label,
        outcome=work.outcome,
        failure=work.failure,
        submitted=work.submitted,
        started=min((member.started for member in work.members if member.started is not None), default=None),
        ended=max((member.ended for member in work.members if member.ended is not None), default=None),
        members=tuple(_member_record(node, member) for member in work.members),
    )


def _member_record(node: Node, member: Member) -> TaskRecord:
    completion = member.completion or Completion(Outcome.SKIPPED)
    return TaskRecord(
        id=node.id,
        label=node.label,
        outcome=completion.outcome,
        payload=completion.payload,
        failure=completion.failure,
        worker=member.ran_on,
        submitted=node.payload.submitted,
        started=member.started,
        ended=member.ended,
    )
