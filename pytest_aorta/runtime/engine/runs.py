"""A run of the dispatcher: a graph of tasks that is built, closed, and waited for as a whole."""

from __future__ import annotations

import threading
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
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

    def __init__(self, *, fail_fast: bool = False, keeps: Any = None, is_session: bool = False) -> None:
        self.fail_fast = fail_fast
        #: References that its tasks may need until all have ended.
        self.keeps = keeps
        self.is_session = is_session
        #: Its graph is built by this thread. Runs of one thread come one after the other.
        self.thread = threading.current_thread()
        #: Identities of the memory that its tasks use, and the open runs that use some of it, too.
        self.memory: set[Hashable] = set()
        self.shares_with: set[GraphRun] = set()
        self.queues = ReadyQueues()
        #: Its tasks in the order of their submission.
        self.nodes: dict[Node, None] = {}
        self.unsettled = 0
        self.first_failure: TaskRecord | None = None
        #: Whether its graph is complete, and whether all tasks have ended, too.
        self.closed = False
        self.ended = threading.Event()
        #: Callbacks of its tasks that have not returned; the first one that has raised; whether all have after its end.
        self.calling_back = 0
        self.callback_failure: TaskRecord | None = None
        self.called_back = threading.Event()

    def note_use(self, memory: Hashable, others: Iterable[GraphRun]) -> None:
        """One of its tasks uses memory; ``others`` are the runs that are open."""
        if memory not in self.memory:
            self.memory.add(memory)
            for other in others:
                if other is not self and memory in other.memory:
                    self.shares_with.add(other)
                    other.shares_with.add(self)

    def may_overtake(self, earlier: GraphRun) -> bool:
        """Whether its tasks may start beside those of an earlier run, as far as these leave workers idle.

        No thread has said that one comes after the other, and no tensor can be seen half written: all that the earlier
        one uses is known.
        """
        return earlier.closed and earlier.thread is not self.thread and earlier not in self.shares_with
