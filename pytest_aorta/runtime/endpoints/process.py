"""Endpoints in other processes: messages go over a link, and the death of the other side is noticed."""

from __future__ import annotations

import base64
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aorta.runtime.engine.tasks import TaskKind
from pytest_aorta.runtime.memory.transfer import Message, Sender, from_bytes, inline
from pytest_aorta.runtime.records import Completion, Failure, Outcome

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.engine.tasks import Dispatch
    from pytest_aorta.runtime.memory.callables import Definition

#: Deaths in a row, without a task that succeeded in between, after which an endpoint is out of service.
MAX_DEATHS = 3

#: Seconds that a process has to get ready when it takes the place of one that has died.
RESTART = 300.0


_SUCCESS = Outcome.SUCCESS
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class StartupError(RuntimeError):
    """A worker's child could not be started."""


class Link(Protocol):
    """A way to speak to a process, and to end it."""

    #: Whether tensors can go as file descriptors.
    local: bool

    def follow(self) -> None:
        """Begin to listen."""

    def send(self, message: Message) -> None:
        """May raise ``OSError`` when the other side is gone."""

    def send_text(self, text: str) -> None:
        """A message that is JSON already. Only where ``local``."""

    def send_fd(self, fd: int) -> None:
        """Only where ``local``."""

    def kill(self, grace: float) -> None:
        """End the process and all its descendants; its death is told as ever."""

    def close(self, grace: float) -> None:
        """Ask it to end, wait for ``grace`` seconds, then end it."""


#: Starts a process; its messages and its death go to the endpoint. Raises ``StartupError``.
Launch = Callable[["LinkedEndpoint"], Link]


class LinkedEndpoint:
    """A process that runs tasks: a slot, or a worker of the level below."""

    def __init__(
        self,
        engine: Dispatcher,
        kind: TaskKind,
        identity: int,
        name: str,
        launch: Launch,
        *,
        capacity: int = 1,
        respawn: bool = True,
        cancels: bool = False,
    ) -> None:
        self.kind = kind
        self.id = identity
        self.name = name
        self.capacity = capacity
        self.busy = 0
        self.gone: Failure | None = None
        self._engine = engine
        self._launch = launch
        self._respawn = respawn
        self._cancels = cancels
        self._link: Link | None = None
        self._sender: Sender | None = None
        self._in_flight: dict[int, Dispatch] = {}
        self._answers: dict[str, list[Message]] = {}
        self._changed = threading.Condition()
        self._ready = False
        #: Whether the process that is there now has ever been ready, and whether it is we who end it.
        self._started = False
        self._condemned = False
        self._refused: Failure | None = None
        self._deaths = 0
        self._closing = False
        self._successor: threading.Thread | None = None
        #: Ends a start that has not come to its link yet; set by whoever makes one that may take long.
        self.abort: Callable[[], None] | None = None

    @property
    def ready(self) -> bool:
        """Whether a task can be sent there."""
        return self._ready

    # Start and end

    def spawn(self) -> None:
        """Start the process; ``wait_ready`` waits for it."""
        if self._closing:
            raise StartupError(f"{self.name}: not wanted any more")
        link = self._launch(self)
        self._link = link
        self._sender = Sender(link.send, link.send_fd)
        link.follow()
        if self._closing:  # meanwhile
            link.close(0.0)
            raise StartupError(f"{self.name}: not wanted any more")

    def wait_ready(self, give_up: float) -> None:
        """Block until it takes tasks, at most until that moment of ``time.monotonic()``.

        Raises:
            StartupError: it failed, died, or took too long.
        """
        with self._changed:
            while self._refused is None:
                if self._closing:
                    raise StartupError(f"{self.name}: not wanted any more")
                left = give_up - time.monotonic()
                if self._ready and left > 0:
                    return
                if left <= 0:
                    raise StartupError(f"{self.name}: not ready in time; it hangs, or startup_timeout_s is too short")
                self._changed.wait(left)
            raise StartupError(f"{self.name}: {self._refused.message}\n{self._refused.traceback}".rstrip())

    def close(self, grace: float) -> None:
        """End it in order; never raises."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._link is not None:
            self._link.close(grace)
        elif self.abort is not None:
            self.abort()

    def join(self, timeout: float) -> None:
        """After ``close``, and once nothing can start any more: wait for a successor that was on its way."""
        if self._successor is not None:
            self._successor.join(timeout)

    # Endpoint

    def start(self, dispatch: Dispatch) -> None:
        """Send a task."""
        link, sender, member = self._link, self._sender, dispatch.member
        assert link is not None
        assert sender is not None
        message: Message = {"id": dispatch.id}
        text = None
        if member.job is not None:
            job, prepare = member.job, member.job.preparation
            if job.on_start is not None:
                job.on_start()
            message |= {"op": "job", "target": job.target, "payload": packed(job.payload)}
            if prepare is not None:
                message["prepare"] = [prepare.key, prepare.target, packed(prepare.payload)]
        elif link.local and member.args is None and member.config is None:
            # What there are most of: no mapping is built, and no JSON made of it.
            assert member.definition is not None
            text = f'{{"op":"task","id":{dispatch.id},"digest":"{member.definition.digest}"}}'
        else:
            assert member.definition is not None
            encoded = sender.encode(member.args, member.config) if link.local else inline(member.args, member.config)
            message |= {"op": "task", "digest": member.definition.digest, "args": encoded}
        self._in_flight[dispatch.id] = dispatch
        try:
            if text is not None:
                link.send_text(text)
            else:
                link.send(message)
        except BaseException as error:
            self._in_flight.pop(dispatch.id, None)
            if isinstance(error, OSError):
                self._ready = False  # until its death is told, and another one is there
                raise OSError(f"its process is gone: {error}") from error
            raise

    def stop(self, dispatch: Dispatch, why: str) -> None:
        """Ask, where the other side understands; end the process, where not, or when it does not help."""
        assert self._link is not None
        if not self._cancels:
            self._condemn(self._engine.grace)
            return
        try:
            self._link.send({"op": "cancel", "id": dispatch.id, "why": why})
        except OSError:
            return  # its death is about to be told
        if dispatch.member.job is None:  # a job has its own ways
            moment = time.monotonic() + 2 * self._engine.grace + 1
            self._engine.loop.call_at(moment, lambda: self._insist(dispatch))

    def _insist(self, dispatch: Dispatch) -> None:
        if not dispatch.over:
            self._condemn(0)

    def _condemn(self, grace: float) -> None:
        """End the process; nothing is sent there any more, even if its task is quicker."""
        assert self._link is not None
        self._ready = False
        self._condemned = True
        self._link.kill(grace)

    # What the other side says

    def received(self, message: Message) -> None:
        """A message has come; on the thread of the link."""
        operation = message["op"]
        if operation == "ended":
            dispatch = self._in_flight.pop(message["id"], None)
            if dispatch is not None:
                self._ended(dispatch, message)
        elif operation == "event":
            dispatch = self._in_flight.get(message["id"])
            job = dispatch.member.job if dispatch is not None else None
            if job is not None and job.on_event is not None:
                job.on_event(message["event"])
        elif operation == "ready":
            with self._engine.turn(), self._changed:
                self._ready = self._started = True
                self._changed.notify_all()
        elif operation == "failed":
            self._refuse(Failure.from_plain(message["failure"]))
        else:
            with self._changed:
                self._answers.setdefault(operation, []).append(message)
                self._changed.notify_all()

    def _ended(self, dispatch: Dispatch, message: Message) -> None:
        outcome = _OUTCOMES[message["outcome"]]
        failure = message.get("failure")
        if outcome is _SUCCESS:
            self._deaths = 0
        for number, parts in message.get("written", ()):
            args = dispatch.member.args
            assert args is not None
            args.tensors[number].copy_(from_bytes(*parts))
        told = Failure.from_plain(failure).at(self.name) if failure is not None else None
        self._engine.ended(dispatch, Completion(outcome, message.get("payload"), told))

    def _refuse(self, failure: Failure) -> None:
        with self._changed:
            self._refused = failure
            self._changed.notify_all()

    def died(self, how: str) -> None:
        """The process is gone; on the thread of the link."""
        failure = Failure("ProcessDied", how)
        with self._engine.turn():
            was_ready = self._started
            if not self._condemned:
                self._deaths += 1
            self._condemned = False
            with self._changed:
                if not was_ready and self._refused is None:
                    self._refused = failure
                if not self._respawn or self._deaths >= MAX_DEATHS:
                    again = "" if not self._respawn else f"; the last of {self._deaths} deaths in a row"
                    self.gone = Failure(failure.type, f"out of service: {how}{again}")
                self._ready = self._started = False
                self._changed.notify_all()
            lost, self._in_flight = self._in_flight, {}
            for dispatch in lost.values():
                self._engine.ended(dispatch, Completion(Outcome.ENDPOINT_FAILURE, None, failure.at(self.name)))
        if self.gone is None and was_ready and not self._closing:
            self._successor = threading.Thread(target=self._start_again, name=f"aorta-respawn-{self.name}", daemon=True)
            self._successor.start()

    def _start_again(self) -> None:
        """On a thread of its own: the zygote may have to be started again, too."""
        for _ in range(MAX_DEATHS):
            self._refused = None
            try:
                self.spawn()
                self.wait_ready(time.monotonic() + RESTART)
                return
            except Exception as error:
                reason = Failure(type(error).__name__, f"out of service: {error}")
                if self._link is not None:
                    self._link.kill(0)
            if self.gone is not None or self._closing:
                break
        with self._engine.turn(), self._changed:
            self.gone = self.gone or reason
            self._changed.notify_all()

    # Callables

    def register(self, definition: Definition) -> Failure | None:
        """Have it load a callable; why it could not, or ``None``. Blocks while it runs a task, or starts again."""
        with self._changed:
            while not self._ready and self.gone is None and not self._closing:
                self._changed.wait()
        return self._ask("registered", {"op": "register", "definition": definition.to_plain()}, definition.digest)

    def unregister(self, digest: str) -> None:
        """Have it forget a callable."""
        self._ask("unregistered", {"op": "unregister", "digest": digest}, digest)

    def _ask(self, answer: str, question: Message, digest: str) -> Failure | None:
        link = self._link
        assert link is not None
        try:
            link.send(question)
        except OSError as error:
            return Failure("ProcessDied", str(error))
        with self._changed:
            while self._ready and self._link is link:
                for message in self._answers.get(answer, ()):
                    if message["digest"] == digest:
                        self._answers[answer].remove(message)
                        failure = message.get("failure")
                        return Failure.from_plain(failure).at(self.name) if failure is not None else None
                self._changed.wait()
        return Failure("ProcessDied", f"{self.name} died")

    def run_ended(self) -> None:
        """Let go of the memory that the last run has shown it."""
        with self._engine.lock:  # another run's task may be about to be sent
            if self._sender is not None and self._ready and not self._in_flight:
                try:
                    self._sender.forget()
                except OSError:
                    return  # its death is about to be told


def packed(payload: Any) -> str:
    """Our own process's data, for one whose code is the same."""
    return base64.b64encode(pickle.dumps(payload)).decode()


def unpacked(text: str) -> Any:
    """The reverse of ``packed``."""
    return pickle.loads(base64.b64decode(text))


def own_output() -> list[int]:
    """Descriptors of stdout and stderr, as far as they are open."""
    found = []
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found
