"""Callbacks of readable descriptors and of timers, on the thread that polls."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
import traceback
from collections.abc import Callable

from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD

Callback = Callable[[], None]

#: Descriptors per call of epoll; the rest follows with the next one.
_EVENTS = 64

#: Timers from which on cancelled ones are removed before they are due.
_TIMERS = 256


class Timer:
    """A call that is due at a moment of ``time.monotonic()``."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do not call."""
        self.callback = None


class Poller:
    """One thread at a time polls; the other methods may be called from any thread.

    A callback may be called once more than its descriptor is readable, so it must not block.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._most_timers = _TIMERS
        self._order = itertools.count()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._callbacks[self._wake_read] = self._woken
        self._epoll.register(self._wake_read, select.EPOLLIN)

    def watch(self, fd: int, callback: Callback, *, writable: bool = False) -> None:
        """Call when ``fd`` is readable (or ``writable``) or closed by its other end, until it is unwatched."""
        events = select.EPOLLOUT if writable else select.EPOLLIN
        with self._lock:
            if self._epoll.closed:
                return
            self._callbacks[fd] = callback
            try:
                self._epoll.register(fd, events)
            except FileExistsError:
                self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor, if it is watched."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._callbacks.pop(fd, None)
            self._epoll.unregister(fd)

    def add_timer(self, moment: float, callback: Callback) -> tuple[Timer, bool]:
        """A timer, and whether it is the next one that is due."""
        timer = Timer(callback)
        with self._lock:
            if len(self._timers) > self._most_timers:  # most are cancelled, as the deadlines of tasks are
                self._timers = [entry for entry in self._timers if entry[2].callback is not None]
                heapq.heapify(self._timers)
                self._most_timers = max(_TIMERS, 2 * len(self._timers))
            heapq.heappush(self._timers, (moment, next(self._order), timer))
            return timer, self._timers[0][2] is timer

    def wake(self) -> None:
        """End the wait of the thread that polls."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 512)

    def poll(self, timeout: float | None) -> None:
        """Wait until something happens, at most ``timeout`` seconds, and call back."""
        if self._timers:
            until_due = self._until_due()
            if until_due is not None:
                timeout = until_due if timeout is None else min(timeout, until_due)
        try:
            # The only place where a waiting main thread may be interrupted.
            SIGINT_GUARD.release()
            events = self._epoll.poll(timeout, _EVENTS)
        finally:
            SIGINT_GUARD.hold()
        callbacks = self._callbacks
        for fd, callback in [(fd, callbacks[fd]) for fd, _ in events if fd in callbacks]:
            if callbacks.get(fd) is callback:  # not unwatched by an earlier callback
                _call(callback)
        if self._timers:
            for callback in self._take_due():
                _call(callback)

    def _until_due(self) -> float | None:
        """Seconds until the next timer is due."""
        with self._lock:
            while self._timers and self._timers[0][2].callback is None:
                heapq.heappop(self._timers)
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _take_due(self) -> list[Callback]:
        due, now = [], time.monotonic()
        with self._lock:
            while self._timers and self._timers[0][0] <= now:
                callback = heapq.heappop(self._timers)[2].callback
                if callback is not None:
                    due.append(callback)
        return due

    def close(self) -> None:
        """Close the descriptors; no thread may poll."""
        with self._lock:
            self._epoll.close()
            for fd in (self._wake_read, self._wake_write):
                with contextlib.suppress(OSError):
                    os.close(fd)


def _call(callback: Callback) -> None:
    """A callback that raises must not keep the others from being called."""
    try:
        callback()
    except Exception:
        traceback.print_exc()
