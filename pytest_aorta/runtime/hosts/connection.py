"""The parent's side of a host: connect, check, talk to the service there, notice when it dies."""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import execnet

from pytest_aorta._version import __version__
from pytest_aorta.runtime.hosts.code_digest import first_difference
from pytest_aorta.runtime.hosts.framing import Joiner, Message, encode, pieces_of
from pytest_aorta.runtime.hosts.gateway import Transport
from pytest_aorta.runtime.hosts.host_main import BOOTSTRAP
from pytest_aorta.runtime.hosts.specs import kind_of, parse_spec, without_values

#: Seconds between two looks at the process and at its signs of life.
_TICK = 0.2

#: Seconds in which a process ends whose connection has ended, and in which it ends when it was told that we are done.
_EXIT_LIMIT = 1.0
_PARTING_LIMIT = 5.0

#: What execnet's end of a channel looks like to our callback.
_END = object()

_numbers = itertools.count()


class HostError(OSError):
    """A host cannot be reached, runs other code, or died; the message names it and says what to do."""


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
        on_death: called once, in the same thread, when the service has ended and nobody had called ``close``. The host
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
        self.hostname: str | None = None
        self.pid: int | None = None
        self._spec = parse_spec(spec)
        if self._spec.id is None:
            self._spec.id = f"gw{next(_numbers)}"
        self._service = service
        self._argument = encode(argument)
        self._identity = dict(identity)
        self._on_message = on_message
        self._on_death = on_death
        self._startup_timeout = startup_timeout
        self._silence = silence

        self._transport = Transport(self._spec)
        self._channel: execnet.Channel | None = None
        self._health: execnet.Channel | None = None
        self._sending = threading.Lock()
        self._joiner = Joiner()
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._deliverer = threading.Thread(target=self._deliver, name=f"{self._spec.id}-messages", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name=f"{self._spec.id}-watch", daemon=True)

        self._doing = "connecting"
        self._started = self._ready = self._closing = False
        self._signs = 0  # of life
        self._stirred = threading.Event()  # one of the next three is there for the watcher
        self._last_word: Message | None = None
        self._disconnected = threading.Event()
        self._callback_error: Exception | None = None
        self._down = threading.Event()  # the host is gone
        self._error: HostError | None = None

    @property
    def name(self) -> str:
        """For messages: the specification, and where it has led to."""
        place = "" if self.hostname is None else f", {self.hostname}, pid {self.pid}"
        return f"{without_values(str(self._spec))} ({self._spec.id}{place})"

    # Starting.

    def start(self) -> None:
        """Connect, check that the code there is the code here, start the service.

        Raises:
            HostError: one of these failed, or took too long. Nothing is left running.
        """
        if self._started:
            raise RuntimeError(f"host {self.name} has been started already")
        self._started = True
        outcome: queue.SimpleQueue[HostError | None] = queue.SimpleQueue()
        threading.Thread(target=self._connect, args=(outcome,), name=f"{self._spec.id}-start", daemon=True).start()
        try:
            error = outcome.get(timeout=self._startup_timeout)
        except queue.Empty:
            error = self._failure(f"not ready after {self._startup_timeout:g} s, still {self._doing}", output=True)
        except BaseException:
            self._transport.kill()
            raise
        if error is not None:
            self._transport.kill()
            self._error = error
            self._down.set()
            raise error
        self._watcher.start()
        self._ready = True
        self._deliverer.start()

    def _connect(self, outcome: queue.SimpleQueue[HostError | None]) -> None:
        """In a thread of its own: whatever blocks here ends when ``start`` has lost its patience and kills."""
        try:
            self._handshake(self._transport.open())
        except HostError as error:
            outcome.put(error)
        except Exception as error:
            outcome.put(self._cannot(error))
        else:
            outcome.put(None)

    def _handshake(self, gateway: execnet.Gateway) -> None:
        self._doing = "looking for pytest-aorta there"
        channel = gateway.remote_exec(BOOTSTRAP)
        facts = channel.receive()
        while not facts["main_thread"]:
            # A socket server may not have noticed yet that its main thread is done with //chdir= or //env:.
            channel = gateway.remote_exec(BOOTSTRAP)
            facts = channel.receive()
        self.hostname, self.pid = facts["host"], facts["pid"]
        self._check_versions(facts)

        self._doing = "comparing the code there"
        self._channel, self._health = channel, gateway.newchannel()
        self._health.setcallback(self._shown_life)
        redirect = kind_of(self._spec) != "socket"  # the output of a socket server is its owner's
        channel.send({"names": list(self._identity), "health": self._health, "redirect": redirect})
        if difference := first_difference(self._identity, channel.receive()["digests"]):
            raise self._failure(
                f"it would run other code: {difference}; install pytest-aorta {__version__} there from "
                "the same source, and have the same version of every workload file at the same path"
            )

        self._doing = f"importing {self._service}"
        channel.send({"service": self._service, "argument": self._argument})
        word = channel.receive()
        if word["word"] == "failed":
            raise self._failure(f"cannot start {self._service}: {_told(word['error'])}")
        channel.setcallback(self._arrived, endmarker=_END)

    def _check_versions(self, facts: Message) -> None:
        ours, here = __version__, "{}.{}".format(*sys.version_info)
        python, version, problem = facts["executable"], facts["version"], facts["problem"]
        if facts["python"] != here:
            raise self._failure(
                f"{python} is Python {facts['python']}, and this is {here}; name one of the same version with //python="
            )
        if version is None and problem is not None and problem.endswith("No module named 'pytest_aorta'"):
            raise self._failure(
                f"pytest-aorta is not installed for {python} on {self.hostname}; install it there, for instance with\n"
                f"  {python} -m pip install pytest-aorta=={ours}\nor name another interpreter with //python="
            )
        if version is not None and version != ours:
            raise self._failure(
                f"{python} has pytest-aorta {version}, but this is {ours}; install the same version there"
            )
        if problem is not None:
            raise self._failure(f"pytest-aorta cannot be imported by {python}: {problem}")

    def _cannot(self, error: Exception) -> HostError:
        """Why there is no connection, as far as can be told."""
        spec, kind = self._spec, kind_of(self._spec)
        if kind == "socket":
            what = f"cannot connect: {error or type(error).__name__}"
            todo = f"is a server of execnet running there (python -m execnet.script.socketserver {spec.socket})?"
        elif isinstance(error, execnet.RemoteError):
            what, todo = f"refused: {error.formatted.strip().splitlines()[-1]}", "check its //chdir= and //nice="
        elif isinstance(error, FileNotFoundError | PermissionError):
            what, todo = f"cannot start {error.filename}: {error.strerror}", "is it there, and executable?"
        else:
            self._transport.wait(_EXIT_LIMIT)
            ended = self._transport.how_ended()
            said = str(error) or type(error).__name__
            what = f"failed while {self._doing}: {f'ended with {ended}' if ended else said}"
            todo = f"is {spec.python or sys.executable} a Python interpreter?"
            if kind != "popen":
                todo = (
                    f"does `ssh {spec.ssh or spec.vagrant_ssh} {spec.python or 'python'} -V` answer without asking for "
                    "anything or printing anything else (//python= names another interpreter)?"
                )
        failure = self._failure(f"{what}; {todo}", output=True)
        failure.__cause__ = error
        return failure

    def _failure(self, text: str, *, output: bool = False) -> HostError:
        said = self._transport.output() if output else ""
        return HostError(f"host {self.name}: {text}" + (f"\nits last output:\n{said}" if said else ""))

    # Talking.

    def send(self, message: Mapping[str, Any]) -> None:
        """Send to the service; may be called from any thread.

        Raises:
            HostError: the host is dead, closed, or was never started.
            ValueError: the message holds something that cannot be sent.
        """
        data = encode(message)
        channel = self._channel
        if not self._ready or self._closing or self._down.is_set() or channel is None:
            raise self._unavailable()
        try:
            with self._sending:
                for piece in pieces_of(data):
                    channel.send(piece)
        except OSError as error:
            self._down.wait(_PARTING_LIMIT)  # the watcher finds out why
            raise self._unavailable() from error

    def _unavailable(self) -> HostError:
        if self._error is not None:
            return self._error
        state = "closed" if self._closing else "not started" if not self._ready else "going down"
        return HostError(f"host {self.name} is {state}")

    def _arrived(self, item: Any) -> None:
        """In execnet's thread, which must not wait for anybody: signs of life come through it, too."""
        self._signs += 1
        if isinstance(item, bytes):
            message = self._joiner.add(item)
            if message is not None:
                self._inbox.put(message)
            return
        if item is _END:
            self._disconnected.set()
        else:
            self._last_word = item
        self._stirred.set()

    def _shown_life(self, _: int) -> None:
        self._signs += 1

    def _deliver(self) -> None:
        while (message := self._inbox.get()) is not None:
            if self._callback_error is not None:
                continue
            try:
                self._on_message(message)
            except Exception as error:
                self._callback_error = error
                self._stirred.set()
        if not self._closing and self._error is not None:
            self._on_death(self._error)

    # Ending.

    def _watch(self) -> None:
        """Wait for the end, find out why, leave nothing of the host, tell."""
        silent = self._wait_for_end()
        if self._last_word is not None:
            self._transport.hang_up()
            self._transport.wait(_PARTING_LIMIT)
        elif self._disconnected.is_set():
            self._transport.wait(_EXIT_LIMIT)  # the connection ends a moment before the process
        error = self._reason(silent)
        self._transport.kill()
        self._disconnected.wait(_EXIT_LIMIT)  # what it had sent before is still on its way through a pipe
        if not self._closing:
            self._error = error
        self._down.set()
        self._inbox.put(None)

    def _wait_for_end(self) -> bool:
        """Return when there is an end of any kind; whether it is silence."""
        signs, silent = self._signs, 0.0
        while True:
            before = time.monotonic()
            self._stirred.wait(_TICK)
            if self._stirred.is_set() or self._transport.how_ended() is not None:
                return False
            # Time in which this process was itself stopped does not count against the other.
            silent = silent + min(time.monotonic() - before, 2 * _TICK) if self._signs == signs else 0.0
            signs = self._signs
            if silent > self._silence:
                return True

    def _reason(self, silent: bool) -> HostError:
        if silent:
            return self._failure(
                f"no sign of life for {self._silence:g} s (frozen, cut off, or held by native code); it was given up",
                output=True,
            )
        if self._callback_error is not None:
            failure = self._failure(f"given up, for its message could not be handled: {self._callback_error!r}")
            failure.__cause__ = self._callback_error
            return failure
        if self._last_word is not None:
            if self._last_word["word"] == "returned":
                return self._failure(f"{self._service} returned without having been asked to")
            return self._failure(f"{self._service} failed: {_told(self._last_word['error'])}")
        ended = self._transport.how_ended()
        told = self._channel_error()
        subject = "its process" if kind_of(self._spec) == "popen" else "its connection"
        what = f"{subject} ended with {ended}" if ended else "the connection was lost"
        return self._failure(f"{what}{f': {told}' if told else ''}", output=True)

    def _channel_error(self) -> str:
        """What execnet there has had to say when our side of it broke."""
        try:
            if self._channel is not None and self._disconnected.is_set():
                self._channel.waitclose(timeout=_TICK)
        except execnet.RemoteError as error:
            return error.formatted.strip()
        except (EOFError, OSError):
            pass
        return ""

    def kill(self, grace: float) -> None:
        """``close`` on another thread, because the caller's may be one that ``close`` waits for."""
        threading.Thread(target=self.close, args=(grace,), name=f"{self._spec.id}-kill", daemon=True).start()

    def close(self, grace: float = 10.0) -> None:
        """Ask the service to end, give it ``grace`` seconds, kill it. Twice is harmless.

        Messages that it sends meanwhile are still delivered; so do not hold a lock that ``on_message`` takes.
        """
        self._closing = True
        try:
            if self._ready and not self._down.is_set():
                # In a thread of its own: a host that does not read would keep us.
                threading.Thread(target=self._ask_to_end, name=f"{self._spec.id}-close", daemon=True).start()
                self._down.wait(grace)
        finally:
            self._transport.kill()
        if self._ready:
            self._down.wait(_PARTING_LIMIT)
            if self._deliverer.is_alive() and threading.current_thread() is not self._deliverer:
                self._deliverer.join(grace)

    def _ask_to_end(self) -> None:
        with contextlib.suppress(OSError), self._sending:
            assert self._channel is not None
            self._channel.send({"word": "end"})


def _told(error: Mapping[str, str]) -> str:
    """An exception of the other side, in words."""
    return f"{error['type']}: {error['message']}\n{error['traceback']}".rstrip()
