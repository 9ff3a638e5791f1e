"""A place that runs tasks, one at a time: a slot, a worker of the level below, or one on another host.

Behind it is a process, which a ``Link`` leads to. When the process dies, its task fails and another process takes its
place. Everything here happens within turns of the dispatcher; nothing sends or receives in a way that could block.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import logging
import math
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from pytest_aorta.runtime.arguments import TaskArgs
from pytest_aorta.runtime.callables import MAX_MESSAGE, dumps, loads
from pytest_aorta.runtime.records import SUCCEEDED, Completion, Outcome, StartupError, TaskFailure, failure_of
from pytest_aorta.runtime.tensors import BULK, SharedViews, apart, from_bytes, overwrite
from pytest_aorta.runtime.zygote import Task, ZygoteError, exit_text

if TYPE_CHECKING:
    from pytest_aorta.runtime.callables import Callables
    from pytest_aorta.runtime.dispatcher import Dispatch, Dispatcher, TaskKind
    from pytest_aorta.runtime.event_loop import EventLoop
    from pytest_aorta.runtime.hosts import HostLink

    Link: TypeAlias = "ProcessLink | HostLink"

#: A message to or from a process: a word and its parameters. ``leaf`` is the other side.
Message = tuple[Any, ...]

#: Processes in a row that did not become ready, after which that is told, and every so often again.
TELL = 3

#: Seconds before the second start in a row, doubled for each further one, and the most.
BACK_OFF, MOST_BACK_OFF = 0.1, 5.0

#: Seconds that a process has to get ready when it takes the place of one that has died.
RESTART = 300.0

#: Seconds that a process may live on after it has closed its socket; usually it is just about to end.
MUTE = 2.0

#: Bytes of the pages that stay for the next message.
KEPT = 2**27

#: Bytes that are copied by one call.
_PIECE = 2**30

#: Bytes of the stacks of a task that hangs.
MAX_STACKS = 2**15

#: The length that precedes every message.
_HEADER = struct.Struct("!i")

#: Bytes that are received at a time.
_CHUNK = 2**15

_NO_ARGUMENTS = TaskArgs()

_log = logging.getLogger(__name__)

#: Seconds between two looks at whether other processes want the cores of a slot, and the part of them that it may wait.
LOOK, CROWDED = 1.0, 0.05


class ProcessState(enum.Enum):
    #: There is none yet, or it is not ready.
    STARTING = enum.auto()
    #: It takes tasks.
    READY = enum.auto()
    #: It is being ended from here, because of its task; another one takes its place.
    CONDEMNED = enum.auto()
    #: It is dead, and no other one takes its place; ``gone`` says why.
    GONE = enum.auto()
    #: The worker is closed: it ends, and no other one takes its place.
    CLOSED = enum.auto()


class ProcessEndpoint:
    """The endpoint of a process and of its successors."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        kind: TaskKind,
        identity: int,
        name: str,
        launch: Callable[[ProcessEndpoint], Link],
        callables: Callables,
        *,
        respawn: bool = True,
        cancels: bool = False,
        max_deaths: int | None = None,
    ) -> None:
        self.kind = kind
        self.id = identity
        self.name = name
        self.busy = 0
        #: Whether a task can be sent there.
        self.ready = False
        self.gone: TaskFailure | None = None
        self._dispatcher = dispatcher
        self._lock = dispatcher.lock
        self._launch = launch
        self._callables = callables
        #: Digests that the process has, and their version.
        self._known: Iterable[str] = ()
        self._version = -1
        self._respawn = respawn
        self._cancels = cancels
        self._max_deaths = max_deaths
        self._state = ProcessState.STARTING
        #: The link to the last process; ``None`` if it was given up before it was ready.
        self._link: Link | None = None
        #: The task that it runs.
        self._current: Dispatch | None = None
        #: Why the process that starts, or has just died, did not become ready.
        self._refused: TaskFailure | None = None
        self._deaths = 0
        self._successor: threading.Thread | None = None
        #: Whether a pause before a start is cut short.
        self._hurried = False
        #: Whether other processes want the cores of its own, which it is then not pinned to any more.
        self.crowded = False

    def _enter(self, state: ProcessState) -> None:
        if self._state is not ProcessState.CLOSED:
            self._state = state
            self.ready = state is ProcessState.READY
        self._lock.notify_all()

    # Starting

    def spawn(self, give_up: float) -> None:
        """Start the process, and block until it takes tasks, at most until that moment of ``time.monotonic()``.

        Raises:
            StartupError: it failed, died, or took too long.
        """
        self._check_open()
        version, known = self._callables.version, tuple(self._callables.definitions)
        link = self._launch(self)
        with self._lock:
            self._link, self._refused = link, None
            self._version, self._known = version, known
        try:
            link.start()
        except OSError as error:
            raise StartupError(f"{self.name}: {error}") from error
        if self._state is ProcessState.CLOSED:  # meanwhile
            link.close(0.0)
        with self._lock:
            closed = ProcessState.CLOSED
            self._lock.wait_until(lambda: self.ready or self._refused is not None or self._state is closed, give_up)
            if self._refused is not None:
                raise StartupError(f"{self.name}: {self._refused.message}\n{self._refused.traceback}".rstrip())
            self._check_open()
            if not self.ready:
                raise StartupError(f"{self.name}: not ready in time; it hangs, or startup_timeout_s is too short")

    def _check_open(self) -> None:
        if self._state is ProcessState.CLOSED:
            raise StartupError(f"{self.name}: not wanted any more")

    # Tasks

    def start(self, dispatch: Dispatch) -> None:
        link, member = self._link, dispatch.member
        assert link is not None
        assert member.definition is not None
        if self._version != self._callables.version:
            self._version, definitions = self._callables.version, dict(self._callables.definitions)
            new = [definition for digest, definition in definitions.items() if digest not in self._known]
            link.send(("callables", new, [digest for digest in self._known if digest not in definitions]))
            self._known = definitions
        message: Message = ("task", dispatch.id, member.definition.digest)
        bulk = False
        if member.args is not None or member.config is not None:
            args = member.args or _NO_ARGUMENTS
            tensors, gone = link.tensors(args), link.forgotten(False)
            scalars = args.scalars if member.scalars is None else member.scalars
            config = apart(member.config)
            message = (*message, tensors, apart(scalars), config, member.first_item, args.written, gone)
            if member.references:
                results = dumps([ref.result() for ref in member.references], "a result of another task")
                message = (*message, apart(results))
            bulk = True
        self._current = dispatch
        if not self.crowded:
            self.crowded = link.is_crowded()
        link.send(message, bulk=bulk)

    def stop(self, dispatch: Dispatch, why: str, grace: float) -> None:
        """Cancel a task: ask a worker below, which is killed if that does not help; kill the process of a slot."""
        if dispatch is not self._current:
            return
        if self._cancels:
            assert self._link is not None
            self._link.send(("cancel", dispatch.id, why, grace))
            moment = time.monotonic() + 2 * grace + 1
            self._dispatcher.loop.call_at(moment, partial(self._end_with, dispatch, 0.0))
        else:
            self._end_with(dispatch, grace)

    def _end_with(self, dispatch: Dispatch, grace: float) -> None:
        with self._dispatcher.turn:
            if dispatch.over:
                return
            if self._state is ProcessState.READY:
                self._enter(ProcessState.CONDEMNED)
            if self._link is not None:
                overdue = dispatch.stopping is not None and dispatch.stopping.outcome is Outcome.TIMEOUT
                self._link.kill(grace, stacks=overdue)

    # Messages from the process, on the thread of the link

    def received(self, message: Message, link: Link) -> None:
        word, *rest = message
        if word == "ended":
            number, completion, written = rest[0], *_completion(self.name, *rest[1:4])
            with self._dispatcher.turn:
                dispatch = self._current
                if link is self._link and dispatch is not None and dispatch.id == number:
                    for changed in rest[4:]:
                        dispatch.node.run.hazards.changed(dispatch.node, changed)
                    self._ended(dispatch, completion, written)
            return
        with self._dispatcher.turn:
            if link is not self._link:
                return
            if word == "ready":
                if self._state is ProcessState.STARTING:
                    self._enter(ProcessState.READY)
            elif word == "failed":
                self._refused = rest[0]
                self._lock.notify_all()
            else:
                raise ValueError(f"a message {word!r}")

    def _ended(self, dispatch: Dispatch, completion: Completion, written: Sequence[Any]) -> None:
        self._current = None
        if completion.outcome is Outcome.SUCCESS:
            self._deaths = 0
            args = dispatch.member.args
            for number, by_value in written:
                assert args is not None
                overwrite(args.tensors[number], from_bytes(*by_value))
        self._dispatcher.ended(dispatch, completion)

    # Deaths

    def died(self, how: str, link: Link, stacks: str = "") -> None:
        failure = TaskFailure("ProcessDied", how, stacks)
        with self._dispatcher.turn:
            if link is not self._link:
                return
            was_ready = self._state in (ProcessState.READY, ProcessState.CONDEMNED)
            if self._state is not ProcessState.CONDEMNED:
                self._deaths += 1
            if not was_ready and self._refused is None:
                self._refused = failure
            if not self._respawn or (self._max_deaths is not None and self._deaths >= self._max_deaths):
                victim = "" if self._current is None else f" while it ran {self._current.node.label}"
                last = f"; the last of {self._deaths} deaths in a row" if self._respawn else ""
                self.gone = TaskFailure(
                    failure.type, f"out of service: {how}{victim}{last} (Worker.revive() tries again)"
                )
            self._enter(ProcessState.STARTING if self.gone is None else ProcessState.GONE)
            if self._respawn and was_ready and self._state is not ProcessState.CLOSED:
                self._dispatcher.blame(self._current)
            dispatch, self._current = self._current, None
            if dispatch is not None:
                self._dispatcher.ended(dispatch, Completion(Outcome.ENDPOINT_FAILURE, None, failure.at(self.name)))
            if was_ready and self._state is ProcessState.STARTING:
                self._begin_again()

    def revive(self) -> None:
        """Start a process again where none is any more, and at once where one is to start after a pause."""
        with self._dispatcher.turn:
            if self._state not in (ProcessState.STARTING, ProcessState.GONE):
                return
            self._deaths, self._hurried = 0, True
            if self._state is ProcessState.GONE:
                self.gone = self._refused = None
                self._enter(ProcessState.STARTING)
                self._begin_again()
            self._lock.notify_all()

    def _begin_again(self) -> None:
        # On a thread: its zygote may have to be started again, too.
        self._successor = threading.Thread(target=self._start_again, name=f"aorta-respawn-{self.name}", daemon=True)
        self._successor.start()

    def _start_again(self) -> None:
        for attempt in (
            itertools.count() if self._respawn and self._max_deaths is None else range(self._max_deaths or 1)
        ):
            deaths = self._deaths + attempt - 1
            until = time.monotonic() + (min(MOST_BACK_OFF, BACK_OFF * 2.0 ** min(deaths - 1, 9)) if deaths > 0 else 0.0)
            with self._lock:
                self._lock.wait_until(lambda: self._state is not ProcessState.STARTING or self._hurried, until)
                self._hurried = False
            try:
                self.spawn(time.monotonic() + RESTART)
                return
            except Exception as error:
                reason = TaskFailure(type(error).__name__, f"out of service: {error}")
                if attempt % (10 * TELL) == TELL - 1:
                    _log.warning("%d starts in a row have failed, and it is tried again: %s", attempt + 1, error)
            with self._dispatcher.turn:
                if self.ready or self._successor is not threading.current_thread():
                    return  # at the last moment; or it was, and has died, and another thread starts the next one
                # Its death, which follows, says nothing about the next one.
                link, self._link = self._link, None
            if link is not None:
                link.kill(0.0)
            if self._state in (ProcessState.GONE, ProcessState.CLOSED):
                break
        with self._dispatcher.turn:
            self.gone = self.gone or reason
            self._enter(ProcessState.GONE)

    # Memory and the end

    def run_ended(self) -> None:
        """Unmap the memory of a run; what is not gone stays mapped where a task of another one is running."""
        link = self._link
        if link is not None and self.ready:
            numbers = link.forgotten(self._current is None)
            if numbers:
                link.send(("unmap", numbers))

    def close(self, grace: float) -> None:
        with self._lock:
            self._enter(ProcessState.CLOSED)
            link = self._link
        if link is not None:
            link.close(grace)

    def join(self, timeout: float) -> None:
        """After ``close``, and once nothing can start any more: wait for a successor that was about to start."""
        if self._successor is not None:
            self._successor.join(timeout)


def _completion(
    name: str, payload: bytes | None, failed: tuple[Outcome, TaskFailure] | None, written: Sequence[Any]
) -> tuple[Completion, Sequence[Any]]:
    if failed is None:
        if payload is None:
            return SUCCEEDED, written
        try:
            return Completion(Outcome.SUCCESS, loads(payload)), written
        except BaseException as error:  # also one that would end this thread
            failed = Outcome.TASK_FAILURE, failure_of(error).at("its return value could not be read")
    outcome, failure = failed
    return Completion(outcome, None, failure.at(name)), ()


def _framed(data: bytes) -> bytes:
    return _HEADER.pack(len(data)) + data


def _first(incoming: bytearray) -> bytes | None:
    """Take the first message out of what was received; ``None`` if it is not complete."""
    start = _HEADER.size
    if len(incoming) < start:
        return None
    stop = start + _HEADER.unpack_from(incoming)[0]
    if not start <= stop <= start + MAX_MESSAGE:
        raise ValueError(f"a message of {stop - start} bytes")
    if len(incoming) < stop:
        return None
    data = bytes(memoryview(incoming)[start:stop])
    del incoming[:stop]
    return data


class Bulk:
    """A file in memory through which large messages go, one at a time, from either side of a link to the other.

    A message is written at once and read at once, while a socket would take it in small pieces, and wake both sides for
    each of them. The pages stay for the next message: new ones would cost more than the copy.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._is = self._identity()

    def _identity(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def _check(self) -> None:
        if self._identity() != self._is:
            raise OSError("the task has closed the file of large messages, and opened something else")

    def pack(self, message: Message) -> bytes:
        """The message, or where it lies in the file. ``OSError``: it cannot be written there."""
        buffers: list[memoryview] = []

        def goes_along(buffer: pickle.PickleBuffer) -> bool:
            content = buffer.raw()
            if is_large := content.nbytes >= BULK:
                buffers.append(content)
            return not is_large

        data = pickle.dumps(message, 5, buffer_callback=goes_along)
        if not buffers and len(data) < BULK:
            return data
        parts = [memoryview(data), *buffers]
        self._check()
        at, sizes = 0, [part.nbytes for part in parts]
        for part in parts:
            while part:
                written = os.pwrite(self.fd, part[:_PIECE], at)
                at, part = at + written, part[written:]
        return pickle.dumps(("bulk", sizes), 5)

    def unpack(self, data: bytes) -> Message:
        """The reverse of ``pack``; buffers are the receiver's own copies, which it may write."""
        message: Message = pickle.loads(data)
        if message[0] != "bulk":
            return message
        self._check()
        sizes = message[1]
        if sum(sizes) > os.fstat(self.fd).st_size:
            raise ValueError(f"a message of {sum(sizes)} bytes is not there")
        at, parts = 0, []
        for size in sizes:
            part = bytearray(size)
            view = memoryview(part)
            while view:
                read = os.preadv(self.fd, [view[:_PIECE]], at)
                if not read:
                    raise ValueError("a message is not complete")
                at, view = at + read, view[read:]
            parts.append(part)
        if at > KEPT:
            os.ftruncate(self.fd, 0)
        whole: Message = pickle.loads(parts[0], buffers=parts[1:])
        return whole

    def close(self) -> None:
        """Close this side's descriptor."""
        os.close(self.fd)


class ProcessLink:
    """The link to a forked process of this host: a socket, and the zygote's notice of its end.

    A process that is stopped, or busy with something else, does not read; what its socket does not take waits here.
    """

    def __init__(
        self,
        endpoint: ProcessEndpoint,
        loop: EventLoop,
        task: Task,
        sock: socket.socket,
        stacks: IO[bytes],
        bulk: Bulk,
        let_go: frozenset[int] = frozenset(),
    ) -> None:
        sock.setblocking(False)
        self._endpoint = endpoint
        self._loop = loop
        self._task = task
        self._socket = sock
        #: Where the process writes its stacks when it is asked for them.
        self._stacks = stacks
        self._bulk = bulk
        self._incoming = bytearray()
        self._sending = threading.Lock()
        self._outgoing = bytearray()
        self._closed = False
        self._problem = ""
        self._ended = threading.Event()
        self._views = SharedViews()
        #: Cores for it once its own are crowded; none where it stays as it is.
        self._let_go = let_go
        self._looked_at, self._waited = 0.0, math.inf

    def start(self) -> None:
        with self._sending:
            self._loop.watch(self._socket.fileno(), self._event, writable=bool(self._outgoing))
        threading.Thread(target=self._await_end, name="aorta-process", daemon=True).start()

    def is_crowded(self) -> bool:
        """Whether it had to wait for its cores, as other processes use them; then it is pinned to them no more."""
        now = time.monotonic()
        pid = self._task.known_pid
        if not self._let_go or pid is None or now < self._looked_at + LOOK:
            return False
        try:
            waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
            crowded = waited - self._waited > CROWDED * (now - self._looked_at)
            self._looked_at, self._waited = now, waited
            for thread in os.listdir(f"/proc/{pid}/task") if crowded else ():
                os.sched_setaffinity(int(thread), self._let_go)
        except (OSError, ValueError, IndexError):  # it has gone, or the kernel does not count
            return False
        return crowded

    # Sending

    def send(self, message: Message, *, bulk: bool = False) -> None:
        """Send soon; does not block. A process that is gone is reported to the endpoint.

        ``bulk``: a task, which is large perhaps; the process has read the last one.
        """
        data = _framed(self._bulk.pack(message) if bulk else pickle.dumps(message, 5))
        with self._sending:
            if not self._closed:
                waiting = bool(self._outgoing)
                self._outgoing += data if waiting else data[self._send_some(data) :]
                if self._outgoing and not waiting:
                    self._loop.watch(self._socket.fileno(), self._event, writable=True)

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:  # it is gone, as the loop will notice
            return len(data)

    def tensors(self, args: TaskArgs) -> Sequence[Any]:
        """Tensors in the form in which this process receives them."""
        return [self._views.view(tensor) for tensor in args.tensors]

    def forgotten(self, everything: bool) -> Sequence[int]:
        """Numbers of storages that the process should unmap: freed ones, or all."""
        return self._views.forget() if everything else self._views.dead()

    # Receiving, on the loop

    def _event(self) -> None:
        with self._sending:
            if self._closed:
                return
            if self._outgoing:
                del self._outgoing[: self._send_some(self._outgoing)]
                if not self._outgoing:
                    self._loop.watch(self._socket.fileno(), self._event)
        self._read()

    def _read(self) -> None:
        try:
            while data := self._socket.recv(_CHUNK):
                self._incoming += data
                self._deliver()
                if len(data) < _CHUNK:
                    return
        except BlockingIOError:
            return
        except OSError:  # it is gone without having read all that it was sent
            pass
        except Exception as error:  # nothing after that can be trusted
            self._problem = f"has sent a message that cannot be read ({type(error).__name__}: {error})"
        self._hang_up()
        if not self._ended.is_set():
            self._loop.call_at(time.monotonic() + (0.0 if self._problem else MUTE), self._end_mute)

    def _deliver(self) -> None:
        while (data := _first(self._incoming)) is not None:
            self._endpoint.received(self._bulk.unpack(data), self)

    def _hang_up(self) -> None:
        with self._sending:
            if not self._closed:
                self._closed = True
                self._loop.unwatch(self._socket.fileno())
                self._socket.close()

    def _end_mute(self) -> None:
        if not self._ended.is_set():
            self._problem = self._problem or "has closed its channel"
            self.kill(0.0)

    # The end

    def _await_end(self) -> None:
        how = ""
        try:
            while self._task.next_message(None) is not None:
                pass
            assert self._task.ended is not None
            code = self._task.ended.returncode
            how = "outlived SIGKILL" if code is None else f"died with {exit_text(code)}"
        except ZygoteError as error:
            self._problem = str(error)
        self._loop.call_at(0.0, partial(self._end, how))

    def _end(self, how: str) -> None:
        self._ended.set()
        if not self._closed:
            self._read()
        self._hang_up()
        self._task.close()
        said = ", and ".join(part for part in (self._problem, how) if part)
        self._bulk.close()
        with self._stacks:
            stacks = os.pread(self._stacks.fileno(), MAX_STACKS, 0).decode(errors="replace")
        self._endpoint.died(f"its process {said}" if how else said, self, stacks)

    def kill(self, grace: float, *, stacks: bool = False) -> None:
        """End the process and all its descendants, within ``grace`` seconds; does not wait."""
        self._task.kill(grace, stacks=stacks)

    def close(self, grace: float) -> None:
        """Ask it to end, wait for ``grace`` seconds, then end it."""
        self.send(("close",))
        if not self._ended.wait(0.0 if self._closed else grace):
            self.kill(0.0)
            self._ended.wait(grace or 5.0)


class MessageSocket:
    """The side of the process: blocking, and any thread may send."""

    def __init__(self, fd: int, bulk: Bulk) -> None:
        self._bulk = bulk
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)  # user code may have set another default
        self._incoming = bytearray()
        self._sending = threading.RLock()  # a task may send from a signal handler

    def send(self, message: Message) -> None:
        """Send a message; nothing happens when the other side is gone, which ``receive`` tells."""
        try:
            data = self._bulk.pack(message) if message[0] == "ended" else pickle.dumps(message, 5)
        except OSError:  # no memory, or the task has closed the file
            data = pickle.dumps(message, 5)
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(_framed(data), socket.MSG_NOSIGNAL)

    def receive(self) -> Message | None:
        try:
            while (data := _first(self._incoming)) is None:
                received = self.socket.recv(_CHUNK)
                if not received:
                    return None
                self._incoming += received
            return self._bulk.unpack(data)
        except OSError:  # it was closed by the task
            return None
