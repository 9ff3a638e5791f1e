"""Finding, tagging and ending processes, even escaping ones; safety of forks. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

#: Asks a process for its Python stacks. A real-time signal, because training code uses the classic ones itself.
STACK_SIGNAL = signal.SIGRTMAX - 3

#: Ask a process to end. A batch system sends one to every process of a job, and leaves it to them what to make of it.
TERMINATIONS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: Seconds that a process has for its stacks before the next one is asked, and that all of them have together.
_DUMP_TURN, _DUMP_TURNS = 0.05, 2.0

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt every descendant whose own parent ends (``prctl(2)``, PR_SET_CHILD_SUBREAPER)."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int | None) -> None:
    """Let the kernel SIGKILL this process when its parent, process ``parent``, ends; ``None`` revokes that."""
    _libc.prctl(PR_SET_PDEATHSIG, 0 if parent is None else signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def disregard(numbers: Iterable[int]) -> dict[int, Any]:
    """Ignore these signals here (programs that are executed get the default); return the earlier handlers."""
    before = {}
    for number in numbers:
        if signal.getsignal(number) is not None:  # else set by C code
            before[number] = signal.signal(number, lambda *_: None)
    return before


def _psutil() -> ModuleType:
    """Imported when it is needed: children of a trial use this file where psutil may not be installed."""
    import psutil

    return psutil


def children_of_self() -> list[int]:
    """Pids of this process's direct children, adopted ones included."""
    try:
        return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in _psutil().Process().children()]


def tree(roots: Iterable[int]) -> list[int]:
    """``roots`` and all their descendants that still exist."""
    pids: dict[int, None] = {}
    for root in roots:
        with contextlib.suppress(_psutil().Error):
            process = _psutil().Process(root)
            pids[root] = None
            for descendant in process.children(recursive=True):
                pids[descendant.pid] = None
    return list(pids)


class Family:
    """Processes and their descendants, including orphans that were seen before their parents ended.

    ``roots`` returns the pids to begin with; it is called again and again.
    """

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._seen: dict[int, psutil.Process] = {}

    def members(self) -> list[int]:
        for pid in tree(self._roots()):
            with contextlib.suppress(_psutil().Error):
                self._seen.setdefault(pid, _psutil().Process(pid))
        pids = []
        for pid, process in self._seen.items():
            with contextlib.suppress(_psutil().Error):
                if process.is_running() and process.status() != _psutil().STATUS_ZOMBIE:
                    pids.append(pid)
        return pids


def describe(pid: int, *, state: bool = False) -> str:
    """Name and pid, for messages; ``state``: adds the kernel's state (``disk-sleep``: uninterruptible)."""
    try:
        process = _psutil().Process(pid)
        return f"{process.name()} (pid {pid}{', ' + process.status() if state else ''})"
    except _psutil().Error:
        return f"pid {pid}"


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal every process that still exists and that this one may signal."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def catches(pid: int, number: int) -> bool:
    """Whether the process has installed a handler for a signal (an uncaught real-time signal would kill it)."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def request_stacks(pids: Iterable[int], settle: float = 0.2) -> None:
    """Ask each process with a handler for its stacks; give the last dump ``settle`` seconds to be written.

    One after the other: they write to the same file, each dump in many small pieces. The signal may wake a process from
    a system call, and what it does then may wake others, so all are stopped first, and go on each with its own dump.
    A process that was stopped before gives none: it would have to be woken for that, and would go on.
    """
    listening = [
        pid for pid in pids if catches(pid, STACK_SIGNAL) and _status(pid).get("State", "")[:1] not in ("T", "t")
    ]
    turn = min(_DUMP_TURN, _DUMP_TURNS / max(1, len(listening)))
    send_signal(listening, signal.SIGSTOP)
    for pid in listening:
        send_signal([pid], STACK_SIGNAL)
        send_signal([pid], signal.SIGCONT)
        time.sleep(turn if pid != listening[-1] else settle)


def end_all(
    members: Callable[[], list[int]],
    reap: Callable[[], object],
    grace: float,
    limit: float = 5.0,
    hurry: Callable[[], bool] = lambda: False,
) -> list[int]:
    """End processes: SIGTERM, ``grace`` seconds, then SIGKILL until none is left.

    Args:
        members: the processes that have to go, asked again and again because they may fork meanwhile.
        reap: collects children that have ended.
        grace: seconds between SIGTERM and SIGKILL; 0 kills at once.
        limit: seconds after the first SIGKILL after which survivors (uninterruptible sleep) are given up.
        hurry: asked during ``grace``; ends it early.

    Returns:
        pids of processes that outlived SIGKILL.
    """
    if grace > 0:
        targets = members()
        send_signal(targets, signal.SIGTERM)
        send_signal(targets, signal.SIGCONT)  # a stopped process would not see SIGTERM
        give_up = time.monotonic() + grace
        while time.monotonic() < give_up and not hurry():
            reap()
            if not members():
                return []
            time.sleep(0.01)
    give_up = time.monotonic() + limit
    while True:
        alive = members()
        if not alive or time.monotonic() > give_up:
            return alive
        send_signal(alive, signal.SIGKILL)
        time.sleep(0.002)
        reap()


# Tags in the environment, by which the processes of a zygote are found after it has died: ``/proc/<pid>/environ`` shows
# a copy of what a process was started with, which forks and most execs inherit.

#: The variable. Every process below a zygote has it, with the zygote's tag.
VARIABLE = "PYTEST_AORTA_ZYGOTE"


def tagged_processes(*tags: str) -> list[int]:
    """Pids of this user's other processes that have one of these tags.

    Finds what a dead zygote could no longer adopt.
    """
    wanted, tagged = {f"{VARIABLE}={tag}".encode() for tag in tags}, []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if not wanted.isdisjoint(Path(entry.path, "environ").read_bytes().split(b"\0")):
                    tagged.append(int(entry.name))
    return tagged


#: Seconds that a native thread may need to end after ``join()`` has returned.
_SETTLE = 0.2

_GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def reasons_against_forking() -> list[str]:
    """Short phrases that say why a fork of this process is unsafe; empty if it is safe.

    A thread's locks and a GPU's context do not survive a fork. An OpenMP pool counts: after a fork, GNU OpenMP hangs in
    the child.
    """
    reasons = []
    if threads := set(threading.enumerate()) - {threading.main_thread()}:
        reasons.append(f"started Python threads: {', '.join(sorted(thread.name for thread in threads))}")
    if (native := native_threads()) > 0:
        reasons.append(f"started {native} native thread(s)")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        reasons.append("initialised a GPU")
    elif devices := open_gpu_devices():
        reasons.append(f"opened {', '.join(devices)}")
    return reasons


def native_threads() -> int:
    """The number of threads that libraries started, and that may hold a lock during a fork.

    The pool of OpenBLAS does not count: its fork handler ends it, before each fork, until it is used again. It would be
    wrong to count the threads that OpenBLAS could have instead: after a fork, it has none.
    """
    give_up = None
    while (threads := len(os.listdir("/proc/self/task")) - threading.active_count()) > 0:
        if give_up is None:
            _run_fork_handlers()
            give_up = time.monotonic() + _SETTLE
        elif time.monotonic() > give_up:
            break
        else:
            time.sleep(0.01)
    return threads


def _run_fork_handlers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    # It may hang in a handler of its own.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def open_gpu_devices() -> list[str]:
    """Files of GPU drivers that this process has open."""
    devices = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith(_GPU_DEVICES):
            devices.add(target)
    return sorted(devices)


#: Seconds between two looks at a child during a wait for its end.
_POLL = 0.005


class Fork:
    """A forked child of this process, with what is used of ``subprocess.Popen``. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._asking = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; ``None`` while it runs."""
        with self._asking:
            if self.returncode is None:
                self.returncode = self.look()
            return self.returncode

    def look(self) -> int | None:
        return exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if give_up is not None and time.monotonic() > give_up:
                raise subprocess.TimeoutExpired([], timeout or 0.0)
            time.sleep(_POLL)
        return code

    def send_signal(self, number: int) -> None:
        with self._asking:
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def exit_code(pid: int, flags: int = os.WNOHANG) -> int | None:
    """Exit code of a child, as in ``Fork.poll``; without ``flags``, waits for its end."""
    try:
        ended, status = os.waitpid(pid, flags)
    except ChildProcessError:
        return 0  # as Popen takes it, where other code has reaped the child
    return os.waitstatus_to_exitcode(status) if ended else None
