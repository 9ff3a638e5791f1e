"""The link to a process of this host that was forked from a zygote and lives as long as its worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pytest_aorta.runtime.endpoints.outbox import Outbox
from pytest_aorta.runtime.endpoints.protocol import Report
from pytest_aorta.runtime.zygote import TaskEnded, ZygoteError, exit_text

if TYPE_CHECKING:
    from pytest_aorta.runtime.channel import Message
    from pytest_aorta.runtime.endpoints.process_endpoint import ProcessEndpoint
    from pytest_aorta.runtime.engine.event_loop import EventLoop
    from pytest_aorta.runtime.zygote import Task

#: Seconds that a process may live on after it has closed its channel; usually it is just about to end.
MUTE = 2.0


class ZygoteLink:
    """Follows a zygote's task on the thread of an event loop."""

    def __init__(self, endpoint: ProcessEndpoint, loop: EventLoop, task: Task) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._task = task
        self._outbox = Outbox(task.open_channel(), loop)
        self._watched: list[int] = []
        self._mute = False
        self._ended = threading.Event()
        self._over = False

    def start(self) -> None:
        """Begin to listen."""
        self._watch(self._task.filenos())

    def _watch(self, descriptors: list[int]) -> None:
        if descriptors != self._watched:
            for fd in self._watched:
                self._loop.unwatch(fd)
            self._watched = descriptors
            for number, fd in enumerate(descriptors):
                # The child's own channel comes first, as long as it is open; the other one reports its end.
                childs = number == 0 and len(descriptors) > 1
                self._loop.watch(fd, self._hear if childs else self._look)

    def _hear(self) -> None:
        """The child has said something."""
        if self._over:
            return
        try:
            message = self._task.hear()
        except EOFError:
            self._task.close()  # nothing after that can be trusted
            self._look()
            return
        if message is not None:
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if "op" not in message:
            return
        self._endpoint.received(cast(Report, message), self)

    def _look(self) -> None:
        """Something has happened to the child. On a thread: finding out what may take as long as ending its family."""
        if self._ended.is_set():
            return
        # What follows may close the child's channel, whose number may then be another thread's new one.
        spoke = len(self._watched) > 1
        self._watch([])
        threading.Thread(target=self._find_out, args=(spoke,), name="aorta-look", daemon=True).start()

    def _find_out(self, spoke: bool) -> None:
        try:
            while (message := self._task.poll_message()) is not None:
                self._deliver(message)
        except TaskEnded:
            assert self._task.ended is not None
            code = self._task.ended.returncode
            how = "outlived SIGKILL" if code is None else f"died with {exit_text(code)}"
            why = f"has sent a message that cannot be read ({self._task.garbage})" if self._task.garbage else ""
            why = why or ("has closed its channel" if self._mute else "")
            self._end(f"its process {why}{', and ' if why else ''}{how}")
            return
        except ZygoteError as error:
            self._end(str(error))
            return
        self._watch(self._task.filenos())
        if spoke and len(self._watched) == 1:
            # Its channel is closed in both directions, but it may live on.
            patience = 0.0 if self._task.garbage else MUTE
            self._loop.call_at(time.monotonic() + patience, self._end_mute)

    def _end_mute(self) -> None:
        if not self._ended.is_set():
            self._mute = True
            self.kill(0.0)

    def _end(self, how: str) -> None:
        self._watch([])
        self._over = True
        self._ended.set()
        self._outbox.close()
        self._task.close()
        self._endpoint.died(how, self)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; raises ``OSError`` when the process no longer listens."""
        self._outbox.send_text(json.dumps(message))

    def send_text(self, text: str) -> None:
        """Send an order that is JSON already."""
        self._outbox.send_text(text)

    def send_fd(self, fd: int) -> None:
        """Send a descriptor."""
        self._outbox.send_fd(fd)

    def kill(self, grace: float) -> None:
        """SIGTERM, ``grace`` seconds, SIGKILL; to all its descendants, too."""
        self._task.kill(grace)

    def close(self, grace: float) -> None:
        """Ask it to end; when it has not after ``grace`` seconds, end it."""
        try:
            self.send({"op": "close"})
        except OSError:
            grace = 0.0  # it does not listen any more
        if not self._ended.wait(grace):
            self._task.kill(0.0)
            self._ended.wait(grace or 5.0)
