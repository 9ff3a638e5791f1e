"""A task of the level above: a graph that is built and run at this level, and that can be ended at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pytest_aorta.runtime.handles import RunHandle
from pytest_aorta.runtime.memory.transfer import SlotArgs
from pytest_aorta.runtime.worker import Worker


class LeftBehind(RuntimeError):
    """A task was ended whose graph was still being built."""


class GraphTask:
    """One thread runs it, any thread may cancel it.

    A builder that waits for tasks of its run goes on when these are cancelled, and finds that it can submit no more.
    One that waits for anything else is left behind after the worker's grace: its thread lives until it returns, but the
    task has ended, and the next graph can be built.

    Args:
        worker: that builds the graph.
        ended: called with the reason, on another thread, when the builder is left behind.
    """

    def __init__(self, worker: Worker, ended: Callable[[LeftBehind], None]) -> None:
        self._worker = worker
        self._ended = ended
        self._lock = threading.Lock()
        self._why: str | None = None
        self._handle: RunHandle | None = None
        self._abandon: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None
        self._built = False
        self._left_behind: LeftBehind | None = None

    def run(self, orch_fn: Callable[..., Any], args: SlotArgs) -> Any:
        """Build and run the graph; what ``orch_fn`` has returned.

        Raises:
            LeftBehind: ``ended`` has been called.
            TaskError: one of its tasks has failed; or what ``orch_fn`` has raised.
        """
        returned: list[Any] = []
        try:
            handle = self._worker.submit_below(
                lambda orch, args, config: returned.append(orch_fn(orch, args, config)), args, self._opened
            )
        finally:
            with self._lock:
                self._built = True
                if self._timer is not None:
                    self._timer.cancel()
                if self._left_behind is not None:
                    raise self._left_behind
        handle.wait()
        return returned[0]

    def _opened(self, handle: RunHandle, abandon: Callable[[], None]) -> None:
        with self._lock:
            self._handle, self._abandon = handle, abandon
            why = self._why
        if why is not None:
            handle.cancel(why, running=True)

    def cancel(self, why: str) -> None:
        """End it; returns at once."""
        with self._lock:
            if self._why is None and not self._built:
                self._timer = threading.Timer(self._worker.grace, self._leave_behind)
                self._timer.daemon = True
                self._timer.start()
            self._why = self._why or why
            handle = self._handle
        if handle is not None:
            handle.cancel(why, running=True)

    def _leave_behind(self) -> None:
        with self._lock:
            if self._built or self._abandon is None:
                return
            self._left_behind = LeftBehind(f"{self._why}; its graph was still being built, which is left behind")
        self._abandon()
        self._ended(self._left_behind)
