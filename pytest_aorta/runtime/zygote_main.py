"""The zygote process: prepare once, then fork one child per task."""

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from pytest_aorta._version import __version__
from pytest_aorta.common.import_target import import_target
from pytest_aorta.common.texts import describe_exception
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime import process_tree as process_tags
from pytest_aorta.runtime.channel import Channel, wait
from pytest_aorta.runtime.process_tree import reasons_against_forking

if TYPE_CHECKING:
    from resource import struct_rusage


class Surroundings(TypedDict):
    """The first message to what runs behind a launcher prefix: variables it may be missing, its directory."""

    environ: dict[str, str]
    cwd: str


class PrepareOrder(TypedDict):
    """The first message to a zygote: fields of its ``ZygoteSpec``.

    With ``owner``, a descriptor of the process that has started it follows (``pidfd_open(2)``).
    """

    prepare: str
    argument: Any
    run: str
    sys_path: list[str]
    fresh: bool
    warm_up: str | None
    extend: str | None
    load: str | None
    orphaned: str | None
    concurrent: bool
    owner: bool


class StartReport(TypedDict, total=False):
    """How far a zygote has come; ``sec`` of what was loaded, ``error`` of what failed, the others of what is ready."""

    type: Literal["preparing", "loading", "loaded", "failed", "ready"]
    sec: float
    error: dict[str, str]
    info: dict[str, Any]
    against_forking: list[str]
    version: str


class ChildOrder(TypedDict):
    """The child that stood by was given a task, or was found dead and has to be replaced."""

    op: Literal["taken", "replace"]
    pid: int


class BranchOrder(TypedDict):
    """Fork a branch, and prepare it further if there is an ``extension``; descriptors of its two channels follow."""

    op: Literal["branch"]
    tag: str
    extension: Any


class ForkOrder(TypedDict):
    """Fork a child for a task; descriptors follow: of the channel that the task comes on, and of that of its fate."""

    op: Literal["fork"]


class KillOrder(TypedDict):
    """End the task that runs in process ``pid``."""

    op: Literal["kill"]
    pid: int
    grace: float


ServerOrder = ChildOrder | BranchOrder | ForkOrder | KillOrder


class Standby(TypedDict):
    """A child stands by; the descriptor of the channel to it follows."""

    type: Literal["standby"]
    pid: int


class ForkReport(TypedDict, total=False):
    """A child was forked, or why it could not be."""

    pid: int
    error: str


class TaskEnd(TypedDict):
    """The running task is over.

    ``returncode`` and ``max_rss_bytes`` are ``None`` where its process outlived SIGKILL; ``swept`` names the processes
    that it had left behind, ``unkillable`` those that could not be ended; ``at`` is in seconds since the epoch.
    """

    type: Literal["ended"]
    returncode: int | None
    max_rss_bytes: int | None
    swept: list[str]
    unkillable: list[str]
    at: float


class ExtensionReport(TypedDict, total=False):
    """A branch is prepared further, unless there was an exception, or something ``refused``, or ``against_forking``."""

    type: Literal["extended", "failed"]
    error: dict[str, str]
    refused: dict[str, Any]
    against_forking: list[str]


class BranchFate(TypedDict, total=False):
    """How a branch ended, or why it could not be forked. Empty when the zygote itself has gone."""

    returncode: int
    error: str


class ChildTask(TypedDict):
    """The task of a child. ``descriptors`` says how many follow.

    With ``hold``, a child that prepares itself does only that, and then waits for another one.
    """

    payload: Any
    hold: bool
    stdout: str | None
    stderr: str | None
    stacks: str | None
    cores: list[int] | None
    descriptors: int


class ChildReport(TypedDict, total=False):
    """What a child sends besides the messages of its task. ``phase`` is missing where the preparation failed."""

    type: Literal["loading", "loaded", "prepared", "failed", "done"]
    sec: float
    info: dict[str, Any]
    phase: Literal["launch"]
    error: dict[str, str]


def prepare(order: PrepareOrder, report: Callable[[Mapping[str, Any]], object]) -> Any:
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


def task_main(channel: Channel, zygote: int, prepared: PrepareOrder, run: Callable[..., Any] | None) -> None:
    """Wait for a task on ``channel``, run it, end the process. Never returns."""
    process_tree.die_with_parent(zygote)
    os.setsid()
    _reseed()
    if prepared["warm_up"] and not prepared["fresh"]:
        with contextlib.suppress(Exception):  # the task that meets the same error will report it
            import_target(prepared["warm_up"])(prepared["argument"])
    task = _take(channel)
    try:
        _move(task["cores"])
        if run is None:
            run = _prepare(channel, prepared)
            if task["hold"]:
                task = _take(channel)
                _move(task["cores"])
        run(task["payload"], channel)
    except BaseException:
        traceback.print_exc()  # into the task's own log
        leave(1)
    _report(channel, {"type": "done"})
    leave(0)


def _take(channel: Channel) -> ChildTask:
    """Wait for a task and its descriptors, and redirect this process to the task's files."""
    received = channel.receive()
    if received is None:
        # Not os._exit, which coverage replaces: it would write a file, and the zygote, which ends as well, would kill
        # this process while it does.
        os.kill(os.getpid(), signal.SIGKILL)
    task = cast(ChildTask, received)
    # Open as long as this process lives, and not in what it executes.
    descriptors = [channel.receive_fd() for _ in range(task["descriptors"])]
    if None in descriptors:
        os._exit(0)
    try:
        redirect(task["stdout"], task["stderr"])
        arm(task["stacks"])
    except OSError as error:  # a folder that has vanished, a full disk
        _report(channel, {"type": "failed", "phase": "launch", "error": describe_exception(error)})
        leave(0)
    return task


def _move(cores: list[int] | None) -> None:
    """Have all threads of this process run on these cores."""
    if cores is not None:
        for thread in os.listdir("/proc/self/task"):  # there is only one, unless it was held
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)


def _prepare(channel: Channel, order: PrepareOrder) -> Callable[..., Any]:
    """In an interpreter that has prepared nothing yet: do so, and give the function to run."""
    try:
        info = prepare(order, channel.send)
        run: Callable[..., Any] = import_target(order["run"])
    except BaseException as error:
        _report(channel, {"type": "failed", "error": describe_exception(error)})
        leave(0)
    _report(channel, {"type": "prepared", "info": info})
    return run


def _report(channel: Channel, report: ChildReport) -> None:
    channel.send(report)


def redirect(stdout: str | None, stderr: str | None) -> None:
    """Point the descriptors 0, 1 and 2 elsewhere, so that native code is caught as well; ``None`` leaves one alone."""
    for path, target in ((os.devnull, 0), (stdout, 1), (stderr, 2)):
        if path is not None:
            flags = os.O_RDONLY if target == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            fd = os.open(path, flags, 0o644)
            os.dup2(fd, target)
            os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        # A crash must not take printed lines with it.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


def arm(stacks: str | None) -> None:
    """Write Python stacks on a fatal signal (to stderr) and when asked to (to the file ``stacks``)."""
    faulthandler.enable(file=2)
    if stacks is not None:
        fd = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(process_tree.STACK_SIGNAL, file=fd, all_threads=True)


def leave(code: int) -> None:
    """Flush and end at once; the interpreter's shutdown belongs to the zygote, not to its forks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _reseed() -> None:
    """Seed the generators that a fork copies, as a fresh interpreter does; ``random`` does so by itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


class ForkServer(ABC):
    """Carries out the orders of the parent, in a process without threads.

    Args:
        control: from and to the parent.
        prepared: what the zygote was prepared with.
        run: the function of the tasks; ``None`` where each child prepares itself.
        parent: the process that has to put away what it leaves; ``None`` where that is not known.
        owner: a descriptor of the process whose end is also this one's; a branch ends with its zygote instead.
    """

    def __init__(
        self,
        control: Channel,
        prepared: PrepareOrder,
        run: Callable[..., Any] | None,
        *,
        parent: int | None = None,
        owner: int | None = None,
    ) -> None:
        self.control = control
        self.parent = parent
        self.owner = owner
        self.prepared = prepared
        self.run = run
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.handlers = process_tree.disregard(process_tree.TERMINATIONS)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def begin(self) -> None:  # noqa: B027  (nothing, unless there is something)
        """What is done before the first order."""

    @abstractmethod
    def step(self) -> bool:
        """Wait for something to happen and handle it; whether the channel is still open."""

    @abstractmethod
    def reap(self) -> None:
        """Collect every child that has ended."""

    def serve(self) -> None:
        """Handle orders and deaths of children until the channel closes; then end all of them. Never returns."""
        code = 1
        try:
            self.begin()
            while self.step():
                pass
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # the parent has gone while a report was sent
        except BaseException:
            traceback.print_exc()
        finally:
            process_tree.end_all(lambda: process_tree.tree(process_tree.children_of_self()), self.reap, grace=0)
            self.put_away()
            sys.stderr.flush()
            os._exit(code)

    def put_away(self) -> None:
        """Where the parent was killed, do what it can do no more."""
        target = self.prepared["orphaned"]
        if target is not None and self.parent is not None and os.getppid() != self.parent:
            with contextlib.suppress(Exception):
                import_target(target)()

    def owners(self) -> list[int]:
        """The descriptor to watch for the end of the owner, where there is one."""
        return [] if self.owner is None else [self.owner]

    def drain_wakeups(self) -> None:
        """Empty the pipe that SIGCHLD writes to."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_read, 512):
                pass

    def fork(self) -> int:
        """``os.fork`` of a process whose output is flushed, so that the child does not write it once more."""
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork()

    def leave_behind(self) -> None:
        """In a fork: give up what is the parent's own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        os.close(self.wake_read)
        os.close(self.wake_write)
        self.control.close()
        for owner in self.owners():
            os.close(owner)


def extend(control: Channel, function: str | None, extension: Any) -> None:
    """Call ``function`` with ``extension`` and report; ends this process where it must not be forked any more.

    To be called before this process serves: it has no children of its own then, and no handlers of signals.
    """
    report: ExtensionReport
    try:
        assert function is not None
        refused = import_target(function)(extension)
        report = {"type": "extended", "refused": refused, "against_forking": reasons_against_branching()}
    except BaseException as error:
        report = {"type": "failed", "error": describe_exception(error)}
    gc.collect()
    gc.freeze()  # as in a zygote
    with contextlib.suppress(OSError):
        control.send(report)
    if report["type"] == "failed" or report["refused"] or report["against_forking"]:
        os._exit(1)  # a failure, so that the zygote ends what this process has started


def reasons_against_branching() -> list[str]:
    """Why this branch must not be forked, as short phrases: threads, a GPU, processes, handlers that fail in a fork."""
    reasons = reasons_against_forking()
    if children := process_tree.children_of_self():
        reasons.append(f"started {', '.join(process_tree.describe(pid) for pid in children)}")
    elif not reasons and (code := _forked_exit()) != 0:
        reasons.append(f"has left a handler at whose hands a forked process ends with status {code}")
    return reasons


def _forked_exit() -> int:
    """How a forked process ends that does nothing: handlers of ``os.register_at_fork`` run in it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# The children of a process that serves tasks: which have ended, and which of them belong to the running task.
#
# Orphans fall to the closest subreaper above them that still lives: those of a task to the process that serves it, and
# those of a branch that was killed to the zygote, where they meet the orphans of the zygote's own task. The tag in
# their environment tells them apart; only what was started with an environment of its own making counts as the
# zygote's.


class ServerChildren:
    """At most one running task, at most one child standing by; any number of branches, in a zygote itself.

    Attributes:
        standby: the child that the next task will run in.
        running: the child that runs a task.
        branches: tags of the branches, and the channels that report their fate, by pid.
        ended: exit status and resources of children that have ended and are still of interest, by pid.
        stuck: processes that outlived SIGKILL; they are not waited for any more.
    """

    def __init__(self) -> None:
        self.standby: int | None = None
        self.running: int | None = None
        self.branches: dict[int, tuple[str, Channel]] = {}
        self.ended: dict[int, tuple[int, struct_rusage]] = {}
        self.stuck: set[int] = set()

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
        """Collect every child that has ended; end what branches among them have left, and report their fate."""
        self.reap()
        for pid in self.branches.keys() & self.ended.keys():
            tag, fate = self.branches[pid]
            returncode, _ = self.ended.pop(pid)
            if returncode != 0:  # it has not done so itself
                process_tree.end_all(lambda tag=tag: process_tags.tagged_processes(tag), self.reap, grace=0)  # type: ignore[misc]
            del self.branches[pid]
            if self.running is None:  # then what has no tag can only be the branch's
                process_tree.end_all(self.task_members, self.reap, grace=0)
            report_fate(fate, {"returncode": returncode})

    def task_roots(self) -> list[int]:
        """The running task's process and every orphan that was adopted from it."""
        others = {self.standby, *self.branches, *self.stuck}
        roots = [pid for pid in process_tree.children_of_self() if pid not in others]
        if of_branches := [tag for tag, _ in self.branches.values()]:
            roots = [pid for pid in roots if pid == self.running or not process_tags.has_tag(pid, *of_branches)]
        return roots

    def task_members(self) -> list[int]:
        """The running task's processes, all of them."""
        return process_tree.tree(self.task_roots())

    def forget_task(self, alive: list[int]) -> None:
        """The running task is over; what is still ``alive`` will not be waited for."""
        self.stuck.update(alive)
        self.running = None
        kept = {self.standby, *self.branches}
        self.ended = {pid: end for pid, end in self.ended.items() if pid in kept}


def report_fate(fate: Channel, message: BranchFate) -> None:
    """Report what became of a branch to the parent's side of it."""
    with contextlib.suppress(OSError):
        fate.send(message)
    fate.close()


# The serving part of a zygote whose tasks run at the same time: forks a child when a task comes, and one process only.
#
# Each child adopts its own orphans (``PR_SET_CHILD_SUBREAPER``), so those that fall to the zygote were left behind by
# children that have ended, and are ended in turn. Nothing here blocks: while one child has its grace, or outlives
# SIGKILL, others are forked, ended and reported.


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
            _report_concurrent_server(fate, {"error": str(error)})
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
        _report_concurrent_server(fate, {"pid": pid})

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
        _report_concurrent_server(task.fate, report)
        task.fate.close()


def _report_concurrent_server(fate: Channel, report: ForkReport | TaskEnd) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, as the loop will notice
        fate.send(report)


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


# The zygote process: prepare once, then serve tasks.
#
# Runs as ``python -c BOOTSTRAP <fd>``, or behind a launcher prefix by ``zygote_entry.py``. It starts no threads, so
# its forks are safe; it is a child subreaper, so whatever escapes from a task becomes its child.


def main(fd: int, parent: int) -> None:
    """Serve until the other end of ``fd`` closes; never returns."""
    # Until the loop below watches the channel, only the kernel knows that the parent has gone.
    beside = os.getppid() == parent  # no launcher stays in between
    if beside:
        process_tree.die_with_parent(parent)
    process_tree.become_subreaper()
    control = Channel.from_fd(fd)
    received = control.receive()
    if received is None:
        os._exit(1)
    order = cast(PrepareOrder, received)
    owner = control.receive_fd() if order["owner"] else None
    if not beside:
        control.kill_when_closed(True)
    sys.path.extend(path for path in order["sys_path"] if path not in sys.path)
    faulthandler.enable()  # the stack of a crash while importing goes where the zygote's output goes
    stacks = os.dup(2)
    faulthandler.register(process_tree.STACK_SIGNAL, file=stacks, all_threads=True)  # ... and that of a hang, too
    _report_zygote_main(control, {"type": "preparing"})
    try:
        if not order["fresh"]:
            info = prepare(order, control.send)
            against = reasons_against_forking()
        else:
            info, against = {}, []
    except BaseException as error:
        _report_zygote_main(control, {"type": "failed", "error": describe_exception(error)})
        os._exit(0)
    faulthandler.unregister(process_tree.STACK_SIGNAL)  # tasks have files of their own, or give no stacks
    os.close(stacks)
    gc.collect()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page of a forked child
    # Before this process reports that it is ready: the thread that has started it may end then, which the kernel would
    # take for the parent's end.
    process_tree.die_with_parent(None)
    if not beside:
        control.kill_when_closed(False)
    _report_zygote_main(control, {"type": "ready", "info": info, "against_forking": against, "version": __version__})
    if against:
        os._exit(0)
    run = import_target(order["run"]) if not order["fresh"] else None
    server = ConcurrentServer if order["concurrent"] else TaskServer
    server(control, order, run, parent=parent if beside else None, owner=owner).serve()


def _report_zygote_main(control: Channel, report: StartReport) -> None:
    control.send(report)
