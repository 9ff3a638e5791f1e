"""The parent's side of a host: start a service there, talk to it, notice when it dies."""

from __future__ import annotations

import contextlib
import enum
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import execnet

from pytest_aorta.runtime.channel import Joiner, Message, cut
from pytest_aorta.runtime.hosts.framing import PIECE, decode, encode
from pytest_aorta.runtime.hosts.gateway import HostGateway
from pytest_aorta.runtime.hosts.handshake import EXIT_LIMIT, Handshake, RefusedError, error_text
from pytest_aorta.runtime.hosts.service_messages import END, ServiceReport
from pytest_aorta.runtime.hosts.specs import kind_of, parse_spec, without_values

#: Seconds between two looks at the process and at its signs of life.
_TICK = 0.2

#: Seconds in which a process ends after it was asked to.
_PARTING_LIMIT = 5.0

#: Bytes that may wait for a host. A message is taken as long as fewer do; one alone may have more.
MAX_WAITING = 2**28

#: What execnet's end of a channel looks like to our callback.
_END = object()

_numbers = itertools.count()


class HostError(OSError):
    """A host cannot be reached, runs other code, or died; the message names it and says what to do."""


class _State(enum.Enum):
    NEW = "not started"
    STARTING = "not ready"
    READY = "going down"  # as seen by a caller that cannot send
    DOWN = "down"
    CLOSED = "closed"


class HostConnection:
    """A service on a host: start it, send to it, close it; or learn that it died.

    Messages are mappings of str to str, int, float, bool, None, bytes, and lists and mappings of them.

    Args:
        spec: an execnet gateway specification, ``popen``, ``ssh=HOST//python=...`` or ``socket=HOST:PORT``. A socket
            server ends with the service that it was used for.
        service: ``module:function``, called there as ``function(argument, host_channel)`` in the main thread of the
            process, which ends when it returns. It should return when ``host_channel.receive()`` gives ``None``.
        argument: plain data.
        identity: name -> SHA-256 of all files that must be the same there, from :func:`.code_digest.code_identity`.
        on_message: called with every message, one at a time, in order, in a thread of the connection.
        on_death: called once, in the same thread, when the service has ended and ``close`` was not called. The host
            is gone by then, and all its messages have been delivered.
        startup_timeout: seconds for ``start``.
        silence: seconds without a sign of life after which the host counts as dead and is killed. It shows one every
            second, unless it is frozen or native code holds its interpreter.

    Raises:
        ValueError: the specification is not valid, or the argument cannot be sent.
    """

    def __init__(
        self,
        spec: str,
        service: str,
        argument: Any,
        *,
        identity: Mapping[str, str],
        on_message: Callable[[Message], None],
        on_death: Callable[[HostError], None],
        startup_timeout: float = 300.0,
        silence: float = 15.0,
    ) -> None:
        self._spec = parse_spec(spec)
        if self._spec.id is None:
            self._spec.id = f"gw{next(_numbers)}"
        self._service = service
        self._on_message = on_message
        self._on_death = on_death
        self._startup_timeout = startup_timeout
        self._silence = silence

        self._gateway = HostGateway(self._spec)
        self._handshake = Handshake(self._gateway, service, encode(argument), dict(identity))
        self._channel: execnet.Channel | None = None
        #: Messages on their way to the sender: execnet blocks while the host does not read.
        self._outbox: queue.SimpleQueue[bytes | str | None] = queue.SimpleQueue()
        self._waiting = 0
        self._counting = threading.Lock()  # of the bytes that wait
        self._sender = threading.Thread(target=self._send_all, name=f"{self._spec.id}-sender", daemon=True)
        self._joiner = Joiner()
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._deliverer = threading.Thread(target=self._deliver, name=f"{self._spec.id}-messages", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name=f"{self._spec.id}-watch", daemon=True)

        self._lock = threading.Lock()  # of the state
        self._state = _State.NEW
        self._killed = False
        self._signs_of_life = 0
        self._stirred = threading.Event()  # one of the next three is there for the watcher
        self._last_report: ServiceReport | None = None
        self._disconnected = threading.Event()
        self._callback_error: Exception | None = None
        self._down = threading.Event()  # the host is gone
        self._error: HostError | None = None

    @property
    def hostname(self) -> str | None:
        """Name of the host, once it is known."""
        return None if self._handshake.facts is None else self._handshake.facts["host"]

    @property
    def pid(self) -> int | None:
        """Id of the process there, once it is known."""
        return None if self._handshake.facts is None else self._handshake.facts["pid"]

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
        threading.Thread(target=self._connect, args=(outcome,), name=f"{self._spec.id}-start", daemon=True).start()
        try:
            error = outcome.get(timeout=self._startup_timeout)
        except queue.Empty:
            late = f"not ready after {self._startup_timeout:g} s, still {self._handshake.step}"
            error = self._failure(late, quote=True)
        except BaseException:
            self._gateway.kill()
            raise
        if error is not None:
            self._gateway.kill()
            self._go_down(error)
            raise error
        self._watcher.start()
        with self._lock:
            if self._state is _State.STARTING:  # and was not closed meanwhile
                self._state = _State.READY
        self._sender.start()
        self._deliverer.start()

    def _connect(self, outcome: queue.SimpleQueue[HostError | None]) -> None:
        """On a thread: whatever blocks here ends when ``start`` waits no longer, and kills."""
        try:
            self._channel = self._handshake.run(self._show_life)
            self._channel.setcallback(self._arrived, endmarker=_END)
        except RefusedError as refusal:
            failure = self._failure(str(refusal), quote=refusal.quote)
            failure.__cause__ = refusal.__cause__
            outcome.put(failure)
        except Exception as error:
            outcome.put(self._failure(f"failed while {self._handshake.step}: {error}", quote=True))
        else:
            outcome.put(None)

    def _failure(self, text: str, *, quote: bool = False) -> HostError:
        output = self._gateway.output() if quote else ""
        return HostError(f"host {self.name}: {text}" + (f"\nits last output:\n{output}" if output else ""))

    def _go_down(self, error: HostError) -> None:
        """The host is gone, for this reason unless it was closed."""
        with self._lock:
            if self._state is not _State.CLOSED:
                self._error, self._state = error, _State.DOWN
        self._down.set()

    # Messages

    def send(self, message: Mapping[str, Any]) -> None:
        """Send to the service, soon; may be called from any thread, and does not wait.

        Raises:
            HostError: the host is dead, closed, or was never started; or it does not read, by what waits for it.
            ValueError: the message holds something that cannot be sent.
        """
        data = encode(message)
        if self._state is not _State.READY:
            raise self._unavailable()
        with self._counting:
            full = self._waiting >= MAX_WAITING
            self._waiting += 0 if full else len(data)
        if full:
            self.kill(0.0)
            raise HostError(f"host {self.name} does not read, and was given up: {self._waiting} bytes wait for it")
        self._outbox.put(data)

    def _send_all(self) -> None:
        """On a thread of its own, which ends with the connection; why it has, the watcher finds out."""
        assert self._channel is not None
        while isinstance(data := self._outbox.get(), bytes):
            try:
                for piece in cut(data, PIECE):
                    self._channel.send(piece)
            except OSError:
                return
            with self._counting:
                self._waiting -= len(data)
        if data == END:
            with contextlib.suppress(OSError):
                self._channel.send(END)

    def _unavailable(self) -> HostError:
        return self._error or HostError(f"host {self.name} is {self._state.value}")

    def _arrived(self, item: Any) -> None:
        """In execnet's thread, which must not wait: signs of life come through it, too."""
        self._signs_of_life += 1
        if isinstance(item, bytes):
            whole = self._joiner.add(item)
            if whole is not None:
                self._inbox.put(decode(whole))
            return
        if item is _END:
            self._disconnected.set()
        else:
            self._last_report = cast(ServiceReport, item)
        self._stirred.set()

    def _show_life(self, _: Any) -> None:
        self._signs_of_life += 1

    def _deliver(self) -> None:
        while (message := self._inbox.get()) is not None:
            if self._callback_error is not None:
                continue
            try:
                self._on_message(message)
            except Exception as error:
                self._callback_error = error
                self._stirred.set()
        if self._state is _State.DOWN and self._error is not None:
            self._on_death(self._error)

    # The end

    def _watch(self) -> None:
        """Wait for the end, find out why, leave nothing of the host, report it."""
        silent = self._wait_for_end()
        if self._last_report is not None:
            self._gateway.hang_up()
            self._gateway.wait(_PARTING_LIMIT)
        elif self._disconnected.is_set():
            self._gateway.wait(EXIT_LIMIT)  # the connection ends a moment before the process
        error = self._reason(silent)
        self._gateway.kill()
        self._disconnected.wait(EXIT_LIMIT)  # what it had sent before is still in the pipe
        self._go_down(error)
        self._inbox.put(None)
        self._outbox.put(None)

    def _wait_for_end(self) -> bool:
        """Return when there is an end of any kind; whether it is silence."""
        signs, silent = self._signs_of_life, 0.0
        while True:
            before = time.monotonic()
            self._stirred.wait(_TICK)
            if self._stirred.is_set() or self._gateway.how_ended() is not None:
                return False
            # Time in which this process was itself stopped does not count against the other.
            passed = min(time.monotonic() - before, 2 * _TICK)
            silent = silent + passed if self._signs_of_life == signs else 0.0
            signs = self._signs_of_life
            if silent > self._silence:
                return True

    def _reason(self, silent: bool) -> HostError:
        if silent:
            return self._failure(
                f"no sign of life for {self._silence:g} s (frozen, cut off, or held by native code); it was given up",
                quote=True,
            )
        if self._killed:
            return self._failure("it was ended, because a task there did not end when it should have")
        if self._callback_error is not None:
            failure = self._failure(f"given up, for its message could not be handled: {self._callback_error!r}")
            failure.__cause__ = self._callback_error
            return failure
        if self._last_report is not None:
            if self._last_report["state"] == "returned":
                return self._failure(f"{self._service} returned without having been asked to")
            return self._failure(f"{self._service} failed: {error_text(self._last_report['error'])}")
        ended, problem = self._gateway.how_ended(), self._channel_error()
        subject = "its process" if kind_of(self._spec) == "popen" else "its connection"
        what = f"{subject} ended with {ended}" if ended else "the connection was lost"
        return self._failure(f"{what}{f': {problem}' if problem else ''}", quote=True)

    def _channel_error(self) -> str:
        """What execnet there had to say when our side of it broke."""
        try:
            if self._channel is not None and self._disconnected.is_set():
                self._channel.waitclose(timeout=_TICK)
        except execnet.RemoteError as error:
            return error.formatted.strip()
        except (EOFError, OSError):
            pass
        return ""

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
        if self._watcher.ident is not None:  # it was started
            self._down.wait(_PARTING_LIMIT)
            if self._deliverer.is_alive() and threading.current_thread() is not self._deliverer:
                self._deliverer.join(grace)

    def _end(self, grace: float) -> None:
        try:
            if self._watcher.ident is not None and not self._down.is_set():
                self._outbox.put(END)
                self._down.wait(grace)
        finally:
            self._gateway.kill()
