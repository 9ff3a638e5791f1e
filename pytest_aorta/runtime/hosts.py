"""Another host, or another process of this one: a service there, reached through an execnet gateway.

There is no transport and no port besides execnet's: a ``popen`` gateway uses pipes, an ``ssh=`` one those of the
``ssh`` command. Both sides send items over one channel: pickled messages as ``bytes``, signs of life as ``int``, and
``dict`` for how the service has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import itertools
import os
import pickle
import pkgutil
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from pytest_aorta._version import __version__
from pytest_aorta.common.texts import describe_exception
from pytest_aorta.runtime.tensors import to_bytes
from pytest_aorta.runtime.zygote import exit_text

if TYPE_CHECKING:
    import execnet

    from pytest_aorta.runtime.arguments import TaskArgs
    from pytest_aorta.runtime.callables import WorkerSpec

#: Seconds in which a process ends that was asked to, was killed, or has lost its connection; and a service there.
_PARTING, _LAST_WORDS = 5.0, 1.0

#: Seconds between two signs of life.
BEAT = 1.0

#: Bytes of tensors that go to another host with one task.
MAX_INLINE = 256 * 2**20

_numbers = itertools.count()


class HostError(OSError):
    """A host cannot be reached, runs other code, or died; the message names it and says what to do."""


class _Refused(Exception): ...


# How a host is named: execnet's gateway specifications, as in xdist's ``--tx``

#: Keys for the way to a host; a specification has exactly one of them.
_KINDS = ("popen", "ssh")

#: Optional keys. execnet's ``execmodel``, ``via`` and ``installvia`` would not run the service in a main thread.
_EXTRAS = ("python", "chdir", "nice", "id", "ssh_config", "dont_write_bytecode")


def without_values(host: str) -> str:
    """A specification in which ``env:NAME=VALUE`` is ``env:NAME=...``: it may be a secret."""
    parts = [part.partition("=") for part in host.split("//")]
    # Also where env: is misspelt; no other key has a colon.
    return "//".join(
        f"{key}=..." if value and re.search(":|env", key, re.IGNORECASE) else key + equals + value
        for key, equals, value in parts
    )


def parse_spec(text: str) -> execnet.XSpec:
    """One specification without ``N*``. Raises ``ValueError`` that names what is wrong and what is valid."""
    import execnet

    if problem := _problem(text):
        raise ValueError(
            f"{without_values(text)!r} is not a host: {problem}; valid are popen, ssh=[USER@]HOST, N*SPEC for N equal"
            f" ones, and after // any of {', '.join(f'{name}=' for name in _EXTRAS[:-1])}, {_EXTRAS[-1]}, env:NAME="
        )
    return execnet.XSpec(text)


def _problem(text: str) -> str | None:
    pairs = [part.partition("=") for part in text.split("//")]
    keys = [key for key, _, _ in pairs]
    kinds = [key for key in keys if key in _KINDS]
    if len(kinds) != 1:
        return "it does not say how to reach it" if not kinds else f"{' and '.join(kinds)} exclude each other"
    for key, equals, value in pairs:
        if key not in _KINDS + _EXTRAS and not (key.startswith("env:") and len(key) > 4):
            return f"{key!r} is unknown or of no use here"
        if key == "env:PYTHONPATH":
            return f"{key!r} comes after the interpreter has looked, so that its children would run other code than it"
        if key not in ("popen", "dont_write_bytecode") and not value and not (key.startswith("env:") and equals):
            return f"{key!r} needs a value"
        if keys.count(key) > 1:
            return f"{key!r} is there twice"
    return None


def expand_specs(texts: Sequence[str]) -> list[str]:
    """Specifications with ``N*`` multiplied out: ``2*popen`` is ``popen``, ``popen``.

    Raises:
        ValueError: one of them is not valid or stands for more than 9999 hosts, or two have the same ``id``.
    """
    specs: list[str] = []
    for text in texts:
        count, star, rest = text.partition("*")
        if not star or not count.isdecimal():
            specs.append(text)
        elif len(count) > 4 or int(count) == 0:  # of more digits than 4,300, Python makes no number
            raise ValueError(f"{count} hosts are not valid; expected 1 to 9999, as in 2*popen")
        else:
            specs.extend([rest] * int(count))
    ids: dict[str, str] = {}
    for text in specs:
        name = parse_spec(text).id
        if name is not None and name in ids:
            shown = f"{without_values(ids[name])!r} and {without_values(text)!r}"
            raise ValueError(f"{shown} have the same id; give every host its own, or none")
        ids[name or ""] = text
    return specs


# Which code is there


def code_identity(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of every file, by its name (of :func:`package_files`, or an absolute path); absent ones are left out."""
    digests = {}
    for name, path in files.items():
        with contextlib.suppress(OSError):
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def package_files(package: str) -> dict[str, Path]:
    """All ``.py`` files of an installed top-level package, by names such as ``pytest_aorta/plan.py``.

    Raises:
        ModuleNotFoundError: it is not installed, or it is a single module.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No package named {package!r}", name=package)
    folder = Path(next(iter(spec.submodule_search_locations)))
    return {f"{package}/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*.py"))}


def _files_here(names: Iterable[str]) -> dict[str, Path]:
    files = {name: Path(name) for name in names if name.startswith("/")}
    for package in {name.partition("/")[0] for name in names} - {""}:
        with contextlib.suppress(ModuleNotFoundError):
            files |= package_files(package)
    return files


# This side


class HostConnection:
    """A service on a host: start it, send to it, close it; or learn that it died.

    Args:
        spec: an execnet gateway specification, ``popen`` or ``ssh=HOST//python=...``.
        service: ``module:function``, called there as ``function(argument, host_channel)`` in the main thread of the
            process, which ends when it returns. It should return when ``host_channel.receive()`` gives ``None``.
        argument: any object that can be pickled.
        on_message: called with every message, one at a time, in order, in the thread of the connection.
        on_death: called once, in the same thread, when the service has ended and ``close`` was not called.
        identity: name -> SHA-256 of all files besides this package that must be the same there (``code_identity``).
        startup_timeout: seconds for ``start``.
        silence: seconds without a sign of life after which the host counts as dead and is killed. It shows one every
            second, unless it is frozen, native code holds its interpreter, or it sends one message for so long.

    Raises:
        ValueError: the specification is not valid.
    """

    def __init__(
        self,
        spec: str,
        service: str,
        argument: Any,
        *,
        on_message: Callable[[Any], None],
        on_death: Callable[[HostError], None],
        identity: Mapping[str, str] = MappingProxyType({}),
        startup_timeout: float = 300.0,
        silence: float = 60.0,
    ) -> None:
        self._spec = parse_spec(spec)
        if self._spec.id is None:
            self._spec.id = f"gw{next(_numbers)}"
        self._service = service
        self._argument = pickle.dumps(argument, 5)
        self._identity = {**code_identity(package_files("pytest_aorta")), **identity}
        self._on_message = on_message
        self._on_death = on_death
        self._startup_timeout = startup_timeout
        self._silence = silence
        self._step = "connecting"
        #: The host's report on itself, its interpreter and its pytest-aorta.
        self.facts: dict[str, Any] = {}
        self._lock = threading.Lock()  # of the log, and of the process, which must not be started once it was given up
        self._given_up = False
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: execnet.Gateway | None = None
        #: Once the service has started.
        self._channel: Any = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as this)
        #: Messages on their way there: execnet blocks while the host does not read.
        self._outbox: queue.SimpleQueue[bytes | str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()  # the host is gone
        self._closed = False
        self._killed = False
        #: Why nothing can be sent.
        self._error: HostError | None = HostError(f"host {self.name} is not started")

    @property
    def name(self) -> str:
        """For messages: the specification, and where it has led to."""
        place = f", {self.facts['host']}, pid {self.facts['pid']}" if self.facts else ""
        return f"{without_values(str(self._spec))} ({self._spec.id}{place})"

    # Starting

    def start(self) -> None:
        """Connect, check that the code there is the code here, start the service.

        Raises:
            HostError: one of these failed, or took too long. Nothing is left running.
        """
        outcome: queue.SimpleQueue[HostError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(outcome,), name=f"{self._spec.id}-host", daemon=True)
        self._thread.start()
        error: HostError | None = None
        try:
            error = outcome.get(timeout=self._startup_timeout)
        except queue.Empty:
            error = self._failure(f"not ready after {self._startup_timeout:g} s, still {self._step}")
        except BaseException:
            self._closed = True
            self._end_process()
            raise
        if error is not None:
            self._closed, self._error = True, error
            self._end_process()
            raise error

    def _run(self, outcome: queue.SimpleQueue[HostError | None]) -> None:
        try:
            channel = self._connect()
        except Exception as error:
            refused = isinstance(error, _Refused)
            failure = self._failure(str(error) if refused else self._connection_problem(error), quote=not refused)
            failure.__cause__ = error
            outcome.put(failure)
            return
        self._channel = channel
        if not self._closed:
            self._error = None
        threading.Thread(target=self._send_all, name=f"{self._spec.id}-sender", daemon=True).start()
        outcome.put(None)
        self._deliver()

    def _connect(self) -> Any:
        import execnet
        from execnet.gateway_base import ThreadExecModel

        # Code there runs in the main thread, which handles signals and whose end ends the children. execnet has no
        # public way to say how it starts a process: it takes ``Popen`` from its execution model.
        class ExecModel(ThreadExecModel):
            subprocess = SimpleNamespace(PIPE=subprocess.PIPE, Popen=self._start_process)

        group = execnet.Group()
        group.set_execmodel(ExecModel(), "main_thread_only")  # type: ignore[arg-type]
        gateway = group.makegateway(self._spec)
        with self._lock:
            self._gateway = gateway
        if self._given_up:
            gateway.exit()
        self._step = "looking for pytest-aorta there"
        channel: Any = gateway.remote_exec(_BOOTSTRAP)
        self.facts = channel.receive()
        if problem := version_problem(self.facts):
            raise _Refused(problem)
        self._step = "comparing the code there"
        channel.send(list(self._identity))
        theirs = channel.receive()
        for name, digest in sorted(self._identity.items()):
            if theirs.get(name) != digest:
                how = "differs from the one here" if name in theirs else "is missing there"
                raise _Refused(
                    f"it would run other code: {name} {how}; install pytest-aorta {__version__} there from "
                    "the same source, and have the same version of every workload file at the same path"
                )
        self._step = f"importing {self._service}"
        channel.send({"service": self._service, "argument": self._argument})
        report: Any = 0
        while isinstance(report, int):  # signs of life
            report = channel.receive()
        if report["error"] is not None:
            raise _Refused(f"cannot start {self._service}: {_error_text(report['error'])}")
        return channel

    def _start_process(self, args: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._given_up:
                raise OSError("given up")
            # A new session: Ctrl-C is for this process, which then ends the host in order; and ssh, without a
            # terminal, fails at once where it would have asked.
            self._process = subprocess.Popen(args, stderr=self._log, start_new_session=True, **pipes)
        return self._process

    def _connection_problem(self, error: Exception) -> str:
        import execnet

        spec = self._spec
        if isinstance(error, execnet.RemoteError):
            return f"refused: {error.formatted.strip().splitlines()[-1]}; check its //chdir= and //nice="
        if isinstance(error, FileNotFoundError | PermissionError):
            return f"cannot start {error.filename}: {error.strerror}; is it there, and executable?"
        ended = self._how_ended(patience=1.0)
        what = f"failed while {self._step}: {f'ended with {ended}' if ended else error or type(error).__name__}"
        if spec.popen:
            return f"{what}; is {spec.python or sys.executable} a Python interpreter?"
        return (
            f"{what}; does `ssh {spec.ssh} {spec.python or 'python'} -V` answer without asking for "
            "anything or printing anything else (//python= names another interpreter)?"
        )

    def _failure(self, text: str, *, quote: bool = True) -> HostError:
        lines = ""
        with self._lock:
            if quote and not self._log.closed:
                # Not seek: the process writes where this description's position is.
                size = os.fstat(self._log.fileno()).st_size
                output = os.pread(self._log.fileno(), 8000, max(0, size - 8000)).decode(errors="replace")
                lines = "\n".join(output.rstrip().splitlines()[-20:])
        return HostError(f"host {self.name}: {text}" + (f"\nits last output:\n{lines}" if lines else ""))

    # Messages

    def send(self, message: Any) -> None:
        """Send to the service, soon; may be called from any thread, and does not wait.

        Raises:
            HostError: the host is dead, closed, or was never started.
            Exception: the message cannot be pickled.
        """
        data = pickle.dumps(message, 5)
        if self._error is not None:
            raise self._error
        self._outbox.put(data)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                self._channel.send(self._outbox.get())

    def _deliver(self) -> None:
        item: Any = None
        problem: str | None = None
        cause: Exception | None = None
        silent = 0.0
        while problem is None:
            try:
                item = self._channel.receive(BEAT)
            except self._channel.TimeoutError:
                silent += BEAT  # however long this process was itself stopped
                if self._how_ended() is not None:  # although a child of it keeps the connection open
                    problem = self._lost()
                elif silent >= self._silence:
                    what = "frozen, cut off, or held by native code"
                    problem = f"no sign of life for {self._silence:g} s ({what}); it was given up"
                continue
            except (EOFError, OSError, self._channel.RemoteError):
                problem = self._lost()
            silent = 0.0
            if problem is None and isinstance(item, dict):
                error = item["error"]
                how = "returned without having been asked to" if error is None else f"failed: {_error_text(error)}"
                problem = f"{self._service} {how}"
            elif problem is None and isinstance(item, bytes):
                try:
                    self._on_message(pickle.loads(item))
                except Exception as failed:
                    problem, cause = f"given up, for its message could not be handled: {failed!r}", failed
        has_said = isinstance(item, dict)
        if self._killed:
            problem = "it was ended, because a task there did not end when it should have"
        failure = self._failure(problem, quote=not has_said)
        failure.__cause__ = cause
        self._error = failure if not self._closed else HostError(f"host {self.name} is closed")
        self._end_process(_PARTING if has_said else 0.0)
        self._ended.set()
        self._outbox.put("")  # wakes the sender
        if not self._closed:
            self._on_death(failure)

    def _lost(self) -> str:
        ended = self._how_ended(patience=1.0)  # the connection ends a moment before the process
        if not ended:
            return "the connection was lost"
        return f"its {'process' if self._spec.popen else 'connection'} ended with {ended}"

    # The end

    def _how_ended(self, patience: float = 0.0) -> str | None:
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return exit_text(self._process.wait(patience))
        return None

    def kill(self, grace: float, *, stacks: bool = False) -> None:
        """Ask the service to end, kill it after ``grace`` seconds; does not wait. Its death is reported as ever."""
        self._killed = True
        threading.Thread(target=self._end, args=(grace,), name=f"{self._spec.id}-kill", daemon=True).start()

    def close(self, grace: float = 10.0) -> None:
        """Ask the service to end, give it ``grace`` seconds, kill it. Twice is harmless.

        Messages that it sends meanwhile are still delivered; so do not hold a lock that ``on_message`` takes.
        """
        self._closed = True
        self._error = self._error or HostError(f"host {self.name} is closed")
        self._end(grace)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(_PARTING + grace)

    def _end(self, grace: float) -> None:
        try:
            if self._channel is not None and not self._ended.is_set():
                self._outbox.put("end")
                if threading.current_thread() is not self._thread:
                    self._ended.wait(grace)
        finally:
            self._end_process()

    def _end_process(self, patience: float = 0.0) -> None:
        with self._lock:
            first, self._given_up = not self._given_up, True
            process, gateway = self._process, self._gateway
        if first and gateway is not None:  # on a thread: this writes, which blocks when the other end no longer reads
            threading.Thread(target=gateway.exit, name=f"{gateway.id}-exit", daemon=True).start()
        if process is not None:
            if self._how_ended(patience) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what stands in between, too
                self._how_ended(_PARTING)
            if gateway is None:  # nobody else closes them
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):
                        pipe.close()  # type: ignore[union-attr]  # both are pipes
        with self._lock:  # another thread may quote it
            self._log.close()


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
    return f"pytest-aorta cannot be imported by {python}: {problem}" if problem is not None else None


def _error_text(error: Mapping[str, str]) -> str:
    return f"{error['type']}: {error['message']}\n{error['traceback']}".rstrip()


class HostLink(HostConnection):
    """The link of an endpoint to a worker on another host. Tensors go there by value."""

    def __init__(
        self,
        received: Callable[[Any, HostLink], None],
        died: Callable[[str, HostLink], None],
        host: str,
        child: WorkerSpec,
    ) -> None:
        super().__init__(
            host,
            "pytest_aorta.runtime.leaf:serve_host",
            (child, [path for path in sys.path if path], "torch" in sys.modules),
            on_message=lambda message: received(message, self),
            on_death=lambda error: died(str(error), self),
            startup_timeout=child.startup_timeout_s,
        )

    def send(self, message: Any, *, bulk: bool = False) -> None:
        with contextlib.suppress(HostError):
            super().send(message)

    def tensors(self, args: TaskArgs) -> Sequence[Any]:
        """Tensors by value; raises ``ValueError`` for more than ``MAX_INLINE`` bytes."""
        copies = [it if isinstance(it, tuple) else to_bytes(it) for it in args.tensors]
        size = sum(memoryview(content).nbytes for _, _, _, content in copies)
        if size > MAX_INLINE:
            raise ValueError(
                f"tensors of {size} bytes go to another host by value; at most {MAX_INLINE} do with one task"
            )
        return copies

    def forgotten(self, everything: bool) -> Sequence[int]:
        return ()

    def is_crowded(self) -> bool:
        return False


# The other side: say which code is here, run the service, end when the parent has gone

#: Executed there by execnet, in an interpreter that nothing is known of yet.
_BOOTSTRAP = """
import os, socket, sys
# The working directory must not shadow what is imported, as ``-c`` would let it.
sys.path[:] = [entry for entry in sys.path if entry]
facts = {
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "python": "%d.%d" % sys.version_info[:2],
    "executable": sys.executable,
    "version": None,
    "problem": None,
}
try:
    import pytest_aorta
    facts["version"] = pytest_aorta.__version__
    from pytest_aorta.runtime.hosts import serve
except Exception as error:
    facts["problem"] = "%s: %s" % (type(error).__name__, error)
channel.send(facts)
if not facts["problem"]:
    serve(channel)
"""


class HostChannel:
    """A service's channel to its parent. All methods may be called from any thread."""

    def __init__(self, channel: execnet.Channel) -> None:
        self._channel = channel
        self._writing = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.gone = threading.Event()

    def send(self, message: Any) -> None:
        """Send any object that can be pickled; raises ``OSError`` when the parent has gone."""
        self.write(pickle.dumps(message, 5))

    def write(self, item: object) -> None:
        with self._writing:
            self._channel.send(item)

    def receive(self) -> Any:
        """The next message; ``None``, from then on, when the service should end or the parent has gone."""
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)  # for the next call
        return message

    def arrived(self, item: bytes | str | None) -> None:
        """Called with everything from the parent; a ``str`` asks to end, ``None``: nothing can come any more."""
        if item is None:
            self.gone.set()
        self._inbox.put(pickle.loads(item) if isinstance(item, bytes) else None)


def serve(channel: execnet.Channel) -> None:
    """Serve a ``HostConnection``; returns when the service has."""
    names: Any = channel.receive()
    # execnet speaks over duplicates of 0 and 1, and has put /dev/null there. What is printed belongs to the log.
    os.dup2(2, 1)
    with contextlib.suppress(OSError, ValueError):
        faulthandler.enable()
    channel.send(code_identity(_files_here(names)))
    order: Any = channel.receive()  # never comes when the parent does not like the answer
    host_channel = HostChannel(channel)
    finished = threading.Event()
    threading.Thread(target=_beat, args=(host_channel, finished), daemon=True).start()
    channel.setcallback(host_channel.arrived, endmarker=None)
    last: dict[str, str] | None = None
    try:
        function = pkgutil.resolve_name(order["service"])
        argument = pickle.loads(order["argument"])
        host_channel.write({"error": None})
        function(argument, host_channel)
    except BaseException as error:
        last = describe_exception(error)
    finished.set()
    with contextlib.suppress(OSError):
        host_channel.write({"error": last})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The parent answers by hanging up, which ends the process; before that, its buffers must not be thrown away.
    host_channel.gone.wait()


def _beat(host_channel: HostChannel, finished: threading.Event) -> None:
    parent = os.getppid()
    while not host_channel.gone.wait(BEAT):
        if os.getppid() != parent:
            # On the same host: the parent has died, although a fork of it keeps the connection open.
            host_channel.arrived(None)
        try:
            host_channel.write(0)
        except OSError:
            host_channel.arrived(None)
    time.sleep(_LAST_WORDS)
    os._exit(0 if finished.is_set() else 1)  # whatever the main thread is stuck in
