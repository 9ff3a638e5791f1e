"""What users hold of tasks and runs that they have submitted."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.bounded_waits import PIECE
from pytest_aorta.runtime.arguments import check_timeout
from pytest_aorta.runtime.dispatcher import Dispatcher
from pytest_aorta.runtime.event_loop import wait_for
from pytest_aorta.runtime.hazards import HazardWarning
from pytest_aorta.runtime.records import TaskError, TaskRecord
from pytest_aorta.runtime.scheduling import record_of

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.graph import Node, State
    from pytest_aorta.runtime.scheduling import GraphRun, GraphTask


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class TaskRef:
    """A task that was submitted."""

    def __init__(self, dispatcher: Dispatcher, node: Node, outputs: tuple[torch.Tensor, ...] = ()) -> None:
        self._dispatcher = dispatcher
        self._node = node
        #: The tensors that were allocated for ``TaskArgs.add_output``, in order; of a group, those of all members.
        self.outputs = outputs

    def __repr__(self) -> str:
        record = self.record
        outcome = self.state.value if record is None else record.outcome.value
        return f"<TaskRef {self.id} {self._node.label}: {outcome}>"

    @property
    def id(self) -> int:
        """Its number; later tasks have greater ones."""
        return self._node.id

    @property
    def state(self) -> State:
        """Its state at this moment."""
        return self._node.state

    @property
    def record(self) -> TaskRecord | None:
        """How it ended; ``None`` while it has not settled."""
        return record_of(self._node) if self._node.payload.has_settled else None

    def wait(self, timeout: float | None = None) -> TaskRecord:
        """Block until it has settled. A failure is in the record, not an exception.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
        """
        check_timeout(timeout)
        task: GraphTask = self._node.payload
        give_up = None if timeout is None else time.monotonic() + timeout
        if not task.has_settled and timeout is None:
            self._dispatcher.loop.poll_until(lambda: task.has_settled)
        if not task.has_settled:
            with self._dispatcher.lock:
                settled = None if task.has_settled else task.settled or _taken_lock()
                task.settled = settled
            # A lock rather than an event: an interrupt within ``threading`` would leave that broken, and it takes long.
            while settled is not None and not task.has_settled:
                left = PIECE if give_up is None else max(0.0, min(PIECE, give_up - time.monotonic()))
                if settled.acquire(timeout=left):
                    settled.release()  # for other threads
                elif give_up is not None and time.monotonic() >= give_up and not task.has_settled:
                    raise TimeoutError(f"task {self.id} has not ended within {timeout:g} s")
        return record_of(self._node)

    def result(self, timeout: float | None = None) -> Any:
        """What its callable has returned; of a group, a list of what its members have.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
            Exception: what its callable has raised, with the traceback of its process as cause.
            TaskError: it failed otherwise, or with an exception that cannot be pickled.
        """
        record = self.wait(timeout)
        if record.ok:
            return record.value
        raise (record.failure and record.failure.exception()) or TaskError(record)

    def cancel(self, why: str = "cancelled") -> None:
        """Do not start it; when it runs, end it."""
        self._dispatcher.cancel(self._node, why)


class MapRef:
    """The tasks of ``Orchestrator.map``: each is a chunk of items, in their order."""

    def __init__(self, tasks: Sequence[TaskRef]) -> None:
        self.tasks = tuple(tasks)

    def wait(self, timeout: float | None = None) -> list[Any]:
        """What the callable has returned for each item, in the order of the items.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
            TaskError: the first chunk of which an item has failed; others may run still. The text names the item.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        results: list[Any] = []
        for task in self.tasks:
            record = task.wait(None if give_up is None else max(0.0, give_up - time.monotonic()))
            if not record.ok:
                raise TaskError(record)
            results += record.payload
        return results

    def cancel(self, why: str = "cancelled") -> None:
        """Start no further chunk, and end those that run."""
        for task in self.tasks:
            task.cancel(why)


class RunHandle:
    """A run that was submitted; it goes on whether or not a thread waits for it."""

    def __init__(self, dispatcher: Dispatcher, run: GraphRun) -> None:
        self._dispatcher = dispatcher
        self._run = run

    def __repr__(self) -> str:
        records = self.records
        failed = sum(not record.ok for record in records)
        state = "ended" if self.done else f"{self._run.unsettled} tasks open"
        return f"<RunHandle: {state}, {len(records)} ended{f', {failed} not successful' if failed else ''}>"

    @property
    def done(self) -> bool:
        """Whether all its tasks have ended."""
        return self._run.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all tasks have ended; every call has the same outcome.

        Args:
            timeout: seconds; when they have passed, the run goes on.

        Raises:
            TimeoutError: it has not ended within ``timeout``.
            TaskError: the first task that failed.
        """
        check_timeout(timeout)
        if not wait_for(self._run.ended, timeout):
            raise TimeoutError(f"the run has not ended within {timeout:g} s")
        for text in self._run.hazards.take() if self._run.hazards is not None else ():
            warnings.warn(text, HazardWarning, stacklevel=2)
        if self._run.first_failure is not None:
            raise TaskError(self._run.first_failure)

    def result(self, timeout: float | None = None) -> None:
        """As ``wait``: results travel through shared tensors, and in ``records``."""
        self.wait(timeout)

    @property
    def records(self) -> list[TaskRecord]:
        """The records of the tasks that have settled, in the order of their submission."""
        with self._dispatcher.lock:
            found = {node.id: record_of(node) for node in self._run.nodes if node.payload.has_settled}
            found.update(self._run.records)
        return [found[number] for number in sorted(found)]

    def trace(self, file: str | os.PathLike[str]) -> None:
        """Write when and where its tasks ran, as ``chrome://tracing`` and https://ui.perfetto.dev read it.

        One row per slot; tasks that have not started, or not ended yet, are left out.
        """
        rows: dict[str, int] = {}
        events: list[dict[str, Any]] = []
        for record in self.records:
            for part in record.members or (record,):
                if part.started is None or part.ended is None or part.worker is None:
                    continue
                told = {
                    "task": part.id,
                    "outcome": part.outcome.value,
                    "waited_ms": 1e3 * (part.started - part.submitted),
                }
                if part.failure is not None:
                    told["failure"] = part.failure.message
                row = rows.setdefault(part.worker, len(rows))
                where = {"ts": 1e6 * part.started, "dur": 1e6 * (part.ended - part.started), "pid": 0, "tid": row}
                events.append({"name": part.label, "cat": part.outcome.value, "ph": "X", **where, "args": told})
        for name, row in rows.items():
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}})
        Path(file).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def cancel(self, why: str = "cancelled", *, running: bool = False) -> None:
        """Start no further task; with ``running``, end those that run."""
        self._dispatcher.cancel_run(self._run, why, running)
