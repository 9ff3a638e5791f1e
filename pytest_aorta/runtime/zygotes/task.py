"""The parent's view of a task that runs in a child process."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any, Protocol

from pytest_aorta.runtime.zygotes.channel import Channel, Message, wait
from pytest_aorta.runtime.zygotes.task_messages import ServerOrder, TaskEnd
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError


class TaskEnded(Exception):
    """The task's process has ended and all its messages have been read; ``Task.ended`` says how it went."""


class TaskOwner(Protocol):
    """The parent's side of the process whose child runs a task."""

    control: Channel

    def next_report(self) -> TaskEnd | None:
        """Read the control channel: the end of the task, or ``None`` for something else."""

    def order(self, order: ServerOrder) -> None:
        """Send an order; that the process is dead is noticed elsewhere."""


class Task:
    """A task that was handed to a child process.

    One thread follows it, with ``next_message`` or with ``poll_message``; any thread may ``send`` and ``kill``.
    """

    def __init__(self, server: TaskOwner, channel: Channel, pid: int) -> None:
        self.pid = pid
        self.ended: TaskEnd | None = None
        #: What was wrong with its last message, if that could not be read.
        self.garbage = ""
        self._server = server
        self._channel: Channel | None = channel
        self._lost: ZygoteError | None = None

    def next_message(self, deadline: float | None) -> Message | None:
        """The next message of the child, or ``None`` once it has ended and all its messages have been read.

        Args:
            deadline: a time of ``time.monotonic()``, or ``None`` to wait without limit.

        Raises:
            TimeoutError: the deadline has passed first.
            ZygoteError: the zygote died, and with it the child; all that the child had sent has been read.
        """
        try:
            message = self._follow(deadline)
        except TaskEnded:
            return None
        if message is None:
            raise TimeoutError
        return message

    def poll_message(self) -> Message | None:
        """The next message if it is there already; ``None`` if it is not. For a caller that watches ``filenos``.

        Raises:
            TaskEnded: there will be no more.
            ZygoteError: as for ``next_message``.
        """
        return self._follow(0.0)

    def hear(self) -> Message | None:
        """The next message of the child; ``None`` if it is not there, or not yet as a whole. Does not wait.

        Cheaper than ``poll_message``, which also finds out how it has ended.

        Raises:
            EOFError: it will send nothing more.
        """
        if self._channel is None:
            raise EOFError
        try:
            return self._channel.receive_part(socket.MSG_DONTWAIT)
        except EOFError as end:
            self.garbage = str(end)
            raise

    def filenos(self) -> list[int]:
        """Descriptors to watch: one that can be read is a reason to call ``poll_message``, until it gives ``None``.

        To be asked again after that: a child that closes its channel leaves only the zygote's one.
        """
        return [source.fileno() for source in self._sources()]

    def _sources(self) -> list[Channel]:
        sources = [] if self._channel is None else [self._channel]
        return sources if self._over() else [*sources, self._server.control]

    def _over(self) -> bool:
        return self.ended is not None or self._lost is not None

    def _follow(self, deadline: float | None) -> Message | None:
        """The next message, or ``None`` when the deadline has passed; the end is an exception."""
        while True:
            # After its end, read what is there, and do not wait for a descendant that still holds the channel.
            over = self._over()
            limit = 0.0 if over else deadline
            timeout = None if limit is None else max(0.0, limit - time.monotonic())
            sources = self._sources()
            ready = wait(sources, timeout) if sources else []
            if self._channel is not None and self._channel in ready:
                try:
                    message = self.hear()
                except EOFError:
                    self.close()
                else:
                    if message is not None:
                        return message
            elif self._channel is not None and over:
                self.close()
            elif self._lost is not None:
                raise self._lost
            elif over:
                raise TaskEnded
            elif not ready:
                return None
            else:
                self._take_report()

    def _take_report(self) -> None:
        try:
            self.ended = self._server.next_report()
        except ZygoteError as error:
            self._lost = error  # raised once the child's last messages have been read

    def send(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send to the child, whose ``channel`` receives it; raises ``OSError`` when it no longer listens."""
        self.open_channel().send(message, descriptors)

    def send_fd(self, fd: int) -> None:
        """Hand the child a descriptor."""
        self.open_channel().send_fd(fd)

    def open_channel(self) -> Channel:
        """The child's channel; raises ``OSError`` when it is closed."""
        channel = self._channel
        if channel is None:
            raise BrokenPipeError("the task's process no longer listens")
        return channel

    def kill(self, grace: float) -> None:
        """Take the stacks of all its processes, then end them: SIGTERM, ``grace`` seconds, SIGKILL.

        Again while that lasts: with the shorter of both graces. After the end: nothing happens, even if another task
        runs in the same zygote by then.
        """
        self._server.order({"op": "kill", "pid": self.pid, "grace": grace})

    def close(self) -> None:
        """Forget the child's channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
