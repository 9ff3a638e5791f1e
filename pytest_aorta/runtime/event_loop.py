"""One thread of a worker that waits for descriptors and timers."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import select
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from pytest_aorta.common.interrupts import SIGINT_HELD

Callback = Callable[[], object]

#: Seconds that a waiting thread polls for itself, and that the loop's own thread then stays away: wake-ups of threads
#: cost more than a short task, and do not matter to a long one.
_SHORT = 0.003


class EventLoop:
    """Its thread is started with the first thing to wait for. Callbacks must not block; all waits block, nothing spins.

    A thread that waits for a short task polls in the place of the loop's own, and runs callbacks: see ``poll_until``.

    All methods may be called from any thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._callbacks: dict[int, Callback] = {}
        #: Moments of ``time.monotonic()`` and calls, by number; and the moment that the thread sleeps until.
        self._timers: dict[int, tuple[float, Callback]] = {}
        self._numbers = itertools.count()
        self._until = math.inf
        #: Held by the thread that polls; the thread that does so for itself, and until when the loop's own stays away.
        self._polling = threading.Lock()
        self._guest: threading.Thread | None = None
        self._away_until = 0.0

    def watch(self, fd: int, callback: Callback, *, writable: bool = False) -> None:
        """Call when ``fd`` is readable or closed by its other end, with ``writable`` also when it takes data."""
        events = select.EPOLLIN | (select.EPOLLOUT if writable else 0)
        with self._lock:
            if self._closed:
                return
            if fd in self._callbacks:
                self._epoll.modify(fd, events)
            else:
                self._epoll.register(fd, events)
            self._callbacks[fd] = callback
            self._start()

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor, if it is watched; before it is closed."""
        with self._lock:
            if self._callbacks.pop(fd, None) is not None and not self._closed:
                self._epoll.unregister(fd)

    def call_at(self, moment: float, callback: Callback) -> Callback:
        """Call at a moment of ``time.monotonic()``; what is returned cancels that."""
        with self._lock:
            number = next(self._numbers)
            self._timers[number] = (moment, callback)
            self._start()
            if moment < self._until and not self._closed:
                os.eventfd_write(self._wake, 1)
        return partial(self._timers.pop, number, None)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            while (away := self._away_until - time.monotonic()) > 0 and not self._closed:
                time.sleep(away)
            with self._polling:
                if not self._closed:
                    self._poll(math.inf)
        with self._polling:
            self._epoll.close()
            os.close(self._wake)

    def _poll(self, longest: float) -> None:
        with self._lock:
            self._until = min([moment for moment, _ in list(self._timers.values())], default=math.inf)
        left = min(longest, max(0.0, self._until - time.monotonic()))
        for fd, _ in self._epoll.poll(None if left == math.inf else left):
            if fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif fd in self._callbacks:  # not unwatched by an earlier callback
                _call(self._callbacks[fd])
        now = time.monotonic()
        for number, (moment, callback) in list(self._timers.items()) if self._until <= now else ():
            if moment <= now and self._timers.pop(number, None) is not None:
                _call(callback)

    def poll_until(self, over: Callable[[], bool]) -> None:
        """Poll in the caller's thread until ``over()``, for some milliseconds at most; or do nothing.

        The end of a short task then wakes one thread instead of two, which would compete for the GIL.
        """
        if self._thread is None or self._guest is not None:
            return
        give_up = time.monotonic() + _SHORT
        with SIGINT_HELD:
            self._guest, self._away_until = threading.current_thread(), give_up
            try:
                if not self._polling.acquire(blocking=False):
                    with self._lock:
                        if not self._closed:
                            os.eventfd_write(self._wake, 1)  # the loop's thread gives way
                    if not self._polling.acquire(timeout=_SHORT):
                        return
                try:
                    while not (over() or self._closed) and (left := give_up - time.monotonic()) > 0:
                        self._poll(left)
                finally:
                    self._polling.release()
            finally:
                self._guest = None

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True  # before the signal, which the thread may take at once
            os.eventfd_write(self._wake, 1)
            thread = self._thread
        if thread is None:
            self._run()  # which only closes the descriptors
        elif threading.current_thread() not in (thread, self._guest):
            thread.join()


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:
        traceback.print_exc()  # an error of this package; those of tasks are theirs
