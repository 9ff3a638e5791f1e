"""The life cycle of an endpoint's process: started, awaited, replaced when it has died, ended."""

from __future__ import annotations

import enum
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pytest_aorta.runtime.endpoints.protocol import Link, StartupError
from pytest_aorta.runtime.records import TaskFailure

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher

#: Deaths in a row, without a task that succeeded in between, after which an endpoint is out of service.
MAX_DEATHS = 3

#: Seconds that a process has to get ready when it takes the place of one that has died.
RESTART = 300.0


class ProcessState(enum.Enum):
    """Where the process of an endpoint stands."""

    #: There is none yet, or it is not ready.
    STARTING = enum.auto()
    #: It takes tasks.
    READY = enum.auto()
    #: It can be sent nothing any more; its death has not been reported yet.
    LOST = enum.auto()
    #: It is being ended from here, because of its task; another one takes its place.
    CONDEMNED = enum.auto()
    #: It is dead, and no other one takes its place; ``gone`` says why.
    GONE = enum.auto()
    #: The worker is closed: it ends, and no other one takes its place.
    CLOSED = enum.auto()


_READY = ProcessState.READY

#: The states of a process that has been ready.
_WAS_READY = (ProcessState.READY, ProcessState.LOST, ProcessState.CONDEMNED)

#: The states in which no process will be ready any more.
_FINAL = (ProcessState.GONE, ProcessState.CLOSED)


class SupervisedProcess(ABC):
    """A process, and those that take its place after its death.

    Args:
        dispatcher: in whose turns the state changes.
        name: for messages.
        respawn: whether another process takes the place of one that has died.
    """

    def __init__(self, dispatcher: Dispatcher, name: str, *, respawn: bool) -> None:
        self.name = name
        self.gone: TaskFailure | None = None
        self._dispatcher = dispatcher
        self._respawn = respawn
        #: Of the last process that was started; whether that was given up before it was ready.
        self._link: Link | None = None
        self._given_up = False
        self._changed = threading.Condition()
        self._state = ProcessState.STARTING
        #: Why the process that starts, or has just died, did not become ready.
        self._refused: TaskFailure | None = None
        self._deaths = 0
        self._successor: threading.Thread | None = None

    @abstractmethod
    def _launch(self) -> Link:
        """Start a process; raises ``StartupError``."""

    @property
    def ready(self) -> bool:
        """Whether a task can be sent there."""
        return self._state is _READY

    def _enter(self, state: ProcessState) -> None:
        """Change the state; that of a closed one stays."""
        with self._changed:
            if self._state is not ProcessState.CLOSED:
                self._state = state
            self._changed.notify_all()

    def spawn(self) -> None:
        """Start the process; ``wait_ready`` waits for it. Raises ``StartupError``."""
        self._check_open()
        link = self._launch()
        with self._changed:
            self._link, self._given_up, self._refused = link, False, None
        try:
            link.start()
        except OSError as error:
            raise StartupError(f"{self.name}: {error}") from error
        if self._state is ProcessState.CLOSED:  # meanwhile
            link.close(0.0)
            self._check_open()

    def wait_ready(self, give_up: float) -> None:
        """Block until it takes tasks, at most until that moment of ``time.monotonic()``.

        Raises:
            StartupError: it failed, died, or took too long.
        """
        with self._changed:
            while self._refused is None:
                self._check_open()
                left = give_up - time.monotonic()
                if self.ready and left > 0:
                    return
                if left <= 0:
                    raise StartupError(f"{self.name}: not ready in time; it hangs, or startup_timeout_s is too short")
                self._changed.wait(left)
            raise StartupError(f"{self.name}: {self._refused.message}\n{self._refused.traceback}".rstrip())

    def _check_open(self) -> None:
        if self._state is ProcessState.CLOSED:
            raise StartupError(f"{self.name}: not wanted any more")

    def _is_current(self, link: Link) -> bool:
        """Whether what a process reports still counts: another one may start already in the place of one given up."""
        return link is self._link and not self._given_up

    def _became_ready(self) -> None:
        with self._dispatcher.turn():
            if self._state is ProcessState.STARTING:
                self._enter(ProcessState.READY)

    def _refuse(self, failure: TaskFailure) -> None:
        """It could not get ready."""
        with self._changed:
            self._refused = failure
            self._changed.notify_all()

    def _condemn(self) -> Link | None:
        """Send nothing there any more, even if its task is quicker; what the caller has to kill. Within a turn."""
        if self._state in _WAS_READY:
            self._enter(ProcessState.CONDEMNED)
        return self._link

    def _record_death(self, failure: TaskFailure) -> bool:
        """Change the state after a death, within a turn; whether another process takes its place."""
        was_ready = self._state in _WAS_READY
        if self._state is not ProcessState.CONDEMNED:
            self._deaths += 1
        if not was_ready and self._refused is None:
            self._refused = failure
        if not self._respawn or self._deaths >= MAX_DEATHS:
            last = f"; the last of {self._deaths} deaths in a row" if self._respawn else ""
            self.gone = TaskFailure(failure.type, f"out of service: {failure.message}{last}")
        self._enter(ProcessState.STARTING if self.gone is None else ProcessState.GONE)
        return was_ready and self._state is ProcessState.STARTING

    def _replace(self) -> None:
        """Start another process, on a thread: its zygote may have to be started again, too."""
        self._successor = threading.Thread(target=self._start_again, name=f"aorta-respawn-{self.name}", daemon=True)
        self._successor.start()

    def _start_again(self) -> None:
        for _ in range(MAX_DEATHS):
            try:
                self.spawn()
                self.wait_ready(time.monotonic() + RESTART)
                return
            except Exception as error:
                reason = TaskFailure(type(error).__name__, f"out of service: {error}")
            if not self._give_up():
                return
            if self._state in _FINAL:
                break
        with self._dispatcher.turn():
            self.gone = self.gone or reason
            self._enter(ProcessState.GONE)

    def _give_up(self) -> bool:
        """End a process that did not get ready; its death, which follows, says nothing about the next one.

        False if it has become ready at the last moment, or was, and has died, and another thread starts the next one.
        """
        with self._dispatcher.turn():
            if self.ready or self._successor is not threading.current_thread():
                return False
            self._given_up, link = True, self._link
        if link is not None:
            link.kill(0.0)
        return True

    def close(self, grace: float) -> None:
        """End it in order; never raises."""
        self._enter(ProcessState.CLOSED)
        if self._link is not None:
            self._link.close(grace)

    def join(self, timeout: float) -> None:
        """After ``close``, and once nothing can start any more: wait for a successor that was about to start."""
        if self._successor is not None:
            self._successor.join(timeout)
