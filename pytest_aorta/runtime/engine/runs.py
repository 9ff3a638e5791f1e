"""A run of the dispatcher: a graph of tasks that is built, closed, and waited for as a whole."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.engine.ready_queues import ReadyQueues

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
