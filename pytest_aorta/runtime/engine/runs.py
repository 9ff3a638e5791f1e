"""A run of the dispatcher: a graph of tasks that is built, closed, and waited for as a whole."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.engine.ready_queues import ReadyQueues
from pytest_aorta.runtime.engine.task_ring import TaskRing

if TYPE_CHECKING:
    from pytest_aorta.runtime.graph.nodes import Node
    from pytest_aorta.runtime.records import TaskRecord


class GraphRun:
    """The state of a run, guarded by the dispatcher's lock.

    A session is a run that stays open for as long as its worker; it forgets tasks that have settled.
    """

    def __init__(
        self, *, fail_fast: bool = False, keeps: Any = None, is_session: bool = False, ring_size: int | None = None
    ) -> None:
        self.ring = TaskRing(ring_size)
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
        #: Its tasks that are not consumed, in the order of their submission, and the records of those that are, by id.
        self.nodes: dict[Node, None] = {}
        self.records: dict[int, TaskRecord] = {}
        self.first_failure: TaskRecord | None = None
        #: Why it accepts no further task, if it was cancelled.
        self.cancelled: str | None = None
        #: Whether its graph is complete, and whether all tasks have ended, too.
        self.closed = False
        self.ended = threading.Event()
        #: Callbacks of its tasks that have not returned; the first one that has raised; whether all have after its end.
        self.calling_back = 0
        self.callback_failure: TaskRecord | None = None
        self.called_back = threading.Event()

    @property
    def unsettled(self) -> int:
        """How many of its tasks have not ended."""
        return self.ring.taken

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


def independent(runs: Iterable[GraphRun]) -> Iterator[GraphRun]:
    """Later runs that are independent of all earlier ones, as long as those have no task left to start.

    Tasks may be started, and runs end, while this is iterated over.
    """
    earlier: list[GraphRun] = []
    for run in tuple(runs):
        if earlier:
            if any(other.queues for other in earlier):
                return  # with idle endpoints kept for them, or none at all
            if all(run.may_overtake(other) for other in earlier):
                yield run
        if not run.ended.is_set():
            earlier.append(run)
