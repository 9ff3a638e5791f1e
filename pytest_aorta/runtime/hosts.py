"""Another host, or another process of this one: a service there, reached through an execnet gateway.

There is no transport and no port besides execnet's: a ``popen`` gateway uses pipes, an ``ssh=`` one those of the
``ssh`` command, a ``socket=`` one a server that the user has started.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import execnet

from pytest_aorta._version import __version__
from pytest_aorta.runtime.channel import Joiner, cut
from pytest_aorta.runtime.execnet_compat import make_gateway
from pytest_aorta.runtime.host_main import BOOTSTRAP, END, PIECE, code_identity, package_files
from pytest_aorta.runtime.host_specs import kind_of, parse_spec, without_values
from pytest_aorta.runtime.tensors import to_bytes
from pytest_aorta.runtime.zygote import exit_text

if TYPE_CHECKING:
    from pytest_aorta.runtime.arguments import TaskArgs
    from pytest_aorta.runtime.callables import WorkerSpec
    from pytest_aorta.runtime.endpoint import Message, ProcessEndpoint

#: Seconds between two looks at the process and at its signs of life.
_TICK = 0.2

#: Seconds in which a process ends after it was asked to, was sent SIGKILL, or has lost its connection.
_PARTING_LIMIT = 5.0
_KILL_LIMIT = 5.0
_EXIT_LIMIT = 1.0

#: Bytes that may wait for a host. A message is taken as long as fewer do; one alone may have more.
MAX_WAITING = 2**28

#: Bytes of tensors that go to another host with one task.
MAX_INLINE = 256 * 2**20

#: Lines of a dead process's output that an error quotes.
_OUTPUT_LINES = 20

#: What execnet's end of a channel looks like to our callback.
_END = object()

_numbers = itertools.count()


class HostError(OSError):
    """A host cannot be reached, runs other code, or died; the message names it and says what to do."""


class _Refused(Exception): ...


class _State(enum.Enum):
    NEW = "not started"
    STARTING = "not ready"
    READY = "going down"  # as seen by a caller that cannot send
    DOWN = "down"
    CLOSED = "closed"


class HostConnection:
    """A service on a host: start it, send to it, close it; or learn that it died.

    Args:
        spec: an execnet gateway specification, ``popen``, ``ssh=HOST//python=...`` or ``socket=HOST:PORT``. A socket
            server ends with the service that it was used for.
        service: ``module:function``, called there as ``function(argument, host_channel)`` in the main thread of the
            process, which ends when it returns. It should return when ``host_channel.receive()`` gives ``None``.
        argument: any object that can be pickled.
        identity: name -> SHA-256 of all files that must be the same there, from :func:`.host_main.code_identity`.
        on_message: called with every message, one at a time, in order, in a thread of the connection.
        on_death: called once, in the same thread, when the service has ended and ``close`` was not called. The host
            is gone by then, and all its messages have been delivered.
        startup_timeout: seconds for ``start``.
        silence: seconds without a sign of life after which the host counts as dead and is killed. It shows one every
            second, unless it is frozen or native code holds its interpreter.

    Raises:
        ValueError: the specification is not valid.
    """

    def __init__(
        self,
        spec: str,
        service: str,
        argument: Any,
        *,
        identity: Mapping[str, str],
        on_message: Callable[[Any], None],
        on_death: Callable[[HostError], None],
        startup_timeout: float = 300.0,
        silence: float = 15.0,
    ) -> None:
        self._spec = parse_spec(spec)
        if self._spec.id is None:
            self._spec.id = f"gw{next(_numbers)}"
        self._service = service
        self._argument = pickle.dumps(argument, 5)
        self._identity = dict(identity)
        self._on_message = on_message
        self._on_death = on_death
        self._startup_timeout = startup_timeout
        self._silence = silence
        self._lock = threading.Lock()  # of the state, and of the process and the socket
        self._state = _State.NEW
        self._step = "connecting"
        self._facts: dict[str, Any] = {}
        self._gateway: execnet.Gateway | None = None
        self._channel: execnet.Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in _leave_nothing)
        self._last_output = ""
        self._given_up = False
        self._hung_up = False
        self._killed = False
        #: Messages on their way to the sender: execnet blocks while the host does not read.
        self._outbox: queue.SimpleQueue[bytes | str | None] = queue.SimpleQueue()
        self._waiting = 0
        self._joiner = Joiner()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._signs_of_life = 0
        self._ended = threading.Event()  # the host is gone
        self._delivery: threading.Thread | None = None
        self._error: HostError | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process there, once it is known."""
        return self._facts.get("pid")

    @property
    def hostname(self) -> str | None:
        """Name of the host, once it is known."""
        return self._facts.get("host")

    @property
    def name(self) -> str:
        """For messages: the specification, and where it has led to."""
        place = "" if self.hostname is None else f", {self.hostname}, pid {self.pid}"
        return f"{without_values(str(self._spec))} ({self._spec.id}{place})"

    # Starting

    def start(self) -> None:
        """Connect, check that the code there is the code here, start the service.

        Raises:
            HostError: one of these failed, or took too long. Nothing is left running.
        """
        with self._lock:
            if self._state is _State.CLOSED:
                raise self._unavailable()
            if self._state is not _State.NEW:
                raise RuntimeError(f"host {self.name} has been started already")
            self._state = _State.STARTING
        outcome: queue.SimpleQueue[HostError | None] = queue.SimpleQueue()
        name = f"{self._spec.id}-start"
        threading.Thread(target=self._try_to_connect, args=(outcome,), name=name, daemon=True).start()
        try:
            error = outcome.get(timeout=self._startup_timeout)
        except queue.Empty:
            error = self._failure(f"not ready after {self._startup_timeout:g} s, still {self._step}", quote=True)
        except BaseException:
            self._leave_nothing()
            raise
        if error is not None:
            self._leave_nothing()
            self._go_down(error)
            raise error
        with self._lock:
            if self._state is _State.STARTING:  # and was not closed meanwhile
                self._state = _State.READY
            self._delivery = threading.Thread(target=self._deliver, name=f"{self._spec.id}-messages", daemon=True)
            self._delivery.start()
        threading.Thread(target=self._send_all, name=f"{self._spec.id}-sender", daemon=True).start()

    def _try_to_connect(self, outcome: queue.SimpleQueue[HostError | None]) -> None:
        failure = None
        try:
            self._connect()
        except _Refused as refusal:
            failure = self._failure(str(refusal))
        except Exception as error:
            failure = self._failure(self._connection_problem(error), quote=True)
            failure.__cause__ = error
        outcome.put(failure)

    def _connect(self) -> None:
        self._gateway = gateway = make_gateway(self._spec, self._start_process, self._make_socket)
        self._step = "looking for pytest-aorta there"
        while True:
            channel: Any = gateway.remote_exec(BOOTSTRAP)
            self._facts = facts = channel.receive()
            # A socket server may not have noticed yet that its main thread is done with //chdir= or //env:.
            if facts["main_thread"]:
                break
        if problem := version_problem(facts):
            raise _Refused(problem)
        self._step = "comparing the code there"
        # The output of a socket server is its owner's.
        channel.send({"names": list(self._identity), "redirect": kind_of(self._spec) != "socket"})
        if difference := _first_difference(self._identity, channel.receive()):
            raise _Refused(
                f"it would run other code: {difference}; install pytest-aorta {__version__} there from "
                "the same source, and have the same version of every workload file at the same path"
            )
        self._step = f"importing {self._service}"
        channel.send({"service": self._service, "argument": self._argument})
        report: Any = 0
        while isinstance(report, int):  # signs of life
            report = channel.receive()
        if report["state"] == "failed":
            raise _Refused(f"cannot start {self._service}: {_error_text(report['error'])}")
        self._channel = channel
        channel.setcallback(self._arrived, endmarker=_END)

    def _connection_problem(self, error: Exception) -> str:
        spec = self._spec
        kind = kind_of(spec)
        if kind == "socket":
            what = f"cannot connect: {error or type(error).__name__}"
            todo = f"is a server of execnet running there (python -m execnet.script.socketserver {spec.socket})?"
        elif isinstance(error, execnet.RemoteError):
            what, todo = f"refused: {error.formatted.strip().splitlines()[-1]}", "check its //chdir= and //nice="
        elif isinstance(error, FileNotFoundError | PermissionError):
            what, todo = f"cannot start {error.filename}: {error.strerror}", "is it there, and executable?"
        else:
            self._wait_for_process(_EXIT_LIMIT)
            ended = self._how_ended()
            what = f"failed while {self._step}: {f'ended with {ended}' if ended else error or type(error).__name__}"
            todo = f"is {spec.python or sys.executable} a Python interpreter?"
            if kind != "popen":
                todo = (
                    f"does `ssh {spec.ssh or spec.vagrant_ssh} {spec.python or 'python'} -V` answer without asking for "
                    "anything or printing anything else (//python= names another interpreter)?"
                )
        return f"{what}; {todo}"

    def _failure(self, text: str, *, quote: bool = False) -> HostError:
        output = self._output() if quote else ""
        return HostError(f"host {self.name}: {text}" + (f"\nits last output:\n{output}" if output else ""))

    def _go_down(self, error: HostError) -> None:
        with self._lock:
            if self._state is not _State.CLOSED:
                self._error, self._state = error, _State.DOWN
        self._ended.set()

    # The process, as execnet starts it

    def _start_process(self, args: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._given_up:
                raise OSError("given up")
            # A new session: Ctrl-C is for this process, which then ends the host in order; and ssh, without a
            # terminal, fails at once where it would have asked.
            self._process = subprocess.Popen(args, stderr=self._log, start_new_session=True, **pipes)
        return self._process

    def _make_socket(self, *kind: Any) -> socket.socket:
        with self._lock:
            if self._given_up:
                raise OSError("given up")
            self._socket = socket.socket(*kind)
        return self._socket

    def _wait_for_process(self, timeout: float) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        elif self._gateway is not None:
            self._gateway.join(timeout)

    def _how_ended(self) -> str | None:
        code = None if self._process is None else self._process.poll()
        return None if code is None else exit_text(code)

    def _hang_up(self) -> None:
        # On a thread: this writes, which blocks when the other end no longer reads.
        with self._lock:
            gateway = None if self._hung_up else self._gateway
            self._hung_up = self._hung_up or gateway is not None
        if gateway is not None:
            threading.Thread(target=gateway.exit, name=f"{gateway.id}-exit", daemon=True).start()

    def _leave_nothing(self) -> None:
        with self._lock:
            self._given_up = True
            process, sock = self._process, self._socket
        if process is not None:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what stands in between, too
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_LIMIT)
            if self._gateway is None:  # nobody else closes them
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):
                        pipe.close()  # type: ignore[union-attr]  # both are pipes
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._hang_up()
        self._last_output = self._output()
        self._log.close()

    def _output(self) -> str:
        with self._lock:
            if self._log.closed:
                return self._last_output
            # Not seek: the process writes where this description's position is.
            size = os.fstat(self._log.fileno()).st_size
            text = os.pread(self._log.fileno(), 8000, max(0, size - 8000)).decode(errors="replace")
            return "\n".join(text.rstrip().splitlines()[-_OUTPUT_LINES:])

    # Messages

    def send(self, message: Any) -> None:
        """Send to the service, soon; may be called from any thread, and does not wait.

        Raises:
            HostError: the host is dead, closed, or was never started; or it does not read, by what waits for it.
            Exception: the message cannot be pickled.
        """
        data = pickle.dumps(message, 5)
        if self._state is not _State.READY:
            raise self._unavailable()
        with self._lock:
            full = self._waiting >= MAX_WAITING
            self._waiting += 0 if full else len(data)
        if full:
            self.kill(0.0)
            raise HostError(f"host {self.name} does not read, and was given up: {self._waiting} bytes wait for it")
        self._outbox.put(data)

    def _send_all(self) -> None:
        assert self._channel is not None
        with contextlib.suppress(OSError):
            while isinstance(data := self._outbox.get(), bytes):
                for piece in cut(data, PIECE):
                    self._channel.send(piece)
                with self._lock:
                    self._waiting -= len(data)
            if data == END:
                self._channel.send(END)

    def _unavailable(self) -> HostError:
        return self._error or HostError(f"host {self.name} is {self._state.value}")

    def _arrived(self, item: Any) -> None:
        # In execnet's thread, which must not wait: signs of life come through it, too.
        self._signs_of_life += 1
        if isinstance(item, bytes):
            whole = self._joiner.add(item)
            if whole is not None:
                self._inbox.put(whole)
        elif not isinstance(item, int):
            self._inbox.put(item)

    def _deliver(self) -> None:
        last: Any = None  # the end of the connection, or what the service has said of its end
        problem: Exception | None = None
        signs, silent = self._signs_of_life, 0.0
        while last is None and problem is None and silent <= self._silence:
            before = time.monotonic()
            try:
                item = self._inbox.get(timeout=_TICK)
            except queue.Empty:
                if self._how_ended() is not None:
                    break
                # Time in which this process was itself stopped does not count against the other.
                passed = min(time.monotonic() - before, 2 * _TICK)
                silent = silent + passed if self._signs_of_life == signs else 0.0
                signs = self._signs_of_life
                continue
            silent = 0.0
            if isinstance(item, bytes):
                problem = self._take(item)
            else:
                last = item
        if isinstance(last, dict):
            self._hang_up()
            self._wait_for_process(_PARTING_LIMIT)
        elif last is _END:
            self._wait_for_process(_EXIT_LIMIT)  # the connection ends a moment before the process
        error = self._reason(last, problem, silent=silent > self._silence)
        self._leave_nothing()
        if last is None and problem is None:
            self._take_rest()
        self._go_down(error)
        self._outbox.put(None)
        if self._state is _State.DOWN and self._error is not None:
            self._on_death(self._error)

    def _take(self, data: bytes) -> Exception | None:
        try:
            self._on_message(pickle.loads(data))
        except Exception as error:
            return error
        return None

    def _take_rest(self) -> None:
        # What it had sent before its end is still in the pipe.
        give_up = time.monotonic() + _EXIT_LIMIT
        with contextlib.suppress(queue.Empty):
            while (item := self._inbox.get(timeout=max(0.0, give_up - time.monotonic()))) is not _END:
                if isinstance(item, bytes) and self._take(item) is not None:
                    return

    def _reason(self, last: Any, problem: Exception | None, *, silent: bool) -> HostError:
        if silent:
            return self._failure(
                f"no sign of life for {self._silence:g} s (frozen, cut off, or held by native code); it was given up",
                quote=True,
            )
        if self._killed:
            return self._failure("it was ended, because a task there did not end when it should have")
        if problem is not None:
            failure = self._failure(f"given up, for its message could not be handled: {problem!r}")
            failure.__cause__ = problem
            return failure
        if isinstance(last, dict):
            if last["state"] == "returned":
                return self._failure(f"{self._service} returned without having been asked to")
            return self._failure(f"{self._service} failed: {_error_text(last['error'])}")
        ended, said = self._how_ended(), ""
        try:  # what execnet there had to say when our side of it broke
            if last is _END and self._channel is not None:
                self._channel.waitclose(timeout=_TICK)
        except execnet.RemoteError as error:
            said = f": {error.formatted.strip()}"
        except (EOFError, OSError):
            pass
        subject = "its process" if kind_of(self._spec) == "popen" else "its connection"
        what = f"{subject} ended with {ended}" if ended else "the connection was lost"
        return self._failure(f"{what}{said}", quote=True)

    # The end

    def kill(self, grace: float) -> None:
        """Ask the service to end, kill it after ``grace`` seconds; does not wait. Its death is reported as ever."""
        self._killed = True
        threading.Thread(target=self._end, args=(grace,), name=f"{self._spec.id}-kill", daemon=True).start()

    def close(self, grace: float = 10.0) -> None:
        """Ask the service to end, give it ``grace`` seconds, kill it. Twice is harmless.

        Messages that it sends meanwhile are still delivered; so do not hold a lock that ``on_message`` takes.
        """
        with self._lock:
            self._state = _State.CLOSED
        self._end(grace)
        delivery = self._delivery
        if delivery is not None and threading.current_thread() is not delivery:
            self._ended.wait(_PARTING_LIMIT)
            delivery.join(grace)

    def _end(self, grace: float) -> None:
        try:
            if self._delivery is not None and not self._ended.is_set():
                self._outbox.put(END)
                if threading.current_thread() is not self._delivery:
                    self._ended.wait(grace)
        finally:
            self._leave_nothing()


def version_problem(facts: Mapping[str, Any]) -> str | None:
    ours, here = __version__, "{}.{}".format(*sys.version_info)
    python, version, problem = facts["executable"], facts["version"], facts["problem"]
    if facts["python"] != here:
        return f"{python} is Python {facts['python']}, and this is {here}; name one of the same version with //python="
    if version is None and problem is not None and problem.endswith("No module named 'pytest_aorta'"):
        return (
            f"pytest-aorta is not installed for {python} on {facts['host']}; install it there, for instance with\n"
            f"  {python} -m pip install pytest-aorta=={ours}\nor name another interpreter with //python="
        )
    if version is not None and version != ours:
        return f"{python} has pytest-aorta {version}, but this is {ours}; install the same version there"
    if problem is not None:
        return f"pytest-aorta cannot be imported by {python}: {problem}"
    return None


def _first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            return f"{name} is missing there"
        if ours[name] != theirs[name]:
            return f"{name} differs from the one here"
    return None


def _error_text(error: Mapping[str, str]) -> str:
    return f"{error['type']}: {error['message']}\n{error['traceback']}".rstrip()


class HostLink:
    """The link of an endpoint to a worker on another host. Tensors go there by value."""

    def __init__(self, endpoint: ProcessEndpoint, host: str, child: WorkerSpec, identity: Mapping[str, str]) -> None:
        self._connection = HostConnection(
            host,
            "pytest_aorta.runtime.leaf:serve_host",
            (child, [path for path in sys.path if path], "torch" in sys.modules),
            identity={**code_identity(package_files("pytest_aorta")), **identity},
            on_message=lambda message: endpoint.received(message, self),
            on_death=lambda error: endpoint.died(str(error), self),
            startup_timeout=child.startup_timeout_s,
        )
        self.start = self._connection.start
        self.kill = self._connection.kill
        self.close = self._connection.close

    def send(self, message: Message) -> None:
        """See ``Link``: a host that is gone is about to be reported."""
        with contextlib.suppress(HostError):
            self._connection.send(message)

    def tensors(self, args: TaskArgs) -> Sequence[Any]:
        """Tensors by value; raises ``ValueError`` for more than ``MAX_INLINE`` bytes."""
        size = sum(tensor.nbytes for tensor in args.tensors)
        if size > MAX_INLINE:
            raise ValueError(
                f"tensors of {size} bytes go to another host by value; at most {MAX_INLINE} do with one task"
            )
        return [to_bytes(tensor) for tensor in args.tensors]

    def forgotten(self, everything: bool) -> Sequence[int]:
        """Nothing is mapped there."""
        return ()
