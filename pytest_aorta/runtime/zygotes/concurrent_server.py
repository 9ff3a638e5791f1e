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
from collections.abc import Callable, Iterable
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
        kill_at: moment of ``time.monotonic()`` from which on it, or what it has left, is killed.
        asked: the child and its descendants, as far as they were asked to end and have until then to do so.
        end: exit status and resources, once the child was reaped.
        swept: names of what it has left, by pid.
    """

    pid: int
    fate: Channel
    deaf: bool = False
    kill_at: float = math.inf
    asked: set[int] = field(default_factory=set)
    end: tuple[int, struct_rusage] | None = None
    swept: dict[int, str] = field(default_factory=dict)


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
        #: Processes that are being killed, with the moment of their first SIGKILL.
        self.killed: dict[int, float] = {}
        #: Processes that outlived SIGKILL; they are not waited for any more.
        self.stuck: set[int] = set()

    def step(self) -> bool:
        """Wait for something to happen and handle it; whether the channel is still open."""
        tasks = list(self.tasks.values())
        fates = [task.fate for task in tasks if not task.deaf]
        ready = wait([self.control, self.wake_read, *self.owners(), *fates], self.timeout())
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

    def timeout(self) -> float | None:
        """Seconds after which there is something to do without an event."""
        if self.killed:
            return LOOK
        moment = min((task.kill_at for task in self.tasks.values()), default=math.inf)
        return None if moment == math.inf else max(0.0, moment - time.monotonic())

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
            task.asked = set(process_tree.tree([task.pid]))
            process_tree.send_signal(task.asked, signal.SIGTERM)
            process_tree.send_signal(task.asked, signal.SIGCONT)  # a stopped process would not see SIGTERM
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
                if task.kill_at == math.inf:  # by itself; otherwise, what it has left has the rest of the grace
                    task.kill_at = time.monotonic()

    def tend(self) -> None:
        """Collect what has ended, kill what is due, and report tasks of which nothing is left.

        Which of two tasks that end at the same time has left an orphan is not known: both reports wait for its end. Nor
        does it have a grace then, unless it was asked to end with one of them.
        """
        self.reap()
        now = time.monotonic()
        tasks = list(self.tasks.values())
        ended = [task for task in tasks if task.end is not None]
        orphans = self.orphans() if ended else set()
        loose = orphans.difference(*(task.asked for task in tasks if now < task.kill_at))
        left = process_tree.tree(loose)
        due = process_tree.tree(task.pid for task in tasks if task.end is None and now >= task.kill_at)
        if any(now >= task.kill_at for task in ended):
            due += left
        process_tree.send_signal(due, signal.SIGKILL)
        self.killed = {pid: self.killed.get(pid, now) for pid in due}
        outlived = {pid for pid, first in self.killed.items() if now > first + LIMIT}
        self.stuck |= outlived
        for task in tasks:
            if task.end is None:
                if task.pid in outlived:
                    self.report_end(task, outlived.intersection(process_tree.tree([task.pid])))
                continue
            its = left if now >= task.kill_at else [*left, *(orphans & task.asked)]
            task.swept.update((pid, process_tree.describe(pid)) for pid in its if pid not in task.swept)
            if outlived.issuperset(its):
                self.report_end(task, outlived.intersection(its))

    def orphans(self) -> set[int]:
        """What has fallen to this process: a child that lives adopts its own."""
        living = {task.pid for task in self.tasks.values() if task.end is None}
        return set(process_tree.children_of_self()) - living - self.stuck

    def report_end(self, task: RunningTask, alive: Iterable[int]) -> None:
        """A task is over; what is still ``alive`` will not be waited for."""
        returncode, usage = task.end or (None, None)
        report: TaskEnd = {
            "type": "ended",
            "returncode": returncode,
            "max_rss_bytes": None if usage is None else usage.ru_maxrss * 1024,
            "swept": list(task.swept.values()),
            "unkillable": [process_tree.describe_state(pid) for pid in alive],
            "at": time.time(),
        }
        del self.tasks[task.pid]
        _report(task.fate, report)
        task.fate.close()


def _report(fate: Channel, report: ForkReport | TaskEnd) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, as the loop will notice
        fate.send(report)
