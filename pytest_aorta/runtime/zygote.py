"""The parent's side of zygotes: processes that prepare once and fork one child per task."""

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
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, Protocol, cast

from pytest_aorta._version import __version__
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime import process_tree as process_tags
from pytest_aorta.runtime.channel import Channel, Message, wait
from pytest_aorta.runtime.process_tree import new_tag
from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own
from pytest_aorta.runtime.zygote_main import (
    BranchFate,
    ChildTask,
    ExtensionReport,
    ForkReport,
    PrepareOrder,
    ServerOrder,
    Standby,
    StartReport,
    Surroundings,
    TaskEnd,
)

#: Seconds that a zygote may take to get ready.
STARTUP_TIMEOUT = 300.0


@dataclass(frozen=True)
class StartLimits:
    """How long the start of a zygote may take.

    Attributes:
        load: seconds for ``ZygoteSpec.load``; ``None`` for no limit of its own.
        grace: seconds between SIGTERM and SIGKILL when it takes longer.
        total: seconds for everything.
    """

    load: float | None = None
    grace: float = 0.0
    total: float = STARTUP_TIMEOUT


@dataclass(frozen=True)
class Behind:
    """What to know of a launcher prefix; its words may hold ``prefix_socket.TAG_WORD``.

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
    """Everything that is fixed when a zygote starts; two tasks may share a zygote only if all of it is equal.

    Attributes:
        command: launcher prefix and interpreter.
        environ: the complete environment of the process.
        prepare: ``module:function``, called once with ``argument``; returns a JSON mapping.
        argument: JSON value for ``load`` and ``prepare``.
        run: ``module:function``, called in every child as ``run(payload, channel)``. The channel leads to the
            submitter of the task, and carries messages both ways.
        sys_path: entries appended to the child's ``sys.path`` where missing.
        cwd: working directory.
        fresh: prepare in every child instead, each in an interpreter of its own.
        warm_up: ``module:function``, called with ``argument`` in every child that stands by, to touch what its task
            will touch. After a fork, the first touch of a page costs about a microsecond, and a task's start is
            hundreds of them; this way they are over before the task comes. Must have no other effect.
        load: ``module:function``, called with ``argument`` before ``prepare``, to import what is not ours: its time is
            measured, and limited by ``StartLimits``.
        behind: about the prefix, where ``command`` has one.
        extend: ``module:function``, called once in a branch that is started with an ``extension``, a JSON value, with
            that value. What it imports is there for the tasks of this branch only. It returns a JSON mapping of what
            it refuses to do, empty for nothing; otherwise the branch does not serve.
        orphaned: ``module:function``, called when the parent has been killed and all tasks are over, to put away what
            it has left. Not behind a prefix.
        concurrent: run any number of tasks at the same time, each in a child that is forked when its task comes. Such a
            zygote has neither a child that stands by nor branches; its tasks are those of ``concurrent_task``.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    prepare: str
    argument: Any
    run: str
    sys_path: tuple[str, ...]
    cwd: str
    fresh: bool = False
    warm_up: str | None = None
    extend: str | None = None
    load: str | None = None
    orphaned: str | None = None
    concurrent: bool = False
    behind: Behind = field(default_factory=Behind)

    @property
    def has_prefix(self) -> bool:
        """Whether something stands in front of the interpreter."""
        return len(self.command) > 1

    def with_variables(self, variables: Mapping[str, str]) -> ZygoteSpec:
        """With more variables, which reach the process behind any prefix."""
        behind = replace(self.behind, restored={**self.behind.restored, **variables})
        return replace(self, environ={**self.environ, **variables}, behind=behind)

    def key(self) -> str:
        """Digest of all fields."""
        return self._key

    @cached_property
    def _key(self) -> str:
        fields = [
            self.command,
            sorted(self.environ.items()),
            self.prepare,
            self.argument,
            self.run,
            self.sys_path,
            self.cwd,
            self.fresh,
            self.warm_up,
            self.extend,
            self.load,
            self.orphaned,
            self.concurrent,
            [sorted(self.behind.restored.items()), self.behind.packages, self.behind.stop],
        ]
        return hashlib.sha256(json.dumps(fields).encode("utf-8", "surrogateescape")).hexdigest()


#: What a zygote was doing when it failed: being started, or preparing.
StartPhase = Literal["launch", "import"]


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
        phase: StartPhase = "launch",
        error: dict[str, str] | None = None,
        returncode: int | None = None,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.error = error
        self.returncode = returncode

    def again(self) -> ZygoteError:
        """The same for another thread, which must not share a traceback."""
        return type(self)(str(self), phase=self.phase, error=self.error, returncode=self.returncode)


class ExtensionFailed(ZygoteError):
    """A branch could not be prepared further; its zygote is as it was.

    Attributes:
        refused: what the function returned that was to do it, if it did.
    """

    refused: Mapping[str, Any] = MappingProxyType({})


class ZygoteTimeout(ZygoteError):
    """Its start took longer than it may, and was ended.

    Attributes:
        limit: the seconds that have passed.
        stacks: of the processes that were ended, as ``faulthandler`` writes them.
        output: the end of what they had written.
    """

    def __init__(self, limit: float, *, stacks: str, output: str) -> None:
        super().__init__(f"not ready after {limit:g} s\n{output}", phase="import")
        self.limit = limit
        self.stacks = stacks
        self.output = output

    def again(self) -> ZygoteTimeout:
        """The same for another thread, which must not share a traceback."""
        return type(self)(self.limit, stacks=self.stacks, output=self.output)


class ZygoteUnwanted(ZygoteError):
    """Its start was ended because it was not waited for any more; this says nothing about what it was to prepare."""


def exit_text(code: int) -> str:
    """An exit status as text: ``exit code 3`` or ``signal SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def code_behind_prefix(code: int) -> int:
    """The exit status of what ran behind a prefix: by the convention of shells, 128 + N for signal N."""
    return 128 - code if code > 128 and code - 128 in set(signal.Signals) else code


def prefix_text(command: Sequence[str]) -> str:
    """A command as it would be typed, without the values of variables, which may be secrets."""
    return shlex.join(
        re.sub(r"\A(--env=|-e)?([A-Za-z_]\w*)=.*", r"\1\2=...", word, flags=re.DOTALL) for word in command
    )


class TaskEnded(Exception):
    """The task's process has ended and all its messages have been read; ``Task.ended`` says how it went."""


class TaskOwner(Protocol):
    """The parent's side of the process whose child runs a task."""

    control: Channel

    def next_report(self) -> TaskEnd | None:
        """Read the control channel: the end of the task, or ``None`` for something else."""

    def order(self, order: ServerOrder) -> None:
        """Send an order; that the process is dead is noticed elsewhere."""


class Task:
    """A task that was handed to a child process.

    One thread follows it, with ``next_message`` or with ``poll_message``; any thread may ``send`` and ``kill``.
    """

    def __init__(self, server: TaskOwner, channel: Channel, pid: int) -> None:
        self.pid = pid
        self.ended: TaskEnd | None = None
        #: What was wrong with its last message, if that could not be read.
        self.garbage = ""
        self._server = server
        self._channel: Channel | None = channel
        self._lost: ZygoteError | None = None

    def next_message(self, deadline: float | None) -> Message | None:
        """The next message of the child, or ``None`` once it has ended and all its messages have been read.

        Args:
            deadline: a time of ``time.monotonic()``, or ``None`` to wait without limit.

        Raises:
            TimeoutError: the deadline has passed first.
            ZygoteError: the zygote died, and with it the child; all that the child had sent has been read.
        """
        try:
            message = self._follow(deadline)
        except TaskEnded:
            return None
        if message is None:
            raise TimeoutError
        return message

    def poll_message(self) -> Message | None:
        """The next message if it is there already; ``None`` if it is not. For a caller that watches ``filenos``.

        Raises:
            TaskEnded: there will be no more.
            ZygoteError: as for ``next_message``.
        """
        return self._follow(0.0)

    def hear(self) -> Message | None:
        """The next message of the child; ``None`` if it is not there, or not yet as a whole. Does not wait.

        Cheaper than ``poll_message``, which also finds out how it has ended.

        Raises:
            EOFError: it will send nothing more.
        """
        if self._channel is None:
            raise EOFError
        try:
            return self._channel.receive_part(socket.MSG_DONTWAIT)
        except EOFError as end:
            self.garbage = str(end)
            raise

    def filenos(self) -> list[int]:
        """Descriptors to watch: one that can be read is a reason to call ``poll_message``, until it gives ``None``.

        To be asked again after that: a child that closes its channel leaves only the zygote's one.
        """
        return [source.fileno() for source in self._sources()]

    def _sources(self) -> list[Channel]:
        sources = [] if self._channel is None else [self._channel]
        return sources if self._over() else [*sources, self._server.control]

    def _over(self) -> bool:
        return self.ended is not None or self._lost is not None

    def _follow(self, deadline: float | None) -> Message | None:
        """The next message, or ``None`` when the deadline has passed; the end is an exception."""
        while True:
            # After its end, read what is there, and do not wait for a descendant that still holds the channel.
            over = self._over()
            limit = 0.0 if over else deadline
            timeout = None if limit is None else max(0.0, limit - time.monotonic())
            sources = self._sources()
            ready = wait(sources, timeout) if sources else []
            if self._channel is not None and self._channel in ready:
                try:
                    message = self.hear()
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
                raise TaskEnded
            elif not ready:
                return None
            else:
                self._take_report()

    def _take_report(self) -> None:
        try:
            self.ended = self._server.next_report()
        except ZygoteError as error:
            self._lost = error  # raised once the child's last messages have been read

    def send(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send to the child, whose ``channel`` receives it; raises ``OSError`` when it no longer listens."""
        self.open_channel().send(message, descriptors)

    def send_fd(self, fd: int) -> None:
        """Hand the child a descriptor."""
        self.open_channel().send_fd(fd)

    def open_channel(self) -> Channel:
        """The child's channel; raises ``OSError`` when it is closed."""
        channel = self._channel
        if channel is None:
            raise BrokenPipeError("the task's process no longer listens")
        return channel

    def kill(self, grace: float) -> None:
        """Take the stacks of all its processes, then end them: SIGTERM, ``grace`` seconds, SIGKILL.

        Again while that lasts: with the shorter of both graces. After the end: nothing happens, even if another task
        runs in the same zygote by then.
        """
        self._server.order({"op": "kill", "pid": self.pid, "grace": grace})

    def close(self) -> None:
        """Forget the child's channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


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
        extension: what it was prepared with besides its specification; ``None`` for nothing.
        extending: whether that is going on.
        control: carries orders to it, and reports from it.
        tag: of it and its descendants; see ``process_tags``.
    """

    spec: ZygoteSpec
    info: dict[str, Any]
    against_forking: list[str]
    extension: Any
    extending: bool
    control: Channel
    tag: str

    def __init__(self) -> None:
        self.extension = None
        self.extending = False
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


# The parent's side of the way to a zygote behind a launcher prefix, which may close the descriptors it inherits.
#
# The zygote takes the inherited descriptor of its control channel if the prefix has left it open. Otherwise it
# connects to a socket on the file system, in a folder that only this user can enter, and is handed the same descriptor
# there.


#: In the words of a command: replaced by the tag of the zygote.
TAG_WORD = "@AORTA_TAG@"

_NAME = "zygote.sock"

#: Seconds that a process which has connected may take to say which zygote it is.
_INTRODUCTION = 5.0

_CREDENTIALS = struct.Struct("3i")


class PrefixSocket:
    """Open until the zygote has reported.

    Args:
        far: the zygote's end of its control channel.
        tag: of the zygote; what connects has to know it.

    Raises:
        OSError: there is no place for it in the temporary directory.
    """

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
                self._listener.bind(f"/proc/self/fd/{folder}/{_NAME}")
            finally:
                os.close(folder)
            self._listener.listen()
            self._listener.settimeout(_INTRODUCTION)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._listener.fileno()

    def arguments(self) -> list[str]:
        """What ``zygote_entry`` needs: the descriptor, by which it can be recognised, the socket, the tag."""
        fd = self._far.fileno()
        return [str(fd), str(os.fstat(fd).st_ino), str(self._folder.path / _NAME), self._tag]

    def admit(self) -> None:
        """Hand the descriptor to what has connected, if that is the zygote."""
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(_INTRODUCTION)
                size = _CREDENTIALS.size
                pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
                # Root can be anyone here; in a user namespace, its root is this user.
                if uid in (os.getuid(), 0) and connection.recv(256).decode(errors="replace") == self._tag:
                    socket.send_fds(connection, [b"f"], [self._far.fileno()])
                    self._watch(pid)

    def _watch(self, pid: int) -> None:
        self._forget_process()
        with contextlib.suppress(OSError):  # pid 0: of a namespace that cannot be seen from here
            self._process = os.pidfd_open(pid)

    def kill(self) -> None:
        """SIGKILL for the process that has connected. The end of a prefix need not be that of what it has started."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # gone, or of another user
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def hang_up(self) -> None:
        """Let nothing connect any more, and let the end of the zygote be the end of the channel."""
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


#: The working directory must not shadow what the interpreter imports, as ``-c`` would let it.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pytest_aorta.runtime.zygote_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

#: Bytes of its output that an error quotes, and of the stacks in it.
_OUTPUT, _STACKS = 4000, 2**18

#: Seconds that the process may take to end once its channel has closed.
_LINGER = 5.0

#: Seconds between two looks at a prefix whose zygote has not reported: whether it still runs.
_LOOK = 0.05

#: Seconds that a command may take which ends what a prefix has started.
_STOP_TIMEOUT = 10.0

#: What runs behind a prefix.
_ENTRY = Path(__file__).with_name("zygote_entry.py")


class Zygote(Server):
    """A running zygote process. Start it, wait until it is ready, submit one task at a time, close it.

    The thread that starts it has to live until it is ready; the kernel takes that thread's end for its parent's.
    """

    def __init__(self, spec: ZygoteSpec) -> None:
        super().__init__()
        self.spec = spec
        self.info = {}
        self.against_forking = []
        self.tag = process_tags.new_tag()
        #: Seconds that ``ZygoteSpec.load`` took, and when it had ended (``time.monotonic()``).
        self.load_sec: float | None = None
        self.loaded_at = 0.0
        self._ready = False
        #: Tags of its branches, as long as processes of theirs may be left.
        self.branch_tags: set[str] = set()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end())
        self._log_lock = threading.Lock()  # a branch's thread may ask for the output while this one is ended
        self._last_output = ""
        self._died: ZygoteError | None = None
        self._dying = threading.Lock()
        ours, theirs = Channel.pair()
        self.control = ours
        #: Open until a zygote behind a prefix has reported; keeps the way to end it until this is closed.
        self._socket: PrefixSocket | None = None
        try:
            if spec.has_prefix:
                self._socket = PrefixSocket(theirs, self.tag)
            self._process = subprocess.Popen(
                self._command(theirs.fileno()),
                env={**spec.environ, process_tags.VARIABLE: self.tag},
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for pytest, which then ends its trials in order
            )
        except OSError as error:
            ours.close()
            self._log.close()
            behind = f", of {self._name.rstrip()}" if spec.has_prefix else ""
            if self._socket is not None:
                self._socket.close()
            raise ZygoteError(f"cannot start {spec.command[0]!r}{behind}: {error}") from error
        finally:
            if self._socket is None:
                theirs.close()
        if spec.has_prefix:
            surroundings: Surroundings = {
                "environ": {**spec.behind.restored, process_tags.VARIABLE: self.tag},
                "cwd": spec.cwd,
            }
            with contextlib.suppress(OSError):  # as below
                ours.send(surroundings)
        order: PrepareOrder = {
            "prepare": spec.prepare,
            "argument": spec.argument,
            "run": spec.run,
            "sys_path": list(spec.sys_path),
            "fresh": spec.fresh,
            "warm_up": spec.warm_up,
            "extend": spec.extend,
            "load": spec.load,
            "orphaned": spec.orphaned,
            "concurrent": spec.concurrent,
            "owner": False,
        }
        with contextlib.suppress(OSError):  # it has died already, which ``wait_ready`` notices
            _send_with_owner(ours, order)

    def _command(self, fd: int) -> list[str]:
        """The command of the process, which inherits ``fd``."""
        if self._socket is None:
            return [*self.spec.command, "-c", _BOOTSTRAP, str(fd), str(os.getpid())]
        packages = self.spec.behind.packages
        script = _ENTRY if packages is None else Path(packages, *_ENTRY.parts[-3:])
        words = [*self._with_tag(self.spec.command), str(script), str(os.getpid()), *self._socket.arguments()]
        return words if packages is None else [*words, packages]

    def _with_tag(self, words: Sequence[str]) -> list[str]:
        return [word.replace(TAG_WORD, self.tag) for word in words]

    def wait_ready(self, limits: StartLimits = StartLimits()) -> None:
        """Block until prepared.

        Raises:
            ZygoteTimeout: it took longer to prepare than it may, and was ended.
            ZygoteError: it could not be started or prepared; ``phase`` is ``launch`` or ``import``.
        """
        if self._ready:
            return
        phase: StartPhase = "launch"
        limit, overall = limits.total, time.monotonic() + limits.total
        give_up = overall
        while (report := self._start_report(phase, give_up, limit, limits.grace))["type"] not in ("failed", "ready"):
            phase, limit, give_up = "import", limits.total, overall
            if report["type"] == "loading" and limits.load is not None:
                limit, give_up = limits.load, time.monotonic() + limits.load
            elif report["type"] == "loaded":
                self.load_sec, self.loaded_at = report["sec"], time.monotonic()
        if report["type"] == "failed":
            self.close()
            error = report["error"]
            raise ZygoteError(f"{error['type']}: {error['message']}", phase="import", error=error)
        if report["version"] != __version__:
            self.close()
            raise ZygoteError(
                f"{self.spec.command[-1]} has pytest-aorta {report['version']}, but this is "
                f"{__version__}; install the same version there"
            )
        self._ready = True
        self.info = report["info"]
        self.against_forking = report["against_forking"]

    def _start_report(self, phase: StartPhase, give_up: float, limit: float, grace: float) -> StartReport:
        if not self._poll(max(0.0, give_up - time.monotonic())):
            if phase == "launch":
                self.close()
                raise ZygoteError(f"{self._name}not ready after {limit:g} s\n{self.output()}")
            output = self.output()
            stacks = self._end_import(grace)
            self.close()
            raise ZygoteTimeout(limit, stacks=stacks, output=output)
        report = self.control.receive()
        if report is None:
            raise self._failed_start(phase)
        return cast(StartReport, report)

    def _end_import(self, grace: float) -> str:
        """End all processes of an import that hangs; their stacks."""
        family = process_tree.Family(lambda: [self._process.pid, *process_tags.tagged_processes(self.tag)])
        with self._log_lock:
            written = 0 if self._log.closed else os.fstat(self._log.fileno()).st_size
        process_tree.request_stacks(family.members())
        with self._log_lock:
            stacks = b"" if self._log.closed else os.pread(self._log.fileno(), _STACKS, written)
        process_tree.end_all(family.members, self._process.poll, grace, hurry=lambda: self._ending)
        return stacks.decode(errors="replace")

    def _poll(self, timeout: float) -> bool:
        """Whether a report can be read, or none will come. What connects meanwhile is let in."""
        waiting = self._socket
        if waiting is None or waiting.fileno() < 0:
            return self.control.poll(timeout)
        give_up = time.monotonic() + timeout
        while self.alive():
            ready = wait([self.control, waiting.fileno()], min(_LOOK, max(0.0, give_up - time.monotonic())))
            if waiting.fileno() in ready:
                waiting.admit()
            elif ready:
                break
            elif time.monotonic() > give_up:
                return False
        waiting.hang_up()
        return True

    @property
    def _name(self) -> str:
        """The prefix, where there is one, for messages."""
        return "" if self._socket is None else f"`{prefix_text(self._with_tag(self.spec.command))}` "

    def _failed_start(self, phase: StartPhase) -> ZygoteError:
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

    def _wait(self, patience: float | None = None) -> int:
        """The exit status of the process; one that stays longer than ``patience`` seconds is killed."""
        try:
            code = self._process.wait(_LINGER if patience is None and self.spec.has_prefix else patience)
        except subprocess.TimeoutExpired:
            code = self._kill()
        return code_behind_prefix(code) if self.spec.has_prefix else code

    def _kill(self) -> int:
        """End the process at once, with what a prefix has started; its exit status."""
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

    def _tags(self) -> list[str]:
        return [self.tag, *self.branch_tags.copy()]

    def death(self) -> ZygoteError:
        """The error to raise when the control channel has closed; ends what the zygote can no longer end."""
        with self._dying:  # which the threads of all its tasks find out at the same time
            if self._died is None:
                if self._ending:
                    return ZygoteError(f"the zygote (pid {self._process.pid}) was closed")
                code = self._wait(_LINGER)
                self.sweep()
                self._died = ZygoteError(
                    f"the zygote (pid {self._process.pid}) died with {exit_text(code)}\n{self.output()}".rstrip(),
                    returncode=code,
                )
            return self._died.again()

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def output(self) -> str:
        """The end of what the zygote itself and its branches wrote, in text."""
        with self._log_lock:
            return self._last_output if self._log.closed else self._read_output()

    def _read_output(self) -> str:
        # Without seeking: the position is the one that the zygote writes at.
        fd = self._log.fileno()
        return os.pread(fd, _OUTPUT, max(0, os.fstat(fd).st_size - _OUTPUT)).decode(errors="replace")

    def end(self, grace: float = 10.0) -> None:
        """End the zygote, its branches and whatever they run, from any thread."""
        self.hang_up()
        try:
            code = self._process.wait(timeout=grace if self._ready else 0.2)
        except subprocess.TimeoutExpired:
            # Busy importing, or stuck: it does not read its channel.
            code = self._kill()
        if code != 0:  # it has not done so itself
            self.sweep()
        with self._log_lock:
            if not self._log.closed:
                self._last_output = self._read_output()  # an error may still quote it
                self._log.close()

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless."""
        super().close(grace)
        if self._socket is not None:
            self._socket.close()


def _send_with_owner(control: Channel, order: PrepareOrder) -> None:
    """Send the first order, with this process, whose end is the zygote's.

    The end of the channel alone says too little: every fork of this process has a copy of it.
    """
    try:
        owner = os.pidfd_open(os.getpid())
    except OSError:  # Linux before 5.3
        control.send(order)
        return
    try:
        control.send({**order, "owner": True}, [owner])
    finally:
        os.close(owner)


#: Seconds that the zygote may take to fork; it does nothing else while it ends a task that resists.
_FORK_TIMEOUT = 60.0

#: Seconds that the zygote may take to notice a branch's death and to end what the branch has left.
_FATE_TIMEOUT = 10.0

#: Seconds that preparing a branch further may take.
EXTENSION_TIMEOUT = 60.0


def start_branch(zygote: Zygote, extension: Any = None) -> Branch:
    """Another process that serves tasks of the zygote's specification, forked from it; from any thread.

    With an ``extension``, a JSON value for ``spec.extend``, it serves after ``wait_extended``.

    Raises:
        ZygoteError: the zygote is gone, or cannot be forked any more.
        ValueError: it must not be forked.
    """
    zygote.wait_ready()
    if zygote.spec.fresh or zygote.against_forking:
        raise ValueError("a zygote that prepares nothing, or must not be forked, has no branches")
    branch = Branch(zygote, extension)
    branch.wait_ready()
    return branch


class Branch(Server):
    """A branch, made by ``start_branch``.

    The branch itself answers on its control channel; the zygote, whose child it is, reports its fate on another one.
    """

    def __init__(self, zygote: Zygote, extension: Any = None) -> None:
        super().__init__()
        self.zygote = zygote
        self.extension = extension
        self.extending = extension is not None
        self.tag = new_tag()
        self.spec = zygote.spec
        self.info = zygote.info
        self.against_forking = []
        self.pid: int | None = None
        self._known_fate: BranchFate | None = None
        self._asking = threading.Lock()
        zygote.branch_tags.add(self.tag)
        self.control, control = Channel.pair()
        self._fate, fate = Channel.pair()
        # The zygote's own thread may be sending at the same time, hence all in one piece.
        zygote.order({"op": "branch", "tag": self.tag, "extension": extension}, [control.fileno(), fate.fileno()])
        control.close()
        fate.close()

    def wait_ready(self) -> None:
        """Block until forked.

        Raises:
            ZygoteError: the zygote is gone, or cannot be forked any more.
        """
        if self.pid is not None:
            return
        message = self.control.receive() if self.control.poll(_FORK_TIMEOUT) else {}
        if not message:
            error = (
                self.death()
                if message is None
                else ZygoteError(f"the zygote has made no branch in {_FORK_TIMEOUT:g} s\n{self.zygote.output()}")
            )
            self.close()
            raise error
        self.pid = message["pid"]

    def wait_extended(self, limit: float = EXTENSION_TIMEOUT) -> None:
        """Block until prepared further, at most ``limit`` seconds; closes it when that fails.

        Raises:
            ExtensionFailed: it raised, crashed, did not end in time, or has made forks unsafe.
            ZygoteUnwanted: it was ended meanwhile.
            ZygoteError: the zygote is gone.
        """
        report: ExtensionReport | None = {}
        try:
            if self.control.poll(limit):
                report = cast("ExtensionReport | None", self.control.receive())
            self._take_extension(report, limit)
        except BaseException:
            self.close()
            raise
        self.extending = False

    def _take_extension(self, report: ExtensionReport | None, limit: float) -> None:
        if report is None:
            if self._ending:
                raise ZygoteUnwanted("it was closed while it was prepared")
            died = self.death()
            raise ExtensionFailed(str(died).partition("\n")[0]) if self.zygote.alive() else died
        if not report:
            raise ExtensionFailed(f"not done after {limit:g} s")
        if report["type"] == "failed":
            raise ExtensionFailed(f"{report['error']['type']}: {report['error']['message']}", error=report["error"])
        if report["refused"] or report["against_forking"]:
            failed = ExtensionFailed(", ".join(report["against_forking"]) or "refused")
            failed.refused = report["refused"]
            raise failed

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._known_fate is None and not self._fate.poll()

    def _learn_fate(self, timeout: float) -> BranchFate | None:
        """What the zygote reports: nothing in time, or an empty mapping when it is gone itself."""
        with self._asking:
            if self._known_fate is None and self._fate.poll(timeout):
                self._known_fate = cast(BranchFate, self._fate.receive() or {})
            return self._known_fate

    def death(self) -> ZygoteError:
        """The error to raise when the control channel has closed; ends what the zygote cannot end."""
        name = f"the zygote's branch (pid {self.pid})"
        if self._ending:
            return ZygoteError(f"{name} was closed")
        fate = self._learn_fate(_FATE_TIMEOUT)
        if fate == {}:
            return self.zygote.death()
        if fate is not None and "error" in fate:
            return ZygoteError(f"the zygote cannot fork: {fate['error']}")
        code = None if fate is None else fate["returncode"]
        if code is None:
            self.sweep()
        how = "does not answer" if code is None else f"died with {exit_text(code)}"
        return ZygoteError(f"{name} {how}\n{self.zygote.output()}".rstrip(), returncode=code)

    def end(self, grace: float = 10.0) -> None:
        """End the branch and whatever it runs, from any thread."""
        self.hang_up()
        # While it is prepared, it does not read its channel.
        if self._learn_fate(0.2 if self.extending else grace) in (None, {}):
            self.sweep()
        self.zygote.branch_tags.discard(self.tag)

    def close(self, grace: float = 10.0) -> None:
        """End it and free what it takes; twice is harmless."""
        super().close(grace)
        self._fate.close()


#: Seconds that a zygote may take to fork, which is all that it does.
FORK_TIMEOUT = 60.0


def start_task(
    zygote: Zygote, payload: Any, *, cores: Sequence[int] | None = None, descriptors: Sequence[int] = ()
) -> Task:
    """Fork a child of a zygote that is ``concurrent``, and hand it a task; from any thread. It gives no stacks.

    Args:
        zygote: it is ready.
        payload: JSON value for the task's function.
        cores: cores that the child may run on; ``None`` for those of the zygote.
        descriptors: open files that the child keeps as long as it lives, locked ones for instance.

    Raises:
        ZygoteError: the zygote is gone, or cannot fork.
        OSError: the task or its descriptors cannot be sent.
    """
    channel, theirs = Channel.pair()
    fate, its = Channel.pair()
    zygote.order({"op": "fork"}, [theirs.fileno(), its.fileno()])
    theirs.close()
    its.close()
    owner = _Owner(zygote, fate)
    try:
        pid = owner.forked()
        channel.send(child_task(payload, None, None, None, cores, descriptors), descriptors)
    except BaseException:
        channel.close()
        fate.close()  # which ends the child, if there is one
        raise
    return Task(owner, channel, pid)


class _Owner:
    """Orders a task's end, and learns its fate, both over one channel that is the task's alone."""

    def __init__(self, zygote: Zygote, control: Channel) -> None:
        self.zygote = zygote
        self.control = control

    def forked(self) -> int:
        """The pid of the child, once it was forked."""
        if not self.control.poll(FORK_TIMEOUT):
            raise ZygoteError(f"the zygote has not forked in {FORK_TIMEOUT:g} s\n{self.zygote.output()}".rstrip())
        report = cast("ForkReport | None", self.control.receive())
        if report is None:
            raise self.zygote.death()
        if "error" in report:
            raise ZygoteError(f"the zygote cannot fork: {report['error']}")
        return report["pid"]

    def next_report(self) -> TaskEnd:
        """The end of the task."""
        try:
            report = cast("TaskEnd | None", self.control.receive())
            if report is None:
                raise self.zygote.death()
            return report
        finally:
            self.control.close()

    def order(self, order: ServerOrder) -> None:
        """Send an order to end the task; that it has ended is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.control.send(order)


#: Warm zygotes per pool. One that has imported torch holds some 200 MB; its branches share them.
MAX_WARM = 8


class _Entry:
    """A zygote with its branches."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.root: Zygote | None = None
        self.started: Future[Zygote] = Future()
        self.idle: list[Server] = []
        #: Callers that have acquired, or wait for, one of these servers.
        self.users = 0
        #: Those of them that wait for its start and do not want it any more.
        self.gave_up = 0

    @property
    def unwanted(self) -> bool:
        """Whether none of them waits for its start any more."""
        return self.gave_up >= self.users > 0

    def has_died(self) -> bool:
        """Whether its zygote was ready once, and is gone."""
        return (
            self.root is not None
            and self.started.done()
            and not self.root.against_forking  # that one is gone on purpose
            and not self.root.alive()
        )

    def unused(self) -> list[Server]:
        """What is not in use, and may therefore be closed; the zygote first, as its end is theirs."""
        return sorted(self.idle, key=lambda server: server is not self.root)

    def shared(self) -> list[Server]:
        """Its zygote, where all callers have that and none releases it."""
        return [self.root] if self.root is not None and self.started.done() and _is_shared(self.root) else []


class ZygotePool:
    """Zygotes by their specification's key; beyond the bound, the least recently used unused one is closed.

    Any thread may call any method. The lock is held for moments only; imports, forks and endings happen outside it.
    """

    def __init__(self, limit: int = MAX_WARM) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lent: dict[Server, _Entry] = {}
        self._closed = False

    def acquire(
        self,
        spec: ZygoteSpec,
        limits: StartLimits = StartLimits(),
        extension: Any = None,
        extension_limit: float = EXTENSION_TIMEOUT,
    ) -> Server:
        """A server of tasks of ``spec``, for the caller alone until it is released.

        With an ``extension``: a branch that has been prepared further with it, so that the zygote stays as it was. This
        may take ``extension_limit`` seconds.

        Its zygote is started when there is none, and branched when all are in use. One that must not be forked is only
        asked for its ``info`` and ``against_forking``, so all callers get the same, and need not release it; as they do
        of one that is ``concurrent``. A
        ``fresh`` one serves one task and is then gone, so each caller gets a new one. ``limits`` count if it is this
        call that starts the zygote.

        Raises:
            ZygoteTimeout: its start took too long.
            ZygoteError: it cannot be started or prepared (then all who wait for it get the error), or is gone.
            ExtensionFailed: it cannot be prepared further.
        """
        entry, surplus = self._join(spec)
        try:
            if surplus is not None:
                root = self._start(entry, spec, limits, surplus)
                if extension is None or root.against_forking:
                    return root
                with self._lock:
                    del self._lent[root]
                    entry.idle.append(root)
            return self._take(entry, extension, extension_limit)
        except BaseException:
            with self._lock:
                entry.users -= 1
            raise

    def _join(self, spec: ZygoteSpec) -> tuple[_Entry, list[Server] | None]:
        """An entry with one more user; of a new one, whose zygote is to be started, also what to close before."""
        key = spec.key()
        with self._lock:
            self._check_open()
            entry = None if spec.fresh else self._entries.get(key)
            surplus: list[Server] | None = None
            if entry is None or entry.has_died():
                surplus = [] if entry is None else [*self._forget(entry), *entry.shared()]
                entry = _Entry(key)
                if not spec.fresh:
                    surplus += self._make_room()
                    self._entries[key] = entry
            else:
                self._entries.move_to_end(key)
            entry.users += 1
            return entry, surplus

    def _start(self, entry: _Entry, spec: ZygoteSpec, limits: StartLimits, surplus: list[Server]) -> Server:
        try:
            _close(surplus)
            root = self._launch(entry, spec, limits)
        except BaseException as error:
            self._forget_failed(entry)
            if not isinstance(error, ZygoteError):
                entry.started.set_exception(ZygoteError(f"its start was interrupted: {error!r}"))
                raise
            failure = ZygoteUnwanted("its start was cancelled") if entry.unwanted else error
            entry.started.set_exception(failure)
            if failure is error:
                raise
            raise failure from None
        if _is_shared(root):
            with self._lock:
                self._take_from(root)
        entry.started.set_result(root)
        return root

    def _launch(self, entry: _Entry, spec: ZygoteSpec, limits: StartLimits) -> Zygote:
        root = Zygote(spec)
        with self._lock:
            entry.root = root
            self._lent[root] = entry  # so that ``close`` can end it before it is ready
            unwanted = self._closed or entry.unwanted
        if unwanted:
            root.end()
        root.wait_ready(limits)
        return root

    def _forget_failed(self, entry: _Entry) -> None:
        with self._lock:
            self._forget(entry)
            if entry.root is not None:
                self._lent.pop(entry.root, None)
        if entry.root is not None:
            entry.root.close()

    def _take(self, entry: _Entry, extension: Any, limit: float) -> Server:
        try:
            root = entry.started.result()
        except ZygoteError as error:
            raise error.again() from None
        if _is_shared(root):
            with self._lock:
                self._check_open()
                entry.users -= 1
            return root
        server = self._take_idle(entry, extension)
        return self._branch(entry, root, extension, limit) if server is None else server

    def _branch(self, entry: _Entry, root: Zygote, extension: Any, limit: float) -> Branch:
        branch = start_branch(root, extension)
        with self._lock:
            self._lent[branch] = entry  # so that ``close`` can end it
        if extension is not None:
            try:
                branch.wait_extended(limit)
            except BaseException:
                with self._lock:
                    self._lent.pop(branch, None)
                raise
        return branch

    def _take_idle(self, entry: _Entry, extension: Any) -> Server | None:
        """An unused server of the entry, prepared like that; those that have died meanwhile are closed."""
        server: Server | None = None
        dead: list[Server] = []
        with self._lock:
            self._check_open()
            for candidate in [it for it in reversed(entry.idle) if it.extension == extension]:
                entry.idle.remove(candidate)
                if candidate.alive():
                    server = candidate
                    self._lent[server] = entry
                    break
                dead.append(candidate)
        _close(dead)
        return server

    def _take_from(self, server: Server) -> _Entry | None:
        entry = self._lent.pop(server, None)
        if entry is not None:
            entry.users -= 1
        return entry

    def release(self, server: Server) -> None:
        """Give back what was acquired; a task that still runs there is ended, and a dead server forgotten."""
        with self._lock:
            if server not in self._lent:
                return
        fit = server.abandon_task() and server.alive() and not server.spec.fresh
        surplus = [server]
        with self._lock:
            entry = self._take_from(server)
            if entry is None:
                return  # released by two at a time
            if fit and self._entries.get(entry.key) is entry:
                entry.idle.append(server)
                surplus = []
            elif server is entry.root:
                surplus += self._forget(entry)
        _close(surplus)

    def discard(self, server: Server) -> None:
        """Close what was acquired and forget it: a branch alone, a zygote with all its branches."""
        with self._lock:
            entry = self._take_from(server) or self._entries.get(server.spec.key())
            others = self._forget(entry) if entry is not None and entry.root is server else []
        _close([server, *others])

    def abandon(self, spec: ZygoteSpec) -> None:
        """One caller that waits in ``acquire`` does not want it any more; once none does, its start is ended.

        Branches that are being prepared further are ended at once: those who wait for one can do without it.
        """
        with self._lock:
            entry = self._entries.get(spec.key())
            if entry is None:
                return
            unwanted: list[Server] = []
            if not entry.started.done():
                entry.gave_up += 1
                unwanted += [entry.root] if entry.unwanted and entry.root is not None else []
            else:
                unwanted += [it for it, its in self._lent.items() if its is entry and it.extending]
        for server in unwanted:
            server.hang_up()
            server.end()

    def _make_room(self) -> list[Server]:
        surplus = len(self._entries) - self.limit + 1
        unused = [entry for entry in self._entries.values() if entry.users == 0]
        return [server for entry in unused[: max(0, surplus)] for server in self._forget(entry)]

    def _forget(self, entry: _Entry) -> list[Server]:
        """Give it to no further caller; what is to be closed now, outside the lock. The rest, when it is released."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        unused, entry.idle = entry.unused(), []
        return unused

    def _check_open(self) -> None:
        if self._closed:
            raise ZygoteError("the zygotes have been closed")

    def close(self) -> None:
        """Close all of them, for good. Their users get ``ZygoteError``, and should release them nevertheless."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            used = {*self._lent, *(entry.root for entry in entries if entry.root is not None)}
            unused = [server for entry in entries for server in (*self._forget(entry), *entry.shared())]
        for server in used:
            server.hang_up()
        for server in used:
            server.end()
        _close(unused)


def _is_shared(root: Zygote) -> bool:
    """Whether all callers get the same, and none has to release it."""
    return bool(root.against_forking) or root.spec.concurrent


def _close(servers: Iterable[Server]) -> None:
    for server in servers:
        with contextlib.suppress(OSError):
            server.close()
