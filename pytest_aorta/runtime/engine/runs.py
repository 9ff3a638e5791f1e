"""A run: a graph of tasks that is built, closed, and waited for as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.engine.placement import Queues
from pytest_aorta.runtime.records import TaskError, TaskRecord

if TYPE_CHECKING:
    from pytest_aorta.runtime.graph.nodes import Node


class Run:
    """The engine's side of a run. ``keeps`` holds what its tasks may need until all have ended."""

    def __init__(self, number: int, *, fail_fast: bool, remember: bool, keeps: Any = None) -> None:
        self.number = number
        self.fail_fast = fail_fast
        self.queues = Queues()
        self.keeps = keeps
        self.closed = False
        self.unsettled = 0
        self.first_failure: TaskRecord | None = None
        self.graph_error: BaseException | None = None
        self.terminal = threading.Event()
        #: Tasks in the order of their submission; not of a run that stays open and outlives its tasks.
        self.nodes: list[Node] | None = [] if remember else None
        #: Of such a run: those that have not settled.
        self.live: dict[Node, None] = {}


class RunHandle:
    """What ``Worker.submit`` returns: the run goes on whether or not anybody waits for it."""

    def __init__(
        self,
        run: Run,
        wait: Callable[[threading.Event, float | None], bool],
        cancel: Callable[[str, bool], None],
    ) -> None:
        self._run = run
        self._wait = wait
        self._cancel = cancel

    @property
    def done(self) -> bool:
        """Whether all its tasks have ended."""
        return self._run.terminal.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all tasks have ended; as often as you like, with the same outcome.

        Args:
            timeout: seconds; when they have passed, the run simply goes on.

        Raises:
            TimeoutError: it has not ended within ``timeout``.
            TaskError: the first task that failed.
        """
        if not self._wait(self._run.terminal, timeout):
            why = f"within {timeout:g} s" if timeout is not None else "before its worker was closed"
            raise TimeoutError(f"the run has not ended {why}")
        if self._run.first_failure is not None:
            raise TaskError(self._run.first_failure)

    def result(self, timeout: float | None = None) -> None:
        """As ``wait``: results travel through shared tensors, and in ``records``."""
        self.wait(timeout)

    @property
    def records(self) -> list[TaskRecord]:
        """The records of the tasks that have settled, in the order of their submission."""
        return [node.payload.record for node in self._run.nodes or () if node.payload.record is not None]

    def cancel(self, why: str = "cancelled", *, running: bool = False) -> None:
        """Have no further task start; with ``running``, end those that run."""
        self._cancel(why, running)
