"""The event loop of a worker: a thread that polls, unless another thread that waits does so in its place.

Two switches of threads are most of what a short task costs. A thread that waits for the end of a task, and is the only
one, therefore borrows the loop: it polls, and sees that end itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pytest_aorta.common.bounded_waits import PIECE, wait_bounded
from pytest_aorta.runtime.engine.poller import Callback, Poller, Timer
from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD

#: Seconds after the loop was given back for which its own thread does not poll: usually it is borrowed again at once.
_PAUSE = 0.005

_get_ident = threading.get_ident


class EventLoop:
    """Its thread is started with the first thing to wait for. All waits block; nothing spins."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._poller = Poller()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        #: Held by the thread that polls, and which one that is.
        self._polling = threading.Lock()
        self._polling_thread: int | None = None
        #: Threads in ``run_until``; whether one of them has borrowed the loop; when it was last given back.
        self._waiting = 0
        self._borrowed = False
        self._given_back = 0.0
        #: Ends the pause of the loop's own thread; whether that is without limit, and needs to be ended.
        self._resume = threading.Event()
        self._paused = False
        self._abandoned: Callable[[], None] | None = None

    def watch(self, fd: int, callback: Callback, *, writable: bool = False) -> None:
        """Call when ``fd`` is readable (or ``writable``) or closed by its other end, until it is unwatched.

        The callback must not block.
        """
        self._poller.watch(fd, callback, writable=writable)
        self._start()

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor, if it is watched."""
        self._poller.unwatch(fd)

    def call_at(self, moment: float, callback: Callback) -> Timer:
        """Call at a moment of ``time.monotonic()``. Must not block."""
        timer, is_next = self._poller.add_timer(moment, callback)
        self._start()
        if is_next and self._polling_thread != _get_ident():
            self._wake()
        return timer

    def notify(self) -> None:
        """An event was set outside of a callback: have the thread that has borrowed the loop look at its own."""
        if self._borrowed and self._polling_thread != _get_ident():
            self._wake()

    def _wake(self) -> None:
        if not self._closed:
            self._poller.wake()

    def abandon(self, end: Callable[[], None]) -> None:
        """Have a new thread call ``end``. For the garbage collector, which may run anywhere: takes no lock."""
        self._abandoned = end
        self._wake()

    def _poll(self, timeout: float | None) -> None:
        self._poller.poll(timeout)
        if self._abandoned is not None:
            end, self._abandoned = self._abandoned, None
            threading.Thread(target=end, name=f"{self._name}-end", daemon=True).start()

    # The loop's own thread

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            with self._polling:
                self._polling_thread = _get_ident()
                if not self._closed and not self._should_pause():
                    self._poll(None)
                self._polling_thread = None
            self._pause()

    def _should_pause(self) -> bool:
        """Whether another thread polls, or did a moment ago and is likely to do so again."""
        return self._borrowed or (not self._waiting and time.monotonic() - self._given_back < _PAUSE)

    def _pause(self) -> None:
        while self._should_pause() and not self._closed:
            given_back = self._given_back
            if not self._resume.wait(_PAUSE):
                with self._lock:
                    # Borrowed for long: the borrower ends the pause, instead of this thread looking time and again.
                    self._paused = self._borrowed and self._given_back == given_back
                if self._paused:
                    self._resume.wait()
            self._paused = False
            self._resume.clear()

    # Threads that wait

    def run_until(self, done: threading.Event, timeout: float | None) -> bool:
        """Wait for an event that a callback sets, and poll meanwhile; whether it is set within ``timeout`` seconds."""
        give_up = None if timeout is None else time.monotonic() + timeout
        if self._polling_thread == _get_ident():  # within a callback: no other thread can poll meanwhile
            self._poll_until(done, give_up)
            return done.is_set()
        installed = SIGINT_GUARD.begin()
        try:
            with self._lock:
                borrows = not self._waiting and self._thread is not None and not self._closed
                self._waiting += 1
                self._borrowed = self._borrowed or borrows
            try:
                if borrows:
                    self._borrow(done, give_up)
                else:
                    with SIGINT_GUARD.allowed():
                        left = None if give_up is None else _seconds_until(give_up)
                        wait_bounded(lambda seconds: done.wait(seconds) or self._closed, left)
            finally:
                self._leave(borrows)
        finally:
            SIGINT_GUARD.end(installed)
        return done.is_set()

    def _borrow(self, done: threading.Event, give_up: float | None) -> None:
        if not self._polling.acquire(blocking=False):
            self._wake()
            if not self._polling.acquire(timeout=-1 if give_up is None else _seconds_until(give_up)):
                return
        self._polling_thread = _get_ident()
        try:
            self._poll_until(done, give_up)
        finally:
            self._polling_thread = None
            self._polling.release()

    def _poll_until(self, done: threading.Event, give_up: float | None) -> None:
        while not done.is_set() and not self._closed:
            left = PIECE
            if give_up is not None:
                left = min(left, give_up - time.monotonic())
                if left <= 0:
                    return
            self._poll(left)

    def _leave(self, borrowed: bool) -> None:
        with self._lock:
            self._waiting -= 1
            if borrowed:
                self._borrowed = False
                self._given_back = time.monotonic()
            resume = borrowed and (self._paused or self._waiting > 0)
        if resume:
            self._resume.set()

    def close(self) -> None:
        """End the thread, and the waits of others."""
        self._closed = True
        self._poller.wake()  # after that: a thread that polls must not see an open loop once more, and wait for ever
        self._resume.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._polling_thread == _get_ident():
            self._poller.close()
            return
        with self._polling:
            self._poller.close()


def _seconds_until(moment: float) -> float:
    return max(0.0, moment - time.monotonic())
