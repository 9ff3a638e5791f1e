"""Slots for jobs: each runs one job at a time, on a thread that lives as long as the job."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.engine.tasks import TaskKind
from pytest_aorta.runtime.records import Completion, Outcome, TaskFailure, failed

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.engine.tasks import Dispatch


@dataclass(frozen=True)
class Slot:
    """A place of this host; ``index`` is its number, from 0."""

    index: int = 0


class JobContext:
    """What a job's function is given besides its payload.

    Attributes:
        slot: where it runs.
        service: what the worker's ``service`` function returned; shared by all its jobs.
    """

    def __init__(self, slot: Slot, service: Any, emit: Callable[[Any], None]) -> None:
        self.slot = slot
        self.service = service
        self.emit = emit
        self._lock = threading.Lock()
        self._why: str | None = None
        self._callbacks: list[Callable[[str], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._why is not None

    def on_cancel(self, callback: Callable[[str], None]) -> None:
        """Call with the reason, on any thread, once the job is cancelled; at once, if it was already."""
        with self._lock:
            self._callbacks.append(callback)
            why = self._why
        if why is not None:
            callback(why)

    def cancel(self, why: str) -> None:
        """Call what was registered with ``on_cancel``; once."""
        with self._lock:
            if self._why is not None:
                return
            self._why = why
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(why)


class JobSlot:
    """The endpoint of one slot."""

    kind = TaskKind.JOB
    capacity = 1
    ready = True

    def __init__(self, dispatcher: Dispatcher, slot: Slot, service: Any) -> None:
        self.id = slot.index
        self.name = f"slot {slot.index}"
        self.busy = 0
        self.gone: TaskFailure | None = None
        self._dispatcher = dispatcher
        self._slot = slot
        self._service = service
        #: The job that it was given last, and that job's context once it has been started.
        self._assigned: Dispatch | None = None
        self._context: JobContext | None = None
        self._lock = threading.Lock()

    def assign(self, dispatch: Dispatch) -> None:
        """Take a job."""
        with self._lock:
            self._assigned, self._context = dispatch, None

    def start(self, dispatch: Dispatch) -> None:
        """Run the job on a new thread: there is none while nothing runs, and none that a fork could miss."""
        job = dispatch.member.job
        assert job is not None
        context = JobContext(self._slot, self._service, job.on_event or _ignore)
        with self._lock:
            stopped = dispatch.stopping
            self._context = context
        if stopped is not None:
            self._dispatcher.ended(dispatch, stopped)
            return
        threading.Thread(
            target=self._run, args=(dispatch, context), name=f"aorta-{self.name.replace(' ', '-')}", daemon=True
        ).start()

    def _run(self, dispatch: Dispatch, context: JobContext) -> None:
        job = dispatch.member.job
        assert job is not None
        try:
            if job.on_start is not None:
                job.on_start(self.name)
            payload = import_target(job.target)(context, job.payload)
            completion = Completion(Outcome.SUCCESS, payload)
        except BaseException as error:
            completion = failed(error, traceback=traceback.format_exc())
        self._dispatcher.ended(dispatch, completion)

    def stop(self, dispatch: Dispatch, why: str) -> None:
        """Ask; the job decides how long it takes to end."""
        with self._lock:
            context = self._context if self._assigned is dispatch else None
        if context is not None:
            # On a thread: a callback may wait for a lock whose holder waits for the dispatcher's.
            threading.Thread(target=context.cancel, args=(why,), daemon=True).start()


def _ignore(event: Any) -> None:
    pass
