"""The serving part of a zygote or a branch: forks one child per task, ends and reaps all that a task leaves behind."""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from collections.abc import Callable
from typing import Any, cast

from pytest_aorta.runtime.zygotes import process_tags, process_tree
from pytest_aorta.runtime.zygotes.channel import Channel, wait
from pytest_aorta.runtime.zygotes.extension import extend
from pytest_aorta.runtime.zygotes.fork_server import ForkServer
from pytest_aorta.runtime.zygotes.server_children import ServerChildren, report_fate
from pytest_aorta.runtime.zygotes.task_main import task_main
from pytest_aorta.runtime.zygotes.task_messages import PrepareOrder, ServerOrder, Standby, TaskEnd


class TaskServer(ForkServer):
    """Serves one task at a time, in a child that stands by; and forks branches."""

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
        self.children = ServerChildren()
        #: The moment of ``time.monotonic()`` at which the grace of a task that is being ended is over.
        self.patience = math.inf

    def begin(self) -> None:
        """Fork the first child, ahead of its task."""
        self.fork_standby()

    def reap(self) -> None:
        """Collect every child that has ended."""
        self.children.reap()

    def step(self) -> bool:
        """Wait for something to happen and handle it; whether the channel is still open."""
        ready = wait([self.control, self.wake_read, *self.owners()])
        if self.owner in ready:
            return False
        if self.wake_read in ready:
            self.drain_wakeups()
            self.children.tend()
            self.report_end()
        if self.control in ready:
            order = self.control.receive()
            if order is None:
                return False
            self.handle(cast(ServerOrder, order))
        return True

    def handle(self, order: ServerOrder) -> None:
        """Carry out one order."""
        children = self.children
        if order["op"] == "taken":
            children.running, children.standby = order["pid"], None
            if not self.prepared["fresh"]:
                self.fork_standby()
            self.report_end()  # a short task may have ended before the order came
        elif order["op"] == "replace":  # it was killed
            children.ended.pop(order["pid"], None)
            self.fork_standby()
        elif order["op"] == "branch":
            self.fork_branch(order["tag"], order["extension"])
        elif order["op"] == "kill" and order["pid"] == children.running:
            process_tree.request_stacks(children.task_members())
            alive = self.end_task(order["grace"])
            if children.running in alive:
                self.send_end(returncode=None, max_rss=None, swept=[], alive=alive)

    # Forks

    def fork_standby(self) -> None:
        """Fork the child that the next task will run in, and hand its channel to the parent."""
        ours, theirs = Channel.pair()
        server = os.getpid()
        pid = self.fork()
        if pid == 0:
            try:
                self.leave_behind()
                ours.close()
                task_main(theirs, server, self.prepared, self.run)
            finally:
                os._exit(70)  # only reached when task_main itself is broken
        theirs.close()
        self.children.standby = pid
        self.children.ended.pop(pid, None)  # an orphan of long ago, that had this number
        report: Standby = {"type": "standby", "pid": pid}
        self.control.send(report, [ours.fileno()])
        ours.close()

    def fork_branch(self, tag: str, extension: Any) -> None:
        """Fork another process that serves, on a channel that follows the order."""
        control_fd, fate_fd = self.control.receive_fd(), self.control.receive_fd()
        if control_fd is None or fate_fd is None:
            return  # the parent is gone, as the loop will notice
        control, fate = Channel.from_fd(control_fd), Channel.from_fd(fate_fd)
        zygote = os.getpid()
        try:
            pid = self.fork()
        except OSError as error:
            report_fate(fate, {"error": str(error)})
            control.close()
            return
        if pid == 0:
            try:
                self.leave_behind()
                fate.close()
                branch_main(control, zygote, tag, self.prepared, self.run, extension)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # only reached when branch_main itself is broken
        control.close()
        self.children.ended.pop(pid, None)
        self.children.branches[pid] = tag, fate

    def leave_behind(self) -> None:
        """In a fork: give up what is the parent's own."""
        super().leave_behind()
        for _, fate in self.children.branches.values():
            fate.close()

    # The end of a task

    def end_task(self, grace: float) -> list[int]:
        """End the running task and all its descendants; report those that cannot be ended."""
        self.patience = time.monotonic() + grace
        return process_tree.end_all(self.children.task_members, self.children.tend, grace, hurry=self.hurry)

    def hurry(self) -> bool:
        """During a grace: handle orders, and say whether there is a reason to cut the grace short."""
        while self.control.poll():
            order = cast("ServerOrder | None", self.control.receive())
            if order is None:
                return True  # the parent, which has asked for the grace, is gone
            if order["op"] == "kill":
                self.patience = min(self.patience, time.monotonic() + order["grace"])
            else:  # a branch, as no task can be submitted meanwhile
                self.handle(order)
        return time.monotonic() > self.patience or bool(wait(self.owners(), 0.0))

    def report_end(self) -> None:
        """When the running task's process has ended: sweep what it left behind and report to the parent."""
        children = self.children
        if children.running is not None and children.running in children.ended:
            returncode, usage = children.ended[children.running]
            left = children.task_roots()
            swept = [process_tree.describe(pid) for pid in process_tree.tree(left)] if left else []
            alive = self.end_task(grace=0) if left else []
            self.send_end(returncode, usage.ru_maxrss * 1024, swept, alive)

    def send_end(self, returncode: int | None, max_rss: int | None, swept: list[str], alive: list[int]) -> None:
        """Report that the running task is over; what is still ``alive`` will not be waited for."""
        report: TaskEnd = {
            "type": "ended",
            "returncode": returncode,
            "max_rss_bytes": max_rss,
            "swept": swept,
            "unkillable": [process_tree.describe_state(pid) for pid in alive],
            "at": time.time(),
        }
        self.children.forget_task(alive)
        self.control.send(report)


def branch_main(
    control: Channel,
    zygote: int,
    tag: str,
    prepared: PrepareOrder,
    run: Callable[..., Any] | None,
    extension: Any,
) -> None:
    """Serve as a branch of process ``zygote``; never returns."""
    process_tree.die_with_parent(zygote)
    os.setsid()
    process_tree.become_subreaper()
    process_tags.change_tag(tag)
    with contextlib.suppress(OSError):  # the loop will notice
        control.send({"type": "branch", "pid": os.getpid()})
    if extension is not None:
        extend(control, prepared["extend"], extension)
    TaskServer(control, prepared, run).serve()
