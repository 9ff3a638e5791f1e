"""The parent's side of a process that serves tasks: what a zygote and its branches have in common."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pytest_aorta.runtime.zygotes import process_tags, process_tree
from pytest_aorta.runtime.zygotes.channel import Channel
from pytest_aorta.runtime.zygotes.task import Task
from pytest_aorta.runtime.zygotes.task_messages import ChildTask, ServerOrder, Standby, TaskEnd
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec

#: Seconds that an abandoned task may take to end: longer than its zygote tries.
_ABANDON = 15.0


def child_task(
    payload: Any,
    stdout: Path | None,
    stderr: Path | None,
    stacks: Path | None,
    cores: Sequence[int] | None,
    descriptors: Sequence[int],
    *,
    hold: bool = False,
) -> ChildTask:
    """The message to the child; the descriptors follow it."""
    return {
        "payload": payload,
        "hold": hold,
        "stdout": None if stdout is None else str(stdout),
        "stderr": None if stderr is None else str(stderr),
        "stacks": None if stacks is None else str(stacks),
        "cores": None if cores is None else list(cores),
        "descriptors": len(descriptors),
    }


class Server(ABC):
    """Serves one task at a time. One thread uses it at a time; ``end`` and ``order`` may be called by any.

    Attributes:
        spec: what it was started from.
        info: what its preparation returned.
        against_forking: why it cannot serve tasks: it may not be forked.
        control: carries orders to it, and reports from it.
        tag: of it and its descendants; see ``process_tags``.
    """

    spec: ZygoteSpec
    info: dict[str, Any]
    against_forking: list[str]
    control: Channel
    tag: str

    def __init__(self) -> None:
        self.announced: list[tuple[int, Channel]] = []
        self._task: Task | None = None
        self._ending = False

    @abstractmethod
    def wait_ready(self) -> None:
        """Block until it can serve; raises ``ZygoteError``."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether the process still runs."""

    @abstractmethod
    def death(self) -> ZygoteError:
        """The error to raise when the control channel has closed; ends what the process can no longer end."""

    @abstractmethod
    def end(self, grace: float = 10.0) -> None:
        """End the process and whatever it runs, from any thread; a thread that uses it gets ``ZygoteError``."""

    def submit(
        self,
        payload: Any,
        *,
        stdout: Path | None,
        stderr: Path | None,
        stacks: Path | None,
        cores: Sequence[int] | None = None,
        descriptors: Sequence[int] = (),
        hold: bool = False,
    ) -> Task:
        """Hand a task to the child that stands by.

        Args:
            payload: JSON value for the task's function.
            stdout: a file for everything that is written there; ``None`` leaves it to the zygote's own log.
            stderr: the same.
            stacks: a file for the stacks that ``Task.kill`` takes; ``None`` for no stacks.
            cores: cores that the child may run on; ``None`` for those of the zygote.
            descriptors: open files that the child keeps as long as it lives, locked ones for instance.
            hold: of a ``fresh`` server, whose child prepares itself: have it do only that, until ``resume``.

        Raises:
            ZygoteError: the zygote is gone.
        """
        self.wait_ready()
        order = child_task(payload, stdout, stderr, stacks, cores, descriptors, hold=hold)
        for _ in range(3):  # a standby child that was killed is replaced
            pid, channel = self.take_standby()
            try:
                channel.send(order, descriptors)
            except OSError:
                channel.close()
                self.order({"op": "replace", "pid": pid})
                continue
            self.order({"op": "taken", "pid": pid})
            self._task = Task(self, channel, pid)
            return self._task
        raise ZygoteError("its child processes end before they receive a task")

    def take_standby(self) -> tuple[int, Channel]:
        """The child that stands by: its pid, and the channel to it."""
        while not self.announced:
            self.next_report()
        return self.announced.pop(0)

    def next_report(self) -> TaskEnd | None:
        """Read the control channel: the end of the task, or ``None`` for an announced child, which is kept."""
        report = cast("Standby | TaskEnd | None", self.control.receive())
        if report is None:
            raise self.death()
        if report["type"] == "standby":
            fd = self.control.receive_fd()
            if fd is None:
                raise self.death()
            self.announced.append((report["pid"], Channel.from_fd(fd)))
            return None
        self._task = None
        return report

    def order(self, order: ServerOrder, descriptors: Sequence[int] = ()) -> None:
        """Send an order; that the process is dead is noticed where its reports are read."""
        with contextlib.suppress(OSError):
            self.control.send(order, descriptors)

    def abandon_task(self) -> bool:
        """End the task that still runs, if one does; whether another one can be submitted."""
        task = self._task
        if task is None:
            return True
        task.kill(grace=0.0)
        try:
            while task.next_message(time.monotonic() + _ABANDON) is not None:
                pass
        except (TimeoutError, ZygoteError):
            return False
        finally:
            task.close()
        return True

    def sweep(self) -> None:
        """End every process that was started under this server and still runs."""
        process_tree.end_all(lambda: process_tags.tagged_processes(*self._tags()), lambda: None, grace=0)

    def _tags(self) -> list[str]:
        return [self.tag]

    def hang_up(self) -> None:
        """Have it end soon, from any thread."""
        self._ending = True
        self.control.hang_up()

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless. For the thread that uses it, or when none does."""
        self.end(grace)
        self.control.close()
        for _, channel in self.announced:
            channel.close()
        self.announced.clear()
        self._task = None
