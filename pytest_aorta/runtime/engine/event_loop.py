"""Waits for descriptors and for moments, and calls back: on a thread of its own, or on one that waits for an outcome.

Two wake-ups of threads are most of what a short task costs. Whoever waits for a task's end, and is alone in that,
takes the reactor's turn and hears of that end itself; the reactor's own thread serves while nobody does.
"""

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

from pytest_aorta.runtime.engine.sigint import INTERRUPTS

Callback = Callable[[], None]

#: Seconds after a visit for which the reactor's own thread stays away, because visits come in rows.
_AWAY = 0.005

#: Descriptors that one look tells of; the rest is told by the next one.
_EVENTS = 64

#: Timers from which on those that were cancelled are looked for.
_TIMERS = 256

_get_ident = threading.get_ident


class Timer:
    """A call that is due at a moment of ``time.monotonic()``."""

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Not any more."""
        self.callback = None


class Reactor:
    """The thread is started with the first thing to wait for. Blocking waits only: nothing here spins.

    A callback may be called once more than there is something to be read, so none of them may block.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._many = _TIMERS
        self._order = itertools.count()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._callbacks[self._wake_read] = self._rung
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._closed = False
        #: Held by whoever serves, and who that is.
        self._turn = threading.Lock()
        self._server: int | None = None
        #: Threads in ``drive``, whether one of them serves, and when the last one of those has left.
        self._waiting = 0
        self._visited = False
        self._left = 0.0
        #: Calls the reactor's own thread back; needed when it sleeps for as long as a visit lasts.
        self._call = threading.Event()
        self._asleep = False

    def watch(self, fd: int, callback: Callback) -> None:
        """Call when ``fd`` can be read or has ended, until it is unwatched."""
        with self._lock:
            self._callbacks[fd] = callback
            try:
                self._epoll.register(fd, select.EPOLLIN)
            except FileExistsError:
                self._epoll.modify(fd, select.EPOLLIN)
        self._start()

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor; unknown ones are none of our business."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._callbacks.pop(fd, None)
            self._epoll.unregister(fd)

    def at(self, moment: float, callback: Callback) -> Timer:
        """Call at a moment of ``time.monotonic()``."""
        timer = Timer(callback)
        with self._lock:
            if len(self._timers) > self._many:  # most were cancelled, as the deadlines of tasks are
                self._timers = [entry for entry in self._timers if entry[2].callback is not None]
                heapq.heapify(self._timers)
                self._many = max(_TIMERS, 2 * len(self._timers))
            heapq.heappush(self._timers, (moment, next(self._order), timer))
            first = self._timers[0][2] is timer
        self._start()
        if first and self._server != _get_ident():
            self.wake()
        return timer

    def wake(self) -> None:
        """Have whoever serves look again."""
        if not self._closed:
            self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"\0")

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 512)

    # The reactor's own thread

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()

    def _serve(self) -> None:
        while not self._closed:
            with self._turn:
                self._server = _get_ident()
                if not self._closed and not self._is_away():
                    self._step(None)
                self._server = None
            self._stay_away()

    def _is_away(self) -> bool:
        """Whether somebody else serves, or did a moment ago, and is likely to do so again."""
        return self._visited or (not self._waiting and time.monotonic() - self._left < _AWAY)

    def _stay_away(self) -> None:
        while self._is_away() and not self._closed:
            before = self._left
            if not self._call.wait(_AWAY):
                with self._lock:
                    # A long visit: whoever makes it says when it is over, instead of us asking time and again.
                    self._asleep = self._visited and self._left == before
                if self._asleep:
                    self._call.wait()
            self._asleep = False
            self._call.clear()

    # Others

    def drive(self, done: threading.Event, timeout: float | None) -> bool:
        """Wait for an event that a callback sets, and serve meanwhile; whether it came within ``timeout`` seconds."""
        give_up = None if timeout is None else time.monotonic() + timeout
        if self._server == _get_ident():  # within a callback: nobody else serves meanwhile
            self._serve_until(done, give_up)
            return done.is_set()
        mine = INTERRUPTS.begin()
        try:
            with self._lock:
                alone = not self._waiting and self._thread is not None and not self._closed
                self._waiting += 1
                self._visited = self._visited or alone
            try:
                if alone:
                    self._visit(done, give_up)
                else:
                    self._await(done, give_up)
            finally:
                self._leave(alone)
        finally:
            INTERRUPTS.end(mine)
        return done.is_set()

    def _visit(self, done: threading.Event, give_up: float | None) -> None:
        if not self._turn.acquire(blocking=False):
            self.wake()
            if not self._turn.acquire(timeout=_left(give_up, -1)):
                return
        self._server = _get_ident()
        try:
            self._serve_until(done, give_up)
        finally:
            self._server = None
            self._turn.release()

    @staticmethod
    def _await(done: threading.Event, give_up: float | None) -> None:
        """Somebody else serves, or there is nothing to serve."""
        with INTERRUPTS.allowed():
            done.wait(None if give_up is None else _left(give_up))

    def _leave(self, alone: bool) -> None:
        with self._lock:
            self._waiting -= 1
            if alone:
                self._visited = False
                self._left = time.monotonic()
            call = alone and (self._asleep or self._waiting > 0)
        if call:
            self._call.set()

    def told(self) -> None:
        """Somebody's event was set outside of a callback: whoever serves has to look at his own."""
        if self._visited and self._server != _get_ident():
            self.wake()

    # Serving

    def _serve_until(self, done: threading.Event, give_up: float | None) -> None:
        while not done.is_set() and not self._closed:
            left = None
            if give_up is not None:
                left = give_up - time.monotonic()
                if left <= 0:
                    return
            self._step(left)

    def _step(self, limit: float | None) -> None:
        """Wait for something to happen, at most ``limit`` seconds, and call back."""
        if self._timers:
            patience = self._patience()
            if patience is not None:
                limit = patience if limit is None else min(limit, patience)
        for fd, callback in self._look(limit):
            if self._callbacks.get(fd) is callback:  # not unwatched by one of those before it
                _call(callback)
        if self._timers:
            for callback in self._due():
                _call(callback)

    def _look(self, limit: float | None) -> list[tuple[int, Callback]]:
        """Descriptors that can be read. The only place where a waiting thread may be interrupted."""
        try:
            INTERRUPTS.release()
            events = self._epoll.poll(limit, _EVENTS)
        finally:
            INTERRUPTS.hold()
        callbacks = self._callbacks
        return [(fd, callbacks[fd]) for fd, _ in events if fd in callbacks]

    def _patience(self) -> float | None:
        with self._lock:
            while self._timers and self._timers[0][2].callback is None:
                heapq.heappop(self._timers)
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _due(self) -> list[Callback]:
        due, now = [], time.monotonic()
        with self._lock:
            while self._timers and self._timers[0][0] <= now:
                callback = heapq.heappop(self._timers)[2].callback
                if callback is not None:
                    due.append(callback)
        return due

    def close(self) -> None:
        """End the thread, and let go of whoever serves."""
        self._closed = True
        self._ring()  # not before: who serves could hear it, see nothing closed, and wait for ever
        self._call.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        serves = self._server == _get_ident()
        if not serves:
            self._turn.acquire()
        try:
            with self._lock:
                self._epoll.close()
                for fd in (self._wake_read, self._wake_write):
                    with contextlib.suppress(OSError):
                        os.close(fd)
        finally:
            if not serves:
                self._turn.release()


def _left(give_up: float | None, unlimited: float = 0.0) -> float:
    """Seconds until then; ``unlimited`` where there is no such moment."""
    return unlimited if give_up is None else max(0.0, give_up - time.monotonic())


def _call(callback: Callback) -> None:
    """One that raises must not take the others with it."""
    try:
        callback()
    except Exception:
        traceback.print_exc()
