"""Turns: a change is made under the dispatcher's lock, and followed up before the lock is released."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType

from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD

Call = Callable[[], None]


class _Pending(threading.local):
    """What the thread has left to do after its turns; ``None`` while it does not do so."""

    calls: deque[Call] | None = None


class Turn:
    """A reentrant lock that calls ``finish`` before the outermost turn releases it. One object serves for all turns."""

    def __init__(self, mutex: threading.RLock, finish: Callable[[], None]) -> None:
        self._mutex = mutex
        self._finish = finish
        self._deferred: list[Call] = []
        self._depth = 0
        self._pending = _Pending()

    def defer(self, call: Call) -> None:
        """Call when the outermost turn is over, without the lock, on the thread of that turn.

        For whatever takes time, as sending does. A turn within such a call leaves what it defers to the calls that
        follow: a queue of tasks that cannot be sent must not become a stack.
        """
        self._deferred.append(call)

    def __enter__(self) -> None:
        SIGINT_GUARD.hold()
        self._mutex.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deferred: list[Call] = []
        try:
            try:
                if kind is None and self._depth == 1:
                    self._finish()
            finally:
                self._depth -= 1
                if self._deferred and not self._depth:
                    deferred, self._deferred = self._deferred, deferred
                self._mutex.release()
            if deferred:
                self._follow_up(deferred)
        finally:
            SIGINT_GUARD.release()

    def _follow_up(self, deferred: list[Call]) -> None:
        pending = self._pending
        if pending.calls is not None:
            pending.calls.extend(deferred)
            return
        pending.calls = calls = deque(deferred)
        try:
            while calls:
                try:
                    calls.popleft()()
                except Exception:
                    traceback.print_exc()  # an error of this package; those of tasks and callbacks are theirs
        finally:
            pending.calls = None
