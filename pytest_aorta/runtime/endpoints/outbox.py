"""Messages to a process: sent at once as far as its socket has room, the rest by the event loop when it has room again.

A process that is stopped, or busy with something else, does not read; sending to it must not block.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from pytest_aorta.runtime.memory.sender import GONE

if TYPE_CHECKING:
    from pytest_aorta.runtime.channel import Channel
    from pytest_aorta.runtime.engine.event_loop import EventLoop

#: Bytes that may wait for a process. An order is taken as long as fewer do; one alone may have more.
MAX_WAITING = 64 * 2**20

#: Seconds between two looks for room in a socket that cannot be watched.
RETRY = 0.1

#: What stands for a descriptor that cannot be sent, so that what follows is in order.
NO_FD = b"f"


class OutboxFull(OSError):
    """The process has not read for too long."""


class Outbox:
    """The sending side of a channel. Any thread may send; nothing here blocks."""

    def __init__(self, channel: Channel, loop: EventLoop) -> None:
        self._channel = channel
        self._loop = loop
        # Reentrant: the garbage collector may close a tensor's descriptor, or a worker, within.
        self._lock = threading.RLock()
        self._waiting: deque[bytes | int] = deque()
        self._bytes = 0
        #: A duplicate of the channel's descriptor, which the loop watches for room; the channel's own, for reports.
        self._watched: int | None = None
        #: Whether a timer stands for it, because no descriptor was left.
        self._retrying = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """Bytes that the socket has not taken."""
        return self._bytes

    def send_text(self, text: str) -> None:
        """Send a mapping that is JSON already.

        Raises:
            OSError: the process is gone.
            OutboxFull: too much waits for it.
        """
        packets = self._channel.packets(text)
        with self._lock:
            self._check()
            if not self._waiting and len(packets) == 1 and self._channel.try_send(packets[0]):
                return  # nearly always
            self._waiting.extend(packets)
            self._bytes += sum(map(len, packets))
            self._flush()

    def send_fd(self, fd: int) -> None:
        """Send a descriptor; raises as ``send_text``."""
        with self._lock:
            self._check()
            if self._waiting or not self._channel.try_send(fd):
                try:
                    self._waiting.append(os.dup(fd))  # the caller may close its own
                except OSError:
                    self._waiting.append(NO_FD)
                    raise
                finally:
                    self._watch()

    def _check(self) -> None:
        if self._closed:
            raise BrokenPipeError("the process no longer listens")
        if self._bytes >= MAX_WAITING:
            raise OutboxFull(f"the process does not read: {self._bytes} bytes wait for it")

    def _flush(self) -> None:
        while self._waiting:
            packet = self._waiting[0]
            try:
                taken = self._channel.try_send(packet)
            except OSError as error:
                if not isinstance(packet, int) or error.errno in GONE:
                    raise
                taken = True  # the other end was sent ``NO_FD``, and reports it
            if not taken:
                self._watch()
                return
            self._waiting.popleft()
            if isinstance(packet, int):
                os.close(packet)
            else:
                self._bytes -= len(packet)
        self._unwatch()

    def _writable(self) -> None:
        """On the loop: the socket takes more, or is closed."""
        with self._lock:
            self._retrying = False
            if not self._closed:
                try:
                    self._flush()
                except OSError:  # its end is about to be reported
                    self._drop()

    def _watch(self) -> None:
        if self._watched is not None or self._retrying:
            return
        try:
            self._watched = os.dup(self._channel.fileno())
        except OSError:  # no descriptor left: look again soon
            self._retrying = True
            self._loop.call_at(time.monotonic() + RETRY, self._writable)
        else:
            self._loop.watch(self._watched, self._writable, writable=True)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.unwatch(self._watched)
            os.close(self._watched)
            self._watched = None

    def _drop(self) -> None:
        self._unwatch()
        for packet in self._waiting:
            if isinstance(packet, int):
                with contextlib.suppress(OSError):
                    os.close(packet)
        self._waiting.clear()
        self._bytes = 0

    def close(self) -> None:
        """Drop what waits; the channel is the caller's."""
        with self._lock:
            self._closed = True
            self._drop()
