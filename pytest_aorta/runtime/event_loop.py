"""Threads and signals of a worker: one thread that waits for descriptors and timers, one for callbacks of users.

``SIGINT`` is deferred while the main thread changes the graph: Python runs signal handlers wherever that thread is, and
a KeyboardInterrupt in the middle of a change would leave a task half added, and a worker that waits for it at its end.
"""

from __future__ import annotations

import contextlib
import heapq
import importlib
import itertools
import os
import queue
import select
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pytest_aorta.common.bounded_waits import PIECE

Callback = Callable[[], None]

#: Timers from which on cancelled ones are removed before they are due.
_MANY_TIMERS = 256


class Timer:
    """A call that is due at a moment of ``time.monotonic()``."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do not call."""
        self.callback = None


class EventLoop:
    """Its thread is started with the first thing to wait for. Callbacks must not block; all waits block, nothing spins.

    All methods may be called from any thread; ``call_soon`` even by the garbage collector, in the middle of anything.
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
        self._soon: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._most_timers = _MANY_TIMERS
        self._order = itertools.count()

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

    def call_at(self, moment: float, callback: Callback) -> Timer:
        """Call at a moment of ``time.monotonic()``."""
        timer = Timer(callback)
        with self._lock:
            if len(self._timers) > self._most_timers:  # most are cancelled, as the deadlines of tasks are
                self._timers = [entry for entry in self._timers if entry[2].callback is not None]
                heapq.heapify(self._timers)
                self._most_timers = max(_MANY_TIMERS, 2 * len(self._timers))
            heapq.heappush(self._timers, (moment, next(self._order), timer))
            is_next = self._timers[0][2] is timer
            self._start()
        if is_next:
            self.wake()
        return timer

    def call_soon(self, callback: Callback) -> None:
        """Call on the loop's thread; takes no lock. Never called if the loop waits for nothing else."""
        self._soon.append(callback)
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            for fd, _ in self._epoll.poll(self._until_due() if self._timers else None):
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                elif fd in self._callbacks:  # not unwatched by an earlier callback
                    _call(self._callbacks[fd])
            while self._soon:
                _call(self._soon.popleft())
            for callback in self._take_due() if self._timers else ():
                _call(callback)
        self._epoll.close()
        wake, self._wake = self._wake, -1  # who calls from now on must not write to another file of this number
        os.close(wake)

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
        """End the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            self._run()  # which only closes the descriptors
        else:
            self.wake()
            if thread is not threading.current_thread():
                thread.join()


def _call(callback: Callback) -> None:
    """A callback that raises must not keep the others from being called."""
    try:
        callback()
    except Exception:
        traceback.print_exc()  # an error of this package; those of tasks and callbacks are theirs


class CallbackThread:
    """Calls callbacks of users, one after the other: they may block, submit, and raise. Starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, call: Callback) -> None:
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


# The C functions: ``signal``'s wrappers convert to enumeration members, which takes twenty times as long as the rest.
_raw = importlib.import_module("_signal")
_SIGINT = int(signal.SIGINT)
_get_ident = threading.get_ident


class _SigintHold:
    """Defers SIGINT on the main thread until the outermost hold ends. For other threads, nothing happens."""

    def __init__(self) -> None:
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted: tuple[int, FrameType | None] | None = None
        self._main = threading.main_thread().ident
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._main = _get_ident()

    def piece(self) -> float:
        """Seconds that this thread may wait with SIGINT deferred."""
        return 0.1 if _get_ident() == self._main else PIECE

    def __enter__(self) -> None:
        if _get_ident() == self._main:
            if self._depth == 0:
                self._install()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if _get_ident() == self._main:
            # Never below 0: an interrupt that is raised at the end of ``released`` leaves fewer holds than there were.
            self._depth = max(0, self._depth - 1)
            if self._depth == 0:
                self._restore()

    def _install(self) -> None:
        self._noted = None
        handler = _raw.getsignal(_SIGINT)
        self._handler = handler if callable(handler) else None  # SIG_DFL, SIG_IGN, or one of C code
        if self._handler is not None:
            try:
                _raw.signal(_SIGINT, self._note)
            except ValueError:  # the main thread of another interpreter
                self._handler = None

    def _restore(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            if _raw.getsignal(_SIGINT) == self._note:  # else other code has installed a handler, which stays
                _raw.signal(_SIGINT, handler)
            noted, self._noted = self._noted, None
            if noted is not None:
                handler(*noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Let interrupts through within a hold: around code of users, and around waits."""
        if _get_ident() != self._main or self._depth == 0:
            yield
            return
        depth, self._depth = self._depth, 0
        try:
            self._restore()
            yield
        finally:
            self._install()
            self._depth = depth


#: A process has one main thread.
SIGINT_HELD = _SigintHold()


def wait_for(event: threading.Event, timeout: float | None) -> bool:
    """Wait for an event; whether it is set within ``timeout`` seconds.

    SIGINT is raised between pieces of the wait: within the Python code of ``threading``, it would leave a lock broken.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    while True:
        piece = SIGINT_HELD.piece()
        left = piece if give_up is None else max(0.0, min(piece, give_up - time.monotonic()))
        with SIGINT_HELD:
            if event.wait(left):
                return True
        if give_up is not None and time.monotonic() >= give_up:
            return False
