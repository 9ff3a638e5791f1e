"""The serving part of a zygote whose tasks run at the same time: forks a child when a task comes, and one process only.

Each child adopts its own orphans (``PR_SET_CHILD_SUBREAPER``), so those that fall to the zygote were left behind by
children that have ended, and are ended in turn. Nothing here blocks: while one child has its grace, or outlives
SIGKILL, others are forked, ended and reported.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pytest_aorta.runtime.zygotes import process_tree
from pytest_aorta.runtime.zygotes.channel import Channel, wait
from pytest_aorta.runtime.zygotes.fork_server import ForkServer
from pytest_aorta.runtime.zygotes.task_main import task_main
from pytest_aorta.runtime.zygotes.task_messages import ForkReport, KillOrder, PrepareOrder, TaskEnd

if TYPE_CHECKING:
    from resource import struct_rusage

#: Seconds after the first SIGKILL after which survivors (uninterruptible sleep) are given up.
LIMIT = 5.0

#: Seconds between two looks at what was sent SIGKILL: it may have forked meanwhile.
LOOK = 0.005


@dataclass(eq=False)
class RunningTask:
    """A child, and what is known of its end.

    Attributes:
        pid: of the child.
        fate: to the parent: orders to kill come from there, the report of its end goes there.
        deaf: whether the parent has closed its end.
        end: exit status and resources, once the child was reaped.
        left: its orphans that have not ended, known from then on.
        swept: names of all that it has left.
        kill_at: moment of ``time.monotonic()`` from which on it, or what it has left, is killed.
        give_up: moment at which what was killed is not waited for any more.
    """

    pid: int
    fate: Channel
    deaf: bool = False
    end: tuple[int, struct_rusage] | None = None
    left: set[int] = field(default_factory=set)
    swept: list[str] = field(default_factory=list)
    kill_at: float = math.inf
    give_up: float = math.inf

    def members(self) -> list[int]:
        """All processes that have to go before its end is reported."""
        return process_tree.tree([self.pid] if self.end is None else self.left)

    def next_look(self) -> float:
        """Moment at which there is something to do without an event."""
        return self.kill_at if self.give_up == math.inf else time.monotonic() + LOOK


class ConcurrentServer(ForkServer):
    """Runs any number of tasks, each in a child of its own."""

    def __init__(
        self,
        control: Channel,
        prepared: PrepareOrder,
        run: Callable[..., Any] | None,
        *,
        parent: int | None = None,
        owner: int | None = None,
    ) -> None:
        super().__init__(control, prepared, run, parent=parent, owner=owner)
        self.tasks: dict[int, RunningTask] = {}
        #: Those whose child was reaped, in that order.
        self.ended: list[RunningTask] = []
        #: Processes that outlived SIGKILL; they are not waited for any more.
        self.stuck: set[int] = set()

    def step(self) -> bool:
        """Wait for something to happen and handle it; whether the channel is still open."""
        tasks = list(self.tasks.values())
        moment = min((task.next_look() for task in tasks), default=math.inf)
        timeout = None if moment == math.inf else max(0.0, moment - time.monotonic())
        fates = [task.fate for task in tasks if not task.deaf]
        ready = wait([self.control, self.wake_read, *self.owners(), *fates], timeout)
        if self.owner in ready:
            return False
        if self.wake_read in ready:
            self.drain_wakeups()
        for task in tasks:
            if task.fate in ready:
                self.hear(task)
        self.tend()
        if self.control in ready:
            if self.control.receive() is None:
                return False
            self.fork_task()
        return True

    # The beginning of a task

    def fork_task(self) -> None:
        """Fork a child for a task that will come on a channel which follows the order, as does that of its fate."""
        channel_fd, fate_fd = self.control.receive_fd(), self.control.receive_fd()
        if channel_fd is None or fate_fd is None:
            return  # the parent is gone, as the loop will notice
        channel, fate = Channel.from_fd(channel_fd), Channel.from_fd(fate_fd)
        zygote = os.getpid()
        try:
            pid = self.fork()
        except OSError as error:
            _report(fate, {"error": str(error)})
            channel.close()
            fate.close()
            return
        if pid == 0:
            try:
                self.leave_behind()
                fate.close()
                process_tree.become_subreaper()
                task_main(channel, zygote, self.prepared, self.run)
            finally:
                os._exit(70)  # only reached when task_main itself is broken
        channel.close()
        self.tasks[pid] = RunningTask(pid, fate)
        _report(fate, {"pid": pid})

    def leave_behind(self) -> None:
        """In a fork: give up what is the parent's own."""
        super().leave_behind()
        for task in self.tasks.values():
            task.fate.close()

    # The end of a task

    def hear(self, task: RunningTask) -> None:
        """The parent wants a task to end, or has lost interest in it. SIGTERM at once, SIGKILL after the grace."""
        order = cast("KillOrder | None", task.fate.receive())
        task.deaf = order is None
        grace = 0.0 if order is None else order["grace"]
        if grace > 0 and task.kill_at == math.inf:
            members = task.members()
            process_tree.send_signal(members, signal.SIGTERM)
            process_tree.send_signal(members, signal.SIGCONT)  # a stopped process would not see SIGTERM
        task.kill_at = min(task.kill_at, time.monotonic() + grace)

    def reap(self) -> None:
        """Collect every child that has ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.stuck.discard(pid)
            task = self.tasks.get(pid)
            if task is not None:
                task.end = os.waitstatus_to_exitcode(status), usage
                self.ended.append(task)
                if task.kill_at == math.inf:  # by itself; otherwise, what it has left has the rest of the grace
                    task.kill_at = time.monotonic()

    def tend(self) -> None:
        """Collect what has ended, kill what is due, and report tasks of which nothing is left."""
        self.reap()
        self.claim()
        for task in list(self.tasks.values()):
            now = time.monotonic()
            if task.end is None and now < task.kill_at:
                continue
            members = task.members()
            if not members or now > task.give_up:
                self.report_end(task, members)
            elif now >= task.kill_at:
                task.give_up = min(task.give_up, now + LIMIT)
                process_tree.send_signal(members, signal.SIGKILL)

    def claim(self) -> None:
        """Find out who has left the orphans behind that have come: of several, the one that has ended last."""
        if not self.ended:
            return
        living = {task.pid for task in self.tasks.values() if task.end is None}
        orphans = set(process_tree.children_of_self()) - living - self.stuck
        for task in self.ended:
            task.left &= orphans
        new = orphans.difference(*(task.left for task in self.ended))
        self.ended[-1].left |= new
        self.ended[-1].swept += [process_tree.describe(pid) for pid in process_tree.tree(new)]

    def report_end(self, task: RunningTask, alive: list[int]) -> None:
        """A task is over; what is still ``alive`` will not be waited for."""
        returncode, usage = task.end or (None, None)
        report: TaskEnd = {
            "type": "ended",
            "returncode": returncode,
            "max_rss_bytes": None if usage is None else usage.ru_maxrss * 1024,
            "swept": task.swept,
            "unkillable": [process_tree.describe_state(pid) for pid in alive],
            "at": time.time(),
        }
        self.stuck.update(alive)
        del self.tasks[task.pid]
        if task in self.ended:
            self.ended.remove(task)
        _report(task.fate, report)
        task.fate.close()


def _report(fate: Channel, report: ForkReport | TaskEnd) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, as the loop will notice
        fate.send(report)
