"""The zygote process: prepare once, fork one child per task, leave nothing of a task behind.

Runs as ``python -c BOOTSTRAP <fd> <parent>``, or behind a launcher prefix by ``zygote_entry.py``. It starts no threads,
so its forks are safe, and it runs any number of tasks at the same time. Zygote and children are subreapers: what
escapes from a task stays below the task's process, and falls to the zygote when that process ends. The zygote ends it
then. Nothing here blocks: while one task has its grace, or outlives SIGKILL, others are forked, ended and reported.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pytest_aorta._version import __version__
from pytest_aorta.common.import_target import import_target
from pytest_aorta.common.texts import describe_exception
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.channel import Channel, Message, wait

if TYPE_CHECKING:
    from resource import struct_rusage

T = TypeVar("T")

#: Seconds after the first SIGKILL after which survivors (uninterruptible sleep) are given up.
LIMIT = 5.0

#: Seconds between two looks at what was sent SIGKILL: it may have forked meanwhile.
LOOK = 0.005


#: ``sys.path`` as the interpreter has made it.
own_path: list[str] = []


def main(fd: int, parent: int) -> None:
    """Prepare, then serve until the other end of ``fd`` closes; never returns."""
    # Until the loop below watches the channel, only the kernel knows that the parent has gone.
    beside = os.getppid() == parent  # no launcher stays in between
    if beside:
        process_tree.die_with_parent(parent)
    process_tree.become_subreaper()
    control = Channel.from_fd(fd)
    order = control.receive()
    if order is None:
        os._exit(1)
    owner = control.receive_fd() if order["owner"] else None
    if not beside:
        control.kill_when_closed(True)
    own_path[:] = sys.path
    sys.path.extend(path for path in order["sys_path"] if path not in sys.path)
    faulthandler.enable()  # the stack of a crash while importing goes where the zygote's output goes
    stacks = os.dup(2)
    faulthandler.register(process_tree.STACK_SIGNAL, file=stacks, all_threads=True)  # ... and that of a hang, too
    control.send({"type": "preparing"})
    info, against, run = {}, [], None
    try:
        if not order["fresh"]:
            info = prepare(order, control.send)
            against = process_tree.reasons_against_forking()
            run = import_target(order["run"])
    except BaseException as error:
        control.send({"type": "failed", "error": describe_exception(error)})
        os._exit(0)
    faulthandler.unregister(process_tree.STACK_SIGNAL)  # tasks have files of their own, or give no stacks
    os.close(stacks)
    gc.collect()
    gc.freeze()
    # Before this process reports that it is ready: the thread that has started it may end then, which the kernel would
    # take for the parent's end.
    process_tree.die_with_parent(None)
    if not beside:
        control.kill_when_closed(False)
    control.send({"type": "ready", "info": info, "against_forking": against, "version": __version__})
    if against:
        os._exit(0)
    ForkServer(control, order, run, owner).serve()


def prepare(order: Message, report: Callable[[Mapping[str, Any]], object]) -> Any:
    """Load, then prepare; what ``ZygoteSpec.prepare`` returns. ``report`` receives when the loading begins and ends.

    Our own imports are not part of it: the parent limits its time.
    """
    prepare_it = import_target(order["prepare"])
    if order["load"] is not None:
        load = import_target(order["load"])
        report({"type": "loading"})
        start = time.monotonic()
        load(order["argument"])
        report({"type": "loaded", "sec": time.monotonic() - start})
    return prepare_it(order["argument"])


@dataclass(eq=False)
class RunningTask:
    """A child, and what is known of its end.

    Attributes:
        pid: of the child.
        fate: to the parent: orders to kill come from there, the report of its end goes there.
        deaf: whether the parent has closed its end.
        grace: seconds between SIGTERM and SIGKILL, once its end was ordered.
        dumping: the process that asks it for its stacks, while that lasts; SIGTERM comes afterwards.
        kill_at: moment of ``time.monotonic()`` from which on it, or what it has left, is killed.
        asked: the child and its descendants when its end was ordered; they have until then to end.
        end: exit status and resources, once the child was reaped.
        swept: names of what it has left, by pid.
    """

    pid: int
    fate: Channel
    deaf: bool = False
    grace: float = math.inf
    dumping: int | None = None
    kill_at: float = math.inf
    asked: set[int] = field(default_factory=set)
    end: tuple[int, struct_rusage] | None = None
    swept: dict[int, str] = field(default_factory=dict)


class ForkServer:
    def __init__(
        self,
        control: Channel,
        order: Message,
        run: Callable[..., Any] | None,
        owner: int | None = None,
    ) -> None:
        self.control = control
        self.order = order
        self.run = run
        self.owners = set() if owner is None else {owner}
        self.tasks: dict[int, RunningTask] = {}
        #: A child that was forked ahead, and where it waits for the channel of its task.
        self.standby: tuple[int, Channel] | None = None
        #: Processes that are being killed, with the moment of their first SIGKILL.
        self.killed: dict[int, float] = {}
        #: Processes that outlived SIGKILL; they are not waited for any more.
        self.stuck: set[int] = set()
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.handlers = process_tree.disregard(process_tree.TERMINATIONS)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle orders and deaths of children until the channel closes; then end all of them. Never returns."""
        code = 1
        try:
            while self.step():
                pass
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # the parent has gone while a report was sent
        except BaseException:
            traceback.print_exc()
        finally:
            process_tree.end_all(lambda: process_tree.tree(process_tree.children_of_self()), self.reap, grace=0)
            sys.stderr.flush()
            os._exit(code)

    def step(self) -> bool:
        """Wait for something to happen and handle it; whether the channel is still open."""
        tasks = list(self.tasks.values())
        fates = [task.fate for task in tasks if not task.deaf]
        due = min([task.kill_at for task in tasks], default=math.inf)
        limit = LOOK if self.killed else None if due == math.inf else max(0.0, due - time.monotonic())
        ready = wait([self.control, self.wake_read, *self.owners, *fates], limit)
        if not self.owners.isdisjoint(ready):
            return False
        if self.wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.wake_read, 512):
                    pass
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
        """Give a task to the child that stands by; without one, one is forked, before the descriptors are here."""
        error = ""
        if self.standby is None:
            try:
                self.standby = self.stand_by()
            except OSError as failed:
                error = str(failed)
        channel_fd, fate_fd = self.control.receive_fd(), self.control.receive_fd()
        if channel_fd is None or fate_fd is None:
            return  # the parent is gone, as the loop will notice
        fate = Channel.from_fd(fate_fd)
        with contextlib.closing(Channel.from_fd(channel_fd)):
            if self.standby is None:
                _report(fate, {"type": "unforked", "error": error})
                fate.close()
                return
            (pid, there), self.standby = self.standby, None
            with contextlib.suppress(OSError), contextlib.closing(there):  # it was killed, as its end will say
                there.send_fd(channel_fd)
        self.tasks[pid] = RunningTask(pid, fate)
        _report(fate, {"type": "forked", "pid": pid})
        if self.order["rehearse"] is not None:
            with contextlib.suppress(OSError):
                self.standby = self.stand_by()

    def stand_by(self) -> tuple[int, Channel]:
        """A child that waits for a task: its pid, and where it takes the channel of the task."""
        there, its = Channel.pair()
        zygote = os.getpid()
        with contextlib.closing(its):
            try:
                pid = self.fork()
            except OSError:
                there.close()
                raise
            if pid == 0:
                try:
                    self.leave_behind()
                    there.close()
                    process_tree.become_subreaper()
                    task_main(its, zygote, self.order, self.run)
                finally:
                    os._exit(70)  # only reached when task_main itself is broken
        return pid, there

    def fork(self) -> int:
        """``os.fork`` of a process whose output is flushed, so that the child does not write it once more."""
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork()

    def leave_behind(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        os.close(self.wake_read)
        os.close(self.wake_write)
        self.control.close()
        for owner in self.owners:
            os.close(owner)
        for task in self.tasks.values():
            task.fate.close()
        if self.standby is not None:
            self.standby[1].close()

    # The end of a task

    def hear(self, task: RunningTask) -> None:
        """The parent wants a task to end, or has lost interest in it: its stacks, SIGTERM, SIGKILL after the grace."""
        order = task.fate.receive()
        task.deaf = order is None
        grace = 0.0 if order is None else order["grace"]
        is_first, task.grace = task.grace == math.inf, min(task.grace, grace)
        if order is None:
            task.kill_at = time.monotonic()
        elif task.dumping is None:
            if is_first and order["stacks"] and task.end is None:
                self.fork_dump(task)
            else:
                self.begin_end(task)

    def fork_dump(self, task: RunningTask) -> None:
        try:
            task.dumping = self.fork()
        except OSError:
            self.begin_end(task)
            return
        if task.dumping == 0:
            try:
                self.leave_behind()
                process_tree.request_stacks(process_tree.tree([task.pid]))
            finally:
                os.kill(os.getpid(), signal.SIGKILL)  # not os._exit, which coverage replaces

    def begin_end(self, task: RunningTask) -> None:
        if task.kill_at == math.inf:
            task.asked = set(process_tree.tree([task.pid]))
            if task.grace > 0:
                process_tree.send_signal(task.asked, signal.SIGTERM)
                process_tree.send_signal(task.asked, signal.SIGCONT)  # a stopped process would not see SIGTERM
        task.kill_at = min(task.kill_at, time.monotonic() + task.grace)

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.stuck.discard(pid)
            if self.standby is not None and self.standby[0] == pid:
                self.standby[1].close()
                self.standby = None
            task = self.tasks.get(pid)
            if task is not None:
                task.end = os.waitstatus_to_exitcode(status), usage
                if task.kill_at == math.inf:  # by itself; otherwise, what it has left has the rest of the grace
                    task.kill_at = time.monotonic()
                continue
            for dumped in self.tasks.values():
                if dumped.dumping == pid:
                    dumped.dumping = None
                    self.begin_end(dumped)

    def tend(self) -> None:
        """Collect what has ended, kill what is due, and report tasks of which nothing is left.

        Which of two tasks that end at the same time has left an orphan is not known: both reports wait for its end. Nor
        does it have a grace then, unless it was asked to end with one of them.
        """
        self.reap()
        now = time.monotonic()
        tasks = list(self.tasks.values())
        ended = [task for task in tasks if task.end is not None]
        orphans: set[int] = set()
        if ended:
            own = {task.dumping for task in tasks} | {task.pid for task in tasks if task.end is None}
            standby = set() if self.standby is None else {self.standby[0]}
            orphans = set(process_tree.children_of_self()) - own - standby - self.stuck
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
            new = [pid for pid in its if pid not in task.swept and pid not in task.asked]
            task.swept.update((pid, process_tree.describe(pid)) for pid in new)
            if outlived.issuperset(its):
                self.report_end(task, outlived.intersection(its))

    def report_end(self, task: RunningTask, alive: Iterable[int]) -> None:
        returncode, usage = task.end or (None, None)
        report = {
            "type": "ended",
            "returncode": returncode,
            "max_rss_bytes": None if usage is None else usage.ru_maxrss * 1024,
            "swept": list(task.swept.values()),
            "unkillable": [process_tree.describe(pid, state=True) for pid in alive],
            "at": time.time(),
        }
        del self.tasks[task.pid]
        _report(task.fate, report)
        task.fate.close()


def _report(fate: Channel, report: Message) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, as the loop will notice
        fate.send(report)


# The child


def task_main(waiting: Channel, zygote: int, order: Message, run: Callable[..., Any] | None) -> None:
    process_tree.die_with_parent(zygote)
    os.setsid()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if order["rehearse"] is not None:
        with contextlib.suppress(Exception):
            import_target(order["rehearse"])()
    channel = Channel.from_fd(_given(waiting.receive_fd()))
    waiting.close()
    task = _given(channel.receive())
    # Open as long as this process lives, and not in what it executes.
    if None in [channel.receive_fd() for _ in range(task["descriptors"])]:
        os._exit(0)
    try:
        for path, fd, flags in (
            (os.devnull, 0, os.O_RDONLY),
            (task["stdout"], 1, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (task["stderr"], 2, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        ):
            if path is not None:  # the descriptor, so that native code is caught as well
                opened = os.open(path, flags, 0o644)
                os.dup2(opened, fd)
                os.close(opened)
        for stream in (sys.stdout, sys.stderr):
            # A crash must not take printed lines with it.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        arm(task["stacks"])
    except OSError as error:  # a folder that has vanished, a full disk
        channel.send({"type": "failed", "phase": "launch", "error": describe_exception(error)})
        leave(0)
    try:
        if task["cores"] is not None:
            os.sched_setaffinity(0, task["cores"])
        if run is None:
            try:
                info = prepare(order, channel.send)
                run = import_target(order["run"])
            except BaseException as error:
                channel.send({"type": "failed", "error": describe_exception(error)})
                leave(0)
            channel.send({"type": "prepared", "info": info})
        run(task["payload"], channel)
    except BaseException:
        traceback.print_exc()  # into the task's own log
        leave(1)
    channel.send({"type": "done"})
    leave(0)


def _given(value: T | None) -> T:
    if value is None:
        # Not os._exit, which coverage replaces: it would write a file, and the zygote, which ends as well, would kill
        # this process while it does.
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError
    return value


def arm(stacks: str | None) -> None:
    """Write Python stacks on a fatal signal (to stderr) and when asked to (to the file ``stacks``)."""
    faulthandler.enable(file=2)
    if stacks is not None:
        fd = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(process_tree.STACK_SIGNAL, file=fd, all_threads=True)


def leave(code: int) -> NoReturn:
    """Flush and end at once; the interpreter's shutdown belongs to the zygote, not to its forks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
