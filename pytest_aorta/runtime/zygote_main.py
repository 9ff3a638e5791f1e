"""The zygote process: prepare once, fork one child per task, leave nothing of a task behind.

Runs as ``python -c BOOTSTRAP <fd> <parent>``, or behind a launcher prefix by ``zygote_entry.py``. It starts no threads,
so its forks are safe, and it runs any number of tasks at the same time. Zygote and children are subreapers: what
escapes from a task stays below the task's process, and falls to the zygote when that process ends. The zygote ends it
then. Nothing here blocks: while one task has its grace, or outlives SIGKILL, others are forked, ended and reported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import math
import os
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest_aorta.runtime.process_tree as process_tree  # ``from`` would ask the package's __getattr__ first
from pytest_aorta._version import __version__
from pytest_aorta.common.texts import describe_exception
from pytest_aorta.runtime.channel import Channel, Message, wait

if TYPE_CHECKING:
    from resource import struct_rusage

T = TypeVar("T")

#: Seconds after the first SIGKILL after which survivors (uninterruptible sleep) are given up.
LIMIT = 5.0

#: Seconds between two looks at what was sent SIGKILL: it may have forked meanwhile.
LOOK = 0.005


#: Tasks that have ended before the memory goes into huge pages: fewer do not pay for it.
_SMALL_PAGES = 8

_HUGE_PAGE = 2**21
_MADV_COLLAPSE = 25

#: ``sys.path`` as the interpreter has made it.
own_path: list[str] = []


def main(fd: int, parent: int) -> None:
    """Prepare, then serve until the other end of ``fd`` closes; never returns."""
    # Until the loop below watches the channel, only the kernel knows that the parent has gone.
    beside = os.getppid() == parent  # no launcher stays in between
    if beside:
        process_tree.die_with_parent(parent)
    process_tree.become_subreaper()
    # A service may have started pytest with SIGCHLD ignored, which children inherit: wait() finds no exit status then.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control = Channel(fd)
    order = control.receive()
    if order is None:
        os._exit(1)
    owner = control.receive_fd() if order["owner"] else None
    if not beside:
        control.kill_when_closed(True)
    own_path[:] = sys.path
    for path in order["sys_path"]:
        if path not in sys.path:
            sys.path.append(path)
    faulthandler.enable()  # the stack of a crash while importing goes where the zygote's output goes
    stacks = os.dup(2)
    faulthandler.register(process_tree.STACK_SIGNAL, file=stacks, all_threads=True)  # ... and that of a hang, too
    control.send({"type": "preparing"})
    info, against, run = {}, [], None
    try:
        if not order["fresh"]:
            info = load_and_prepare(order, control.send)
            against = process_tree.reasons_against_forking()
            run = resolve_name(order["run"])
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
    ready = {"info": info, "against_forking": against, "version": __version__, "cpu_sec": time.process_time()}
    control.send({"type": "ready", **ready})
    if against:
        os._exit(0)
    ForkServer(control, order, run, owner).serve()


def load_and_prepare(order: Message, report: Callable[[Mapping[str, Any]], object]) -> Any:
    """Run ``load`` and ``prepare`` of the specification; return the result of ``prepare``.

    ``report`` receives the begin and end of ``load``, so that the parent can limit its time without our own imports.
    """
    prepare_it = resolve_name(order["prepare"])
    if order["load"] is not None:
        load = resolve_name(order["load"])
        report({"type": "loading"})
        start = time.monotonic()
        load(order["argument"])
        report({"type": "loaded", "sec": time.monotonic() - start})
    return prepare_it(order["argument"])


def use_huge_pages() -> None:
    """Move this process's memory into huge pages: forks copy, and ends drop, shorter page tables.

    With torch imported, a fork and its end then take 2.6 ms instead of 11. The move takes 40 ms, or 300 where memory is
    fragmented. Linux before 6.1 refuses, and nothing changes.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split()
            start, end = (int(address, 16) for address in words[0].split("-"))
            start = -(-start // _HUGE_PAGE) * _HUGE_PAGE
            if words[1] == "rw-p" and words[4] == "0" and start + _HUGE_PAGE <= end:  # of no file
                madvise(start, end // _HUGE_PAGE * _HUGE_PAGE - start, _MADV_COLLAPSE)


@dataclass(eq=False)
class RunningTask:
    """A child and the state of its end.

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
        #: Channels of processes that borrowed this zygote, and order forks, too.
        self.borrowers: set[Channel] = set()
        self.tasks: dict[int, RunningTask] = {}
        #: How many tasks have ended; how many of them before the last look ahead.
        self.ended = self.ended_before = 0
        #: A child that was forked ahead, and where it waits for the channel of its task.
        self.standby: tuple[int, Channel] | None = None
        #: Processes that are being killed, with the moment of their first SIGKILL.
        self.killed: dict[int, float] = {}
        #: Processes that outlived SIGKILL; they are not waited for any more.
        self.stuck: set[int] = set()
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.handlers = process_tree.disregard((signal.SIGCHLD, *process_tree.TERMINATIONS))
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle orders and deaths of children until the channel closes; then end all of them. Never returns."""
        code = 1
        try:
            while True:
                heard: list[Channel | int] = [self.control, self.wake_read, *self.owners, *self.borrowers]
                due = math.inf
                for task in self.tasks.values():
                    due = min(due, task.kill_at)
                    if not task.deaf:
                        heard.append(task.fate)
                limit = LOOK if self.killed else None if due == math.inf else max(0.0, due - time.monotonic())
                ready = wait(heard, limit)
                if not self.owners.isdisjoint(ready):
                    break
                if self.wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        while os.read(self.wake_read, 512):
                            pass
                for task in self.tasks.values():
                    if task.fate in ready:
                        self.hear(task)
                self.tend()
                for borrower in self.borrowers & set(ready):
                    if borrower.receive() is None:
                        self.borrowers.discard(borrower)
                        borrower.close()
                    else:
                        self.fork_task(borrower)
                if self.control in ready:
                    order = self.control.receive()
                    if order is None:
                        break
                    if order["op"] == "lend":
                        if (lent := self.control.receive_fd()) is not None:
                            self.borrowers.add(Channel(lent))
                    else:
                        self.fork_task(self.control)
                elif self.ended > self.ended_before:
                    self.look_ahead()
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # the parent has gone while a report was sent
        except BaseException:
            traceback.print_exc()
        finally:
            process_tree.end_all(lambda: process_tree.tree(process_tree.children_of_self()), self.reap, grace=0)
            sys.stderr.flush()
            os._exit(code)

    # The beginning of a task

    def fork_task(self, orders: Channel) -> None:
        """Give a task to the child that stands by; without one, one is forked, before the descriptors are here."""
        error = ""
        if self.standby is None:
            try:
                self.standby = self.stand_by()
            except OSError as failed:
                error = str(failed)
        channel_fd, fate_fd = orders.receive_fd(), orders.receive_fd()
        if channel_fd is None or fate_fd is None:
            return  # the parent is gone, as the loop will notice
        fate = Channel(fate_fd)
        with contextlib.closing(Channel(channel_fd)):
            if self.standby is None:
                with contextlib.suppress(OSError):  # the parent is gone, as the loop will notice
                    fate.send({"type": "unforked", "error": error})
                fate.close()
                return
            (pid, there), self.standby = self.standby, None
            with contextlib.suppress(OSError), contextlib.closing(there):  # it was killed, as its end will say
                there.send_fd(channel_fd)
        self.tasks[pid] = RunningTask(pid, fate)
        with contextlib.suppress(OSError):
            fate.send({"type": "forked", "pid": pid})
        if self.ended:
            self.look_ahead()

    def look_ahead(self) -> None:
        """Fork the next task's child: once one has ended, as there may be no second one, and then while each runs."""
        if self.ended_before < _SMALL_PAGES <= self.ended:  # several may have ended since
            use_huge_pages()
        self.ended_before = self.ended
        if self.order["rehearse"] is not None and self.standby is None:
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
                    there.close()
                    process_tree.become_subreaper()
                    task_main(its, zygote, self.order, self.run)
                finally:
                    os._exit(70)  # only reached when task_main itself is broken
        return pid, there

    def fork(self) -> int:
        """``os.fork``; the child drops the server's state and buffered output."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                for number, handler in self.handlers.items():
                    signal.signal(number, handler)
                for fd in (self.wake_read, self.wake_write, *self.owners):
                    os.close(fd)
                self.control.close()
                for borrower in self.borrowers:
                    borrower.close()
                for task in self.tasks.values():
                    task.fate.close()
                if self.standby is not None:
                    self.standby[1].close()
            except BaseException:
                traceback.print_exc()
                os._exit(70)
        return pid

    # The end of a task

    def hear(self, task: RunningTask) -> None:
        """End a task on order, or if the parent hung up: take stacks, SIGTERM, SIGKILL after the grace."""
        order = task.fate.receive()
        task.deaf = order is None
        grace = 0.0 if order is None else order["grace"]
        is_first, task.grace = task.grace == math.inf, min(task.grace, grace)
        if order is None:
            task.kill_at = time.monotonic()
        elif task.dumping is None:
            if is_first and order["stacks"] and task.end is None:
                self.fork_dump(task, order["also"])
            else:
                self.begin_end(task)

    def fork_dump(self, task: RunningTask, also: Sequence[int]) -> None:
        try:
            task.dumping = self.fork()
        except OSError:
            self.begin_end(task)
            return
        if task.dumping == 0:
            try:
                process_tree.request_stacks(process_tree.tree([task.pid, *also]))
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
        """Collect what has ended, kill what is due, and report tasks whose processes are all gone.

        An orphan is of the task whose session it is in, or that it was asked to end with. If it has left the session,
        it may be of any task that has ended: their reports wait for its end, and it has the shortest of their graces.
        """
        self.reap()
        now = time.monotonic()
        tasks, ended, due = list(self.tasks.values()), [], []
        others = {*self.stuck, *(() if self.standby is None else self.standby[:1])}
        for task in tasks:
            others.add(task.dumping or 0)
            if task.end is not None:
                ended.append(task)
                continue
            others.add(task.pid)
            if now >= task.kill_at:
                due += process_tree.tree([task.pid])
        left: dict[int, set[int]] = defaultdict(set)
        for orphan in set(process_tree.children_of_self()) - others if ended else ():
            session, owners = os.getsid(orphan), ended
            for task in tasks:
                if session == task.pid or orphan in task.asked:
                    owners = [task]
            family = process_tree.tree([orphan])
            is_due = now >= min(owners, key=attrgetter("kill_at")).kill_at
            due += family if is_due else ()
            for task in owners:
                left[task.pid].update(family)
                for pid in family if is_due else ():
                    if pid not in task.swept and pid not in task.asked:
                        task.swept[pid] = process_tree.describe(pid)
        process_tree.send_signal(due, signal.SIGKILL)
        before, self.killed, outlived = self.killed, {}, set()
        for pid in due:
            self.killed[pid] = before.get(pid, now)
            if now > self.killed[pid] + LIMIT:
                outlived.add(pid)
        self.stuck |= outlived
        for task in tasks:
            if not outlived.issuperset({task.pid} if task.end is None else left[task.pid]):
                continue
            returncode, usage = task.end or (None, None)
            alive = outlived.intersection(process_tree.tree([task.pid]) if task.end is None else left[task.pid])
            report = {
                "type": "ended",
                "returncode": returncode,
                "max_rss_bytes": None if usage is None else usage.ru_maxrss * 1024,
                "swept": list(task.swept.values()),
                "unkillable": list(map(partial(process_tree.describe, state=True), alive)),
                "at": time.time(),
            }
            del self.tasks[task.pid]
            self.ended += 1
            with contextlib.suppress(OSError):
                task.fate.send(report)
            task.fate.close()


# The child


def task_main(waiting: Channel, zygote: int, order: Message, run: Callable[..., Any] | None) -> None:
    process_tree.die_with_parent(zygote)
    os.setsid()
    own, ends_fully = os.getpid(), False

    def end_here() -> None:
        if not ends_fully and os.getpid() == own:
            leave(0)

    # Called after all handlers that the task registers: later handlers are the zygote's.
    atexit.register(end_here)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if order["rehearse"] is not None:
        with contextlib.suppress(Exception):  # the task does the same, and reports what fails
            resolve_name(order["rehearse"])()
    channel = Channel(_given(waiting.receive_fd()))
    waiting.close()
    task = _given(channel.receive())
    # Open as long as this process lives, and not in what it executes.
    for _ in range(task["descriptors"]):
        _given(channel.receive_fd())
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
                info = load_and_prepare(order, channel.send)
                run = resolve_name(order["run"])
            except BaseException as error:
                channel.send({"type": "failed", "error": describe_exception(error)})
                leave(0)
            channel.send({"type": "prepared", "info": info})
        how = run(task["payload"], channel)
    except BaseException:
        traceback.print_exc()  # into the task's own log
        leave(1)
    channel.send({"type": "done"})
    if how is not None:
        ends_fully = how
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if not how:
            atexit._run_exitfuncs()  # which ends here
        ctypes.pythonapi.Py_Exit(0)  # waits for threads that are not daemons first
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
