"""A run of the dispatcher: a graph of tasks that is built, closed, and waited for as a whole."""

from __future__ import annotations

import threading
from bisect import insort
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.engine.tasks import GraphTask, TaskKind

if TYPE_CHECKING:
    from pytest_aorta.runtime.graph.nodes import Node
    from pytest_aorta.runtime.records import TaskRecord


class ReadyQueues:
    """The ready tasks of one run, in the order in which they became ready.

    Tasks for one worker have a queue per worker, so that a busy worker delays only its own. Of the groups, only the
    first one reserves its workers. Jobs are in the order of their submission: those whose preparation ends first must
    not all come before the others.
    """

    def __init__(self) -> None:
        self.directed: defaultdict[int, deque[Node]] = defaultdict(deque)
        self.groups: deque[Node] = deque()
        self.anywhere: deque[Node] = deque()
        self.sub: deque[Node] = deque()
        self.job: deque[Node] = deque()

    def push(self, node: Node) -> None:
        """Add a task that has become ready."""
        task: GraphTask = node.payload
        if task.kind is TaskKind.SUB:
            self.sub.append(node)
        elif task.kind is TaskKind.JOB:
            insort(self.job, node, key=_job_order)
        elif len(task.members) > 1:
            self.groups.append(node)
        elif task.members[0].worker is not None:
            self.directed[task.members[0].worker].append(node)
        else:
            self.anywhere.append(node)

    def __bool__(self) -> bool:
        """Whether a task is in one of them."""
        return bool(self.sub or self.job or self.anywhere or self.groups or any(self.directed.values()))

    def all(self) -> list[deque[Node]]:
        """Every queue."""
        return [*self.directed.values(), self.groups, self.anywhere, self.sub, self.job]


def _job_order(node: Node) -> tuple[bool, int]:
    """Urgent jobs come first."""
    return not node.payload.urgent, node.id


class GraphRun:
    """The state of a run, guarded by the dispatcher's lock.

    A session is a run that stays open for as long as its worker; it forgets tasks that have settled.
    """

    def __init__(
        self, *, fail_fast: bool = False, keeps: Any = None, is_session: bool = False, ring_size: int | None = None
    ) -> None:
        #: The most tasks that have not ended; ``None`` for any number. Every run has its own ring: if two shared one,
        #: the later one could fill it with tasks that cannot start before the earlier one has ended.
        self.ring_size = ring_size
        #: Set once the number has fallen so low that it is worth to wake a submitter.
        self.room: threading.Event | None = None
        self.low_water = 0 if ring_size is None else ring_size - max(1, ring_size // 8)
        self.fail_fast = fail_fast
        #: References that its tasks may need until all have ended.
        self.keeps = keeps
        self.is_session = is_session
        self.queues = ReadyQueues()
        #: Its tasks in the order of their submission.
        self.nodes: dict[Node, None] = {}
        self.unsettled = 0
        self.first_failure: TaskRecord | None = None
        #: Why it accepts no further task, if it was cancelled.
        self.cancelled: str | None = None
        #: Whether its graph is complete, and whether all tasks have ended, too.
        self.closed = False
        self.ended = threading.Event()
