"""Callbacks of tasks that have settled: when they are called, and what becomes of an exception that one raises."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_aorta.runtime.engine.callbacks import CallbackThread
from pytest_aorta.runtime.engine.tasks import record_of
from pytest_aorta.runtime.records import Outcome, TaskRecord, failed

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.runs import GraphRun
    from pytest_aorta.runtime.engine.turn import Turn
    from pytest_aorta.runtime.graph.nodes import Node


class TaskCallbacks:
    """Of the tasks of one dispatcher; a run has ended for those who wait once the callbacks of its tasks have returned.

    Args:
        name: of the thread that calls them.
        turn: of the dispatcher.
        notify: called when an event was set that a thread may wait for.
    """

    def __init__(self, name: str, turn: Turn, notify: Callable[[], None]) -> None:
        self._turn = turn
        self._notify = notify
        self._thread = CallbackThread(name)

    @property
    def is_current(self) -> bool:
        """Whether the caller is a callback."""
        return self._thread.is_current

    def add(self, node: Node, callback: Callable[[TaskRecord], None]) -> None:
        """Call with the record of a task that has settled; within a turn, or with the lock."""
        run: GraphRun = node.run
        run.calling_back += 1
        self._thread.add(partial(self._call, node, callback))

    def _call(self, node: Node, callback: Callable[[TaskRecord], None]) -> None:
        record, raised = record_of(node), None
        try:
            callback(record)
        except BaseException as error:
            raised = error
        run: GraphRun = node.run
        with self._turn:
            run.calling_back -= 1
            if raised is not None and not run.is_session and not run.called_back.is_set():
                run.callback_failure = run.callback_failure or _callback_record(record, raised)
                raised = None
            self.note_end(run)
        if raised is not None:  # there is no ``RunHandle.wait`` to raise it
            hook = (type(raised), raised, raised.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(hook))

    def note_end(self, run: GraphRun) -> None:
        """A run, or one of its callbacks, may have ended: see whether all is over; within a turn."""
        if run.ended.is_set() and not run.calling_back:
            run.called_back.set()
            self._notify()

    def close(self, patience: float) -> None:
        """Make the calls that were added, and end; one that lasts longer than ``patience`` seconds is left alone."""
        self._thread.close(patience)


def _callback_record(record: TaskRecord, error: BaseException) -> TaskRecord:
    """The failure of a callback, as the record of its task."""
    text = "".join(traceback.format_exception(error))
    failure = failed(error, traceback=text).at(f"when_settled of task {record.id} ({record.label})").failure
    return replace(record, outcome=Outcome.TASK_FAILURE, payload=None, failure=failure)
