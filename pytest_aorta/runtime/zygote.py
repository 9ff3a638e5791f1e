"""The parent's side of zygotes: processes that prepare once and fork one fresh child per task.

A zygote is a single-threaded process, started with its environment variables already set. It adopts, ends and reaps
all processes that a task leaves behind. Every task has two channels: its own, between child and submitter, and that of
its fate, between zygote and submitter: orders to end it, and the report of its end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import pytest_aorta.runtime.process_tree as process_tree  # ``from`` would ask the package's __getattr__ first
from pytest_aorta._version import __version__
from pytest_aorta.runtime.channel import Channel, Message, wait
from pytest_aorta.runtime.resources.leases import UsedFolder, make_own

#: Seconds that a zygote may take to get ready.
STARTUP_TIMEOUT = 300.0

#: Placeholder in the words of a command for the tag of the zygote.
TAG_WORD = "@AORTA_TAG@"

#: The working directory must not shadow what the interpreter imports, as ``-c`` would let it.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pytest_aorta.runtime.zygote_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

#: The script that runs behind a prefix.
_ENTRY = Path(__file__).with_name("zygote_entry.py")

#: Bytes of its output that an error quotes, and of the stacks in it.
_OUTPUT, _STACKS = 4000, 2**18

#: Seconds that the process may take to end once its channel has closed.
_LINGER = 5.0

#: Seconds between two looks at a start: whether it is still wanted, and a prefix still runs.
LOOK = 0.05

#: Seconds that a command may take which ends what a prefix has started.
_STOP_TIMEOUT = 10.0

#: Seconds that a process which has connected behind a prefix may take to say which zygote it is.
_INTRODUCTION = 5.0

_SOCKET_NAME = "zygote.sock"

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class StartLimits:
    """Time limits for the start of a zygote.

    Attributes:
        load: seconds for ``ZygoteSpec.load``; ``None`` for no limit of its own.
        grace: seconds between SIGTERM and SIGKILL when it takes longer.
        total: seconds for everything.
    """

    load: float | None = None
    grace: float = 0.0
    total: float = STARTUP_TIMEOUT


@dataclass(frozen=True)
class PrefixFacts:
    """Facts about a launcher prefix, whose words may hold ``TAG_WORD``.

    Attributes:
        restored: variables that are set again if the prefix passes none on.
        packages: the folder with this package as the process sees it; ``None`` where that is installed.
        stop: a command that ends what the prefix has started, if that outlives the prefix.
    """

    restored: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: str | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class ZygoteSpec:
    """Everything that is fixed when a zygote starts; tasks share a zygote only if all of it is equal.

    Functions are given as ``module:function``.

    Attributes:
        command: launcher prefix and interpreter.
        environ: the complete environment of the process.
        prepare: called once with ``argument``; returns a JSON mapping.
        argument: JSON value for ``load`` and ``prepare``.
        run: called in every child as ``run(payload, channel)``. The channel leads to the submitter of the task.
            If it returns true, the child ends as an interpreter does; if false, once its own handlers of ``atexit`` are
            through; if ``None``, at once.
        sys_path: entries appended to the child's ``sys.path`` where missing.
        cwd: working directory.
        fresh: prepare in every child instead.
        load: called with ``argument`` before ``prepare``, to import what is not ours; ``StartLimits`` limit its time.
        behind: about the prefix, where ``command`` has one.
        rehearse: called in each child before it knows its task; then one child is always forked ahead.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    prepare: str
    argument: Any
    run: str
    sys_path: tuple[str, ...]
    cwd: str
    fresh: bool = False
    load: str | None = None
    behind: PrefixFacts = field(default_factory=PrefixFacts)
    rehearse: str | None = None

    @property
    def has_prefix(self) -> bool:
        return len(self.command) > 1

    @cached_property
    def key(self) -> str:
        fields = {**vars(self), "environ": dict(self.environ), "behind": asdict(self.behind)}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()


class ZygoteError(Exception):
    """A zygote could not start, could not prepare, died, or was closed.

    Attributes:
        phase: ``launch``, or ``import`` once it has begun to prepare.
        error: the exception that its preparation raised.
        returncode: how its process ended (negative for a signal), where that is what went wrong.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: Literal["launch", "import"] = "launch",
        error: dict[str, str] | None = None,
        returncode: int | None = None,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.error = error
        self.returncode = returncode


class ZygoteTimeout(ZygoteError):
    """The start exceeded its limit and was ended.

    Attributes:
        limit: the seconds that have passed.
        stacks: of the processes that were ended, as ``faulthandler`` writes them.
        output: the end of what they had written.
    """

    def __init__(self, limit: float, *, stacks: str = "", output: str = "") -> None:
        super().__init__(f"not ready after {limit:g} s\n{output}", phase="import")
        self.limit, self.stacks, self.output = limit, stacks, output


class ZygoteUnwanted(ZygoteError):
    """A start was cancelled, as nobody waits for it; the preparation may be fine."""


def exit_text(code: int) -> str:
    """An exit status as text: ``exit code 3`` or ``signal SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def code_behind_prefix(code: int) -> int:
    return 128 - code if code > 128 and code - 128 in set(signal.Signals) else code


def prefix_text(command: Sequence[str]) -> str:
    return shlex.join(
        re.sub(r"\A(--env=|-e)?([A-Za-z_]\w*)=.*", r"\1\2=...", word, flags=re.DOTALL) for word in command
    )


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended.

    Attributes:
        returncode: of its process; ``None`` where that outlived SIGKILL, as for ``max_rss_bytes``.
        swept: the processes that it had left behind.
        unkillable: processes that could not be ended.
        at: when, in seconds of ``time.time()``.
    """

    returncode: int | None
    max_rss_bytes: int | None = None
    swept: Sequence[str] = ()
    unkillable: Sequence[str] = ()
    at: float = 0.0


class Task:
    """A task that was handed to a child process.

    One thread follows it, with ``next_message``; any thread may ``send`` and ``kill``.

    Attributes:
        ended: how it ended.
    """

    def __init__(self, server: Zygote, channel: Channel, fate: Channel, *, gives_stacks: bool) -> None:
        self._pid: int | None = None
        self.ended: TaskEnd | None = None
        self._server = server
        self._channel: Channel | None = channel
        self._fate = fate
        self._gives_stacks = gives_stacks
        self._lost: ZygoteError | None = None

    @property
    def pid(self) -> int:
        """The pid of the child; waits until it is forked.

        Raises:
            ZygoteError: it is not.
        """
        while self._pid is None:
            if self._lost is not None:
                raise self._lost
            self._take_report()
        return self._pid

    @property
    def known_pid(self) -> int | None:
        """The pid of the child, once the thread that follows it has heard of it; does not wait."""
        return self._pid

    def next_message(self, deadline: float | None) -> Message | None:
        """The next message of the child, or ``None`` once it has ended and all its messages have been read.

        Args:
            deadline: a time of ``time.monotonic()``, or ``None`` to wait without limit.

        Raises:
            TimeoutError: the deadline has passed first.
            ZygoteError: the zygote died, and with it the child; all that the child had sent has been read.
        """
        while True:
            # After its end, read what is there, and do not wait for a descendant that still holds the channel.
            over = self.ended is not None or self._lost is not None
            sources = [] if over else [self._fate]
            if self._channel is not None:
                sources.append(self._channel)
            limit = 0.0 if over else deadline
            ready = wait(sources, None if limit is None else max(0.0, limit - time.monotonic())) if sources else []
            if self._channel is not None and self._channel in ready:
                try:
                    message = self._channel.receive_part(socket.MSG_DONTWAIT)
                except EOFError:
                    self.close()
                else:
                    if message is not None:
                        return message
            elif self._channel is not None and over:
                self.close()
            elif self._lost is not None:
                raise self._lost
            elif over:
                return None
            elif not ready:
                raise TimeoutError
            else:
                self._take_report()

    def _take_report(self) -> None:
        report = self._fate.receive()
        if report is None:
            self._lost = self._server.death()
        elif report["type"] == "forked":
            self._pid = report["pid"]
        elif report["type"] == "unforked":
            self._lost = ZygoteError(f"the zygote cannot fork: {report['error']}")
        else:
            del report["type"]
            self.ended = TaskEnd(**report)
        if self.ended is not None or self._lost is not None:
            self._fate.close()

    def send(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send to the child, whose ``channel`` receives it; raises ``OSError`` when it no longer listens."""
        self._open_channel().send(message, descriptors)

    def send_fd(self, fd: int) -> None:
        self._open_channel().send_fd(fd)

    def _open_channel(self) -> Channel:
        if (channel := self._channel) is None:
            raise BrokenPipeError("the task's process no longer listens")
        return channel

    def kill(self, grace: float, also: Sequence[int] = (), *, stacks: bool = True) -> None:
        """End all its processes: SIGTERM, ``grace`` seconds, SIGKILL. First take their stacks, if a file waits.

        ``also``: other processes to ask for stacks; ``stacks``: whether they are wanted.
        A second call meanwhile shortens the grace; a call after the end
        does nothing.
        """
        self._server.wake()
        with contextlib.suppress(OSError):
            self._fate.send({"grace": grace, "stacks": self._gives_stacks and stacks, "also": list(also)})

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _order_fork(zygote: Channel) -> tuple[Channel, Channel]:
    """Have a child forked; the channel to it, and that of its fate."""
    channel, theirs = Channel.pair()
    fate, its = Channel.pair()
    with contextlib.closing(theirs), contextlib.closing(its):
        # In one piece: other threads send orders, too.
        zygote.send({"op": "fork"}, [theirs.fileno(), its.fileno()])
    return channel, fate


class LentFork(process_tree.Fork):
    """A task in a fork of a zygote that another process owns and lent to this one (``Zygote.lend``).

    The zygote, its parent, reports its end. The task ends with this process. ``swept``: processes it left.

    Args:
        zygote: what was lent.
        payload: JSON value for the task's function.
        stdout, stderr: files for what is written there.

    Raises:
        OSError: the zygote has gone, or cannot fork.
    """

    def __init__(self, zygote: Channel, payload: Any, *, stdout: str, stderr: str) -> None:
        self.swept: list[str] = []
        self._channel, self._fate = _order_fork(zygote)
        outputs = {"stdout": stdout, "stderr": stderr, "stacks": None}
        self._channel.send({"payload": payload, **outputs, "cores": None, "descriptors": 0})
        report = self._fate.receive()
        if report is None or report["type"] != "forked":
            raise OSError("the zygote has gone" if report is None else f"the zygote cannot fork: {report['error']}")
        super().__init__(report["pid"])

    def look(self) -> int | None:
        """The exit code, once all its processes are gone; else ``None``."""
        if not self._fate.poll():
            return None
        report = self._fate.receive()
        self._fate.close()
        self._channel.close()
        code: int | None = None
        if report is not None:
            code, self.swept = report["returncode"], report["swept"]
        return -signal.SIGKILL if code is None else code


class PrefixSocket:
    def __init__(self, far: Channel, tag: str) -> None:
        self._far = far
        self._tag = tag
        #: The process that has connected, as a descriptor; ``None`` before, and where this host does not show it.
        self._process: int | None = None
        self._folder = UsedFolder(make_own)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            folder = os.open(self._folder.path, os.O_PATH | os.O_DIRECTORY)
            try:  # an address has 107 bytes at most, which the path of a temporary directory may exceed
                self._listener.bind(f"/proc/self/fd/{folder}/{_SOCKET_NAME}")
            finally:
                os.close(folder)
            self._listener.listen()
            self._listener.settimeout(_INTRODUCTION)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        return self._listener.fileno()

    def arguments(self) -> list[str]:
        """Arguments for ``zygote_entry``: the socket and the tag."""
        return [str(self._folder.path / _SOCKET_NAME), self._tag]

    def admit(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(_INTRODUCTION)
                size = _CREDENTIALS.size
                pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
                # Root can be anyone here; in a user namespace, its root is this user.
                if uid in (os.getuid(), 0) and connection.recv(256).decode(errors="replace") == self._tag:
                    socket.send_fds(connection, [b"f"], [self._far.fileno()])
                    self._forget_process()
                    self._process = os.pidfd_open(pid)  # fails for pid 0, of a namespace that cannot be seen from here

    def kill(self) -> None:
        """SIGKILL the process that has connected, which may outlive its prefix."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # gone, or of another user
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def hang_up(self) -> None:
        """Refuse further connections; the channel then ends with the zygote."""
        self._listener.close()
        self._far.close()
        self._folder.close()

    def close(self) -> None:
        """Free everything; twice is harmless."""
        self.hang_up()
        self._forget_process()

    def _forget_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.close(process)


class Seed(process_tree.Fork):
    """A fork of this process, made while it has no threads; it becomes a zygote without starting an interpreter.

    It is used by the first zygote of the same environment.

    Args:
        private: what the fork must not keep open.
    """

    #: In a slot, what a fork of it must not keep open.
    of_slot: tuple[Channel | socket.socket, ...] = ()

    def __init__(self, *private: Channel | socket.socket) -> None:
        self.environ = dict(os.environ)
        self.control, theirs = Channel.pair()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the zygote)
        self.used = False
        parent = os.getpid()
        super().__init__(os.fork())
        if self.pid == 0:
            try:
                from pytest_aorta.runtime.zygote_main import main

                for end in (*private, self.control):
                    end.close()
                os.setsid()
                for fd in (1, 2):
                    os.dup2(self.log.fileno(), fd)
                main(theirs.fileno(), parent)
            finally:
                os._exit(1)
        theirs.close()

    def fits(self, spec: ZygoteSpec) -> bool:
        """Whether this process fits a specification; adds missing entries to ``sys.path``."""
        return not self.used and not spec.has_prefix and dict(spec.environ) == self.environ

    def close(self) -> None:
        if not self.used:
            self.used = True
            self.control.close()
            self.log.close()
            self.wait(_LINGER)


class Zygote:
    """A running zygote process: start it, wait until it is ready, start tasks, close it. Thread-safe.

    The thread that starts it has to live until it is ready; the kernel takes that thread's end for its parent's.

    Attributes:
        spec: what it was started from.
        info: what its preparation returned.
        against_forking: why it may not be forked, and serves no tasks.
        tag: in the environment of it and of its descendants.
        load_sec: seconds that ``ZygoteSpec.load`` took, and ``loaded_at``, when it had ended (``time.monotonic()``).
        start_sec: seconds from its start until it was ready; ``start_cpu_sec``: of those, on a core.
    """

    def __init__(self, spec: ZygoteSpec, seed: Seed | None = None) -> None:
        self.spec = spec
        self.info: dict[str, Any] = {}
        self.against_forking: list[str] = []
        self.tag = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | Seed
        self.load_sec: float | None = None
        self.loaded_at = 0.0
        self.start_sec = self.start_cpu_sec = 0.0
        self._started_at = time.monotonic()
        self._ready = False
        self._ending = False
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end())
        self._log_lock = threading.Lock()
        self._last_output = ""
        self._death: ZygoteError | None = None
        self._dying = threading.Lock()
        #: Open until a zygote behind a prefix has reported; keeps the way to end it until this is closed.
        self._socket: PrefixSocket | None = None
        if seed is None:
            self._start()
        else:
            self._log.close()
            self._process, self.control, self._log = seed, seed.control, seed.log
        order: dict[str, Any] = {}
        for name in ("prepare", "argument", "run", "sys_path", "fresh", "load", "rehearse"):
            order[name] = getattr(spec, name)
        # The end of the channel alone says too little: every fork of this process has a copy of it.
        owner: tuple[int, ...] = ()
        with contextlib.suppress(OSError):  # Linux before 5.3
            owner = (os.pidfd_open(os.getpid()),)
        try:
            with contextlib.suppress(OSError):  # it has died already, which ``wait_ready`` notices
                if spec.has_prefix:
                    environ = {**spec.behind.restored, process_tree.VARIABLE: self.tag}
                    self.control.send({"environ": environ, "cwd": spec.cwd})
                self.control.send({**order, "owner": bool(owner)}, owner)
        finally:
            for descriptor in owner:
                os.close(descriptor)

    def _start(self) -> None:
        spec = self.spec
        self.control, theirs = Channel.pair()
        fd, parent = theirs.fileno(), str(os.getpid())
        try:
            if spec.has_prefix:
                self._socket = PrefixSocket(theirs, self.tag)
                packages = spec.behind.packages
                script = _ENTRY if packages is None else Path(packages, *_ENTRY.parts[-3:])
                words = [*self._with_tag(spec.command), str(script), parent, *self._socket.arguments()]
                command = words if packages is None else [*words, packages]
            else:
                command = [*spec.command, "-c", _BOOTSTRAP, str(fd), parent]
            self._process = subprocess.Popen(
                command,
                env={**spec.environ, process_tree.VARIABLE: self.tag},
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[] if spec.has_prefix else [fd],
                start_new_session=True,  # Ctrl-C is for pytest, which then ends its trials in order
            )
        except OSError as error:
            self.control.close()
            self._log.close()
            behind = f", of {self._name.rstrip()}" if spec.has_prefix else ""
            if self._socket is not None:
                self._socket.close()
            raise ZygoteError(f"cannot start {spec.command[0]!r}{behind}: {error}") from error
        finally:
            if self._socket is None:
                theirs.close()

    def _with_tag(self, words: Sequence[str]) -> list[str]:
        return [word.replace(TAG_WORD, self.tag) for word in words]

    # The start

    def wait_ready(
        self,
        limits: StartLimits = StartLimits(),
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Block until prepared. ``cancelled`` is asked again and again, and must answer quickly.

        Raises:
            ZygoteTimeout: it took longer to prepare than it may, and was ended.
            ZygoteUnwanted: it was ``cancelled``, and was ended.
            ZygoteError: it could not be started or prepared; ``phase`` is ``launch`` or ``import``.
        """
        phase: Literal["launch", "import"] = "launch"
        limit, overall = limits.total, time.monotonic() + limits.total
        give_up = overall
        while not self._ready:
            timeout, prefix = min(LOOK, max(0.0, give_up - time.monotonic())), self._socket
            if prefix is None or prefix.fileno() < 0:
                has_come = self.control.poll(timeout)
            else:
                ready = wait([self.control, prefix.fileno()], timeout)
                has_come = prefix.fileno() not in ready and (bool(ready) or not self.alive())
                if has_come:
                    prefix.hang_up()
                elif ready:
                    prefix.admit()
            if not has_come:
                if cancelled():
                    self.close()
                    raise ZygoteUnwanted("its start was cancelled", phase=phase)
                if time.monotonic() < give_up:
                    continue
                if phase == "launch":
                    self.close()
                    raise ZygoteError(f"{self._name}not ready after {limit:g} s\n{self.output()}")
                output = self.output()
                stacks = self._end_import(limits.grace)
                self.close()
                raise ZygoteTimeout(limit, stacks=stacks, output=output)
            report = self.control.receive()
            if report is None:
                raise self._failed_start(phase)
            if report["type"] == "failed":
                self.close()
                error = report["error"]
                raise ZygoteError(f"{error['type']}: {error['message']}", phase="import", error=error)
            phase, limit, give_up = "import", limits.total, overall
            if report["type"] == "loading" and limits.load is not None:
                limit, give_up = limits.load, time.monotonic() + limits.load
            elif report["type"] == "loaded":
                self.load_sec, self.loaded_at = report["sec"], time.monotonic()
            elif report["type"] == "ready":
                if report["version"] != __version__:
                    self.close()
                    raise ZygoteError(
                        f"{self.spec.command[-1]} has pytest-aorta {report['version']}, but this is "
                        f"{__version__}; install the same version there"
                    )
                self.start_sec, self.start_cpu_sec = time.monotonic() - self._started_at, report["cpu_sec"]
                self.info, self.against_forking, self._ready = report["info"], report["against_forking"], True

    def _end_import(self, grace: float) -> str:
        family = process_tree.Family(lambda: [self._process.pid, *process_tree.tagged_processes(self.tag)])
        with self._log_lock:
            written = 0 if self._log.closed else os.fstat(self._log.fileno()).st_size
        process_tree.request_stacks(family.members())
        with self._log_lock:
            stacks = b"" if self._log.closed else os.pread(self._log.fileno(), _STACKS, written)
        process_tree.end_all(family.members, self._process.poll, grace, hurry=lambda: self._ending)
        return stacks.decode(errors="replace")

    @property
    def _name(self) -> str:
        return "" if self._socket is None else f"`{prefix_text(self._with_tag(self.spec.command))}` "

    def _failed_start(self, phase: Literal["launch", "import"]) -> ZygoteError:
        closed = self._ending
        code = None if closed else self._wait()
        output = self.output()
        self.close()
        if code is None:
            return ZygoteError(f"the zygote (pid {self._process.pid}) was closed before it was ready", phase=phase)
        if "No module named 'pytest_aorta'" in output:
            python = self.spec.command[-1]
            return ZygoteError(
                f"pytest-aorta is not installed for {python}; install it there, for instance with\n"
                f"  {python} -m pip install pytest-aorta=={__version__}"
            )
        text = f"{self._name}ended with {exit_text(code)} before it was ready\n{output}".rstrip()
        return ZygoteError(text, phase=phase, returncode=code)

    # Tasks

    def start_task(
        self,
        payload: Any,
        *,
        stdout: Path | None = None,
        stderr: Path | None = None,
        stacks: Path | None = None,
        cores: Sequence[int] | None = None,
        descriptors: Sequence[int] = (),
    ) -> Task:
        """Have a child forked, and hand it a task.

        Args:
            payload: JSON value for the task's function.
            stdout: a file for everything that is written there; ``None`` leaves it to the zygote's own log.
            stderr: the same.
            stacks: a file for the stacks that ``Task.kill`` takes; ``None`` for no stacks.
            cores: cores that the child may run on; ``None``: as the zygote.
            descriptors: open files that the child keeps as long as it lives, locked ones for instance.

        Raises:
            ZygoteError: the zygote is gone. That it cannot fork, the task says.
        """
        task = {
            "payload": payload,
            "stdout": stdout and str(stdout),
            "stderr": stderr and str(stderr),
            "stacks": stacks and str(stacks),
            "cores": None if cores is None else list(cores),
            "descriptors": len(descriptors),
        }
        try:
            channel, fate = _order_fork(self.control)
        except OSError:
            raise self.death() from None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died, as its fate will say
                channel.send(task, descriptors)
        except BaseException:
            channel.close()
            fate.close()  # which ends the child, if there is one
            raise
        return Task(self, channel, fate, gives_stacks=stacks is not None)

    def lend(self) -> Channel:
        """A socket with which another process orders forks, see ``LentFork``; hand it over, then close it here.

        Raises:
            ZygoteError: the zygote is gone.
        """
        ours, theirs = Channel.pair()
        with contextlib.closing(theirs):
            try:
                self.control.send({"op": "lend"}, [theirs.fileno()])
            except OSError:
                ours.close()
                raise self.death() from None
        return ours

    # The end

    def _wait(self, patience: float | None = None) -> int:
        try:
            code = self._process.wait(_LINGER if patience is None and self.spec.has_prefix else patience)
        except subprocess.TimeoutExpired:
            code = self._kill()
        return code_behind_prefix(code) if self.spec.has_prefix else code

    def _kill(self) -> int:
        if self._socket is not None:
            self._socket.kill()
        with contextlib.suppress(PermissionError):  # another user's, by sudo; it ends with what it has started
            self._process.kill()
        if self._socket is not None and self.spec.behind.stop:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                stop = self._with_tag(self.spec.behind.stop)
                subprocess.run(stop, capture_output=True, timeout=_STOP_TIMEOUT, check=False)
        try:
            return self._process.wait(_LINGER)
        except subprocess.TimeoutExpired:  # in uninterruptible sleep, or another user's
            return -signal.SIGKILL

    def death(self) -> ZygoteError:
        """The error to raise once the zygote is gone; ends the processes that it left."""
        with self._dying:  # which the threads of all its tasks find out at the same time
            if self._death is None:
                if self._ending:
                    return ZygoteError(f"the zygote (pid {self._process.pid}) was closed")
                code = self._wait(_LINGER)
                self._sweep()
                text = f"the zygote (pid {self._process.pid}) died with {exit_text(code)}\n{self.output()}"
                self._death = ZygoteError(text.rstrip(), returncode=code)
            return ZygoteError(str(self._death), returncode=self._death.returncode)  # each thread has a traceback

    def wake(self) -> None:
        """Send SIGCONT: a stopped zygote would not end its tasks."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGCONT)

    def alive(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        with self._log_lock:
            return self._last_output if self._log.closed else self._read_output()

    def _read_output(self) -> str:
        # Without seeking: the position is the one that the zygote writes at.
        fd = self._log.fileno()
        return os.pread(fd, _OUTPUT, max(0, os.fstat(fd).st_size - _OUTPUT)).decode(errors="replace")

    def _sweep(self) -> None:
        process_tree.end_all(lambda: process_tree.tagged_processes(self.tag), lambda: None, grace=0)

    def hang_up(self) -> None:
        self._ending = True
        self.control.hang_up()

    def end(self, grace: float = 10.0) -> None:
        """End the zygote and whatever it runs; a thread that waits for a task gets ``ZygoteError``."""
        self.hang_up()
        try:
            code = self._process.wait(timeout=grace if self._ready else 0.2)
        except subprocess.TimeoutExpired:
            code = self._kill()  # busy importing, or stuck: it does not read its channel
        if code != 0:  # it has not done so itself
            self._sweep()
        with self._log_lock:
            if not self._log.closed:
                self._last_output = self._read_output()  # an error may still quote it
                self._log.close()

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless."""
        self.end(grace)
        self.control.close()
        if self._socket is not None:
            self._socket.close()
