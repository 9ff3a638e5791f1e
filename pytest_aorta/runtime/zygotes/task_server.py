"""The serving part of a zygote or a branch: forks one child per task, ends and reaps all that a task leaves behind.

Orphans fall to the closest subreaper above them that still lives: those of a task to the process that serves it, and
those of a branch that was killed to the zygote, where they meet the orphans of the zygote's own task. The mark in
their environment tells them apart; only what was started with an environment of its own making counts as the zygote's.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
import traceback
from typing import Any

from pytest_aorta.runtime.zygotes import process_tags, process_tree
from pytest_aorta.runtime.zygotes.channel import Channel, Message, wait
from pytest_aorta.runtime.zygotes.task_main import task_main


class Serving:
    """At most one running task, at most one child standing by; any number of branches, in a zygote itself."""

    def __init__(self, control: Channel, order: Message, run: Any) -> None:
        self.control = control
        self.order = order
        self.run = run
        self.standby: int | None = None
        self.running: int | None = None
        #: Marks of the branches, and the channels that tell their fate, by pid.
        self.branches: dict[int, tuple[str, Channel]] = {}
        self.ended: dict[int, tuple[int, Any]] = {}
        #: Processes that outlived SIGKILL: stuck in the kernel, and nobody's any more.
        self.stuck: set[int] = set()
        self.patience = math.inf
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle orders and deaths of children until the channel closes; then end all of them. Never returns."""
        code = 1
        try:
            self.fork_standby()
            while self.step():
                pass
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # the parent has gone while we told it something
        except BaseException:
            traceback.print_exc()
        finally:
            process_tree.end_all(self.everyone, self.reap, grace=0)
            sys.stderr.flush()
            os._exit(code)

    def step(self) -> bool:
        """Wait for something to happen and see to it; whether the channel is still open."""
        ready = wait([self.control, self.wake_read])
        if self.wake_read in ready:
            self.drain_wakeups()
            self.tend()
            self.report_end()
        if self.control in ready:
            order = self.control.receive()
            if order is None:
                return False
            self.handle(order)
        return True

    def handle(self, order: Message) -> None:
        """Carry out one order of the parent."""
        if order["op"] == "taken":
            self.running, self.standby = order["pid"], None
            if not self.order["fresh"]:
                self.fork_standby()
            self.report_end()  # a short task may have ended before we learn that it has begun
        elif order["op"] == "replace":  # somebody killed it
            self.ended.pop(order["pid"], None)
            self.fork_standby()
        elif order["op"] == "branch":
            self.fork_branch(order["mark"])
        elif order["op"] == "kill" and order["pid"] == self.running:
            process_tree.request_stacks(self.task_members())
            alive = self.end_task(order["grace"])
            if self.running in alive:
                self.tell_end(returncode=None, max_rss=None, swept=[], alive=alive)

    def fork_standby(self) -> None:
        """Fork the child that the next task will run in, and hand its channel to the parent."""
        ours, theirs = Channel.pair()
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self.leave_behind()
                ours.close()
                task_main(theirs, server, self.order, self.run)
            finally:
                os._exit(70)  # only reached when task_main itself is broken
        theirs.close()
        self.standby = pid
        self.ended.pop(pid, None)  # an orphan of long ago, that had this number
        self.control.send({"type": "standby", "pid": pid}, [ours.fileno()])
        ours.close()

    def fork_branch(self, mark: str) -> None:
        """Fork another process that serves, on a channel that follows the order."""
        control_fd, fate_fd = self.control.receive_fd(), self.control.receive_fd()
        if control_fd is None or fate_fd is None:
            return  # the parent is gone, as the loop will notice
        control, fate = Channel.from_fd(control_fd), Channel.from_fd(fate_fd)
        sys.stdout.flush()
        sys.stderr.flush()
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell_fate(fate, {"error": str(error)})
            control.close()
            return
        if pid == 0:
            try:
                self.leave_behind()
                fate.close()
                branch_main(control, zygote, mark, self.order, self.run)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # only reached when branch_main itself is broken
        control.close()
        self.ended.pop(pid, None)
        self.branches[pid] = mark, fate

    def leave_behind(self) -> None:
        """In a fork: give up what is the parent's own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.wake_read)
        os.close(self.wake_write)
        self.control.close()
        for _, fate in self.branches.values():
            fate.close()

    def task_roots(self) -> list[int]:
        """The running task's process and every orphan that was adopted from it."""
        others = {self.standby, *self.branches, *self.stuck}
        roots = [pid for pid in process_tree.children_of_self() if pid not in others]
        if of_branches := [mark for mark, _ in self.branches.values()]:
            roots = [pid for pid in roots if pid == self.running or not process_tags.bears(pid, *of_branches)]
        return roots

    def task_members(self) -> list[int]:
        """The running task's processes, all of them."""
        return process_tree.tree(self.task_roots())

    def everyone(self) -> list[int]:
        """All descendants."""
        return process_tree.tree(process_tree.children_of_self())

    def end_task(self, grace: float) -> list[int]:
        """End the running task and all its descendants; report those that cannot be ended."""
        self.patience = time.monotonic() + grace
        return process_tree.end_all(self.task_members, self.tend, grace, hurry=self.hurry)

    def hurry(self) -> bool:
        """During a grace: hear the parent, and say whether there is a reason to cut the grace short."""
        while self.control.poll():
            order = self.control.receive()
            if order is None:
                return True  # nobody is left who has asked for patience
            if order["op"] == "kill":
                self.patience = min(self.patience, time.monotonic() + order["grace"])
            else:  # a branch, as no task can be submitted meanwhile
                self.handle(order)
        return time.monotonic() > self.patience

    def drain_wakeups(self) -> None:
        """Empty the pipe that SIGCHLD writes to."""
        try:
            while os.read(self.wake_read, 512):
                pass
        except BlockingIOError:
            pass

    def reap(self) -> None:
        """Collect every child that has ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.ended[pid] = (os.waitstatus_to_exitcode(status), usage)
            self.stuck.discard(pid)

    def tend(self) -> None:
        """Collect every child that has ended, and bury the branches among them."""
        self.reap()
        for pid in self.branches.keys() & self.ended.keys():
            self.bury(pid)

    def bury(self, pid: int) -> None:
        """End what a dead branch has left, and tell the parent."""
        mark, fate = self.branches[pid]
        returncode, _ = self.ended.pop(pid)
        if returncode != 0:  # it has not done so itself
            process_tree.end_all(lambda: process_tags.bearers(mark), self.reap, grace=0)
        del self.branches[pid]
        if self.running is None:  # then whatever bears no mark can only be the branch's
            process_tree.end_all(self.task_members, self.reap, grace=0)
        self.tell_fate(fate, {"returncode": returncode})

    def tell_fate(self, fate: Channel, message: Message) -> None:
        """Tell whoever waits for a branch what became of it."""
        with contextlib.suppress(OSError):
            fate.send(message)
        fate.close()

    def report_end(self) -> None:
        """When the running task's process has ended: sweep what it left behind and tell the parent."""
        if self.running is not None and self.running in self.ended:
            returncode, usage = self.ended[self.running]
            left = self.task_roots()
            swept = [process_tree.describe(pid) for pid in process_tree.tree(left)] if left else []
            alive = self.end_task(grace=0) if left else []
            self.tell_end(returncode, usage.ru_maxrss * 1024, swept, alive)

    def tell_end(self, returncode: int | None, max_rss: int | None, swept: list[str], alive: list[int]) -> None:
        """Tell the parent that the running task is over; what is still ``alive`` will not be waited for."""
        message = {
            "type": "ended",
            "returncode": returncode,
            "max_rss_bytes": max_rss,
            "swept": swept,
            "unkillable": [process_tree.describe_state(pid) for pid in alive],
            "at": time.time(),
        }
        self.stuck.update(alive)
        self.running = None
        kept = {self.standby, *self.branches}
        self.ended = {pid: end for pid, end in self.ended.items() if pid in kept}
        self.control.send(message)


def branch_main(control: Channel, zygote: int, mark: str, order: Message, run: Any) -> None:
    """Serve as a branch of process ``zygote``; never returns."""
    process_tree.die_with_parent(zygote)
    os.setsid()
    process_tree.become_subreaper()
    process_tags.change_own(mark)
    with contextlib.suppress(OSError):  # the loop will notice
        control.send({"type": "branch", "pid": os.getpid()})
    Serving(control, order, run).serve()
