"""Callbacks of users, on a thread of their own: they may block, submit, and raise."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Call = Callable[[], None]


class CallbackThread:
    """Calls one callback after the other. Its thread starts with the first one, and is a daemon."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, call: Call) -> None:
        """Call it soon. ``call`` handles its own exceptions. Does not block."""
        with self._lock:
            if self._closed:  # a task that settled long ago
                threading.Thread(target=call, name=self._name, daemon=True).start()
                return
            self._calls.put(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is a callback."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self, patience: float) -> None:
        """Make the calls that were added, and end; one that lasts longer than ``patience`` seconds is left alone."""
        with self._lock:
            self._closed = True
            self._calls.put(None)
        if self._thread is not None and not self.is_current:
            self._thread.join(patience)
