"""Turns: a change is made under the dispatcher's lock, and followed up before the lock is released."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD


class Turn:
    """A reentrant lock that calls ``finish`` before the outermost turn releases it. One object serves for all turns."""

    def __init__(self, mutex: threading.RLock, finish: Callable[[], None]) -> None:
        self._mutex = mutex
        self._finish = finish
        self._deferred: list[Callable[[], None]] = []
        self._depth = 0

    def defer(self, call: Callable[[], None]) -> None:
        """Call when the outermost turn is over, without the lock."""
        self._deferred.append(call)

    def __enter__(self) -> None:
        SIGINT_GUARD.hold()
        self._mutex.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deferred: list[Callable[[], None]] = []
        try:
            try:
                if kind is None and self._depth == 1:
                    self._finish()
            finally:
                self._depth -= 1
                if self._deferred and not self._depth:
                    deferred, self._deferred = self._deferred, deferred
                self._mutex.release()
            for call in deferred:
                try:
                    call()
                except Exception:
                    traceback.print_exc()  # not an error of the caller that happened to take this turn
        finally:
            SIGINT_GUARD.release()
