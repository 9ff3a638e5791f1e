"""How a task ended: outcome, failure, times."""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

#: Characters of a failure's message that travel from level to level.
MAX_MESSAGE = 4096

#: Characters of its traceback; of a longer one, the middle is missing.
MAX_TRACEBACK = 65536


class Outcome(str, enum.Enum):
    """How a task ended."""

    SUCCESS = "success"
    #: Its callable raised.
    TASK_FAILURE = "task_failure"
    #: The process or the host that ran it died.
    ENDPOINT_FAILURE = "endpoint_failure"
    #: Its deadline passed, and it was ended.
    TIMEOUT = "timeout"
    #: It never started, because something that it needs had failed.
    SKIPPED = "skipped"
    #: It was cancelled, or ended early.
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task did not succeed.

    ``message`` has one prefix per level that it has passed: ``child_worker 0 level=3: sub_worker 1: ValueError: ...``.
    """

    type: str
    message: str
    traceback: str = field(default="", repr=False)

    def at(self, place: str) -> TaskFailure:
        """The same, seen from one level above."""
        return replace(self, message=f"{place}: {self.message}"[:MAX_MESSAGE])


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task that has settled. Its size is bounded.

    ``payload`` is what its callable returned; ``worker`` the endpoint that ran it; the
    times are seconds since the epoch, ``started`` and ``ended`` ``None`` where it never did. ``members`` are the
    records of a group's members.
    """

    id: int
    label: str
    outcome: Outcome
    payload: Any = None
    failure: TaskFailure | None = None
    worker: str | None = None
    submitted: float = 0.0
    started: float | None = None
    ended: float | None = None
    members: tuple[TaskRecord, ...] = ()

    def __repr__(self) -> str:
        details = "" if self.failure is None else f", {_cut(self.failure.message)!r}"
        if self.payload is not None:
            details += f", payload={_cut(repr(self.payload))}"
        where = "" if self.worker is None else f" on {self.worker}"
        took = "" if self.seconds is None else f" in {self.seconds:.3g} s"
        return f"<TaskRecord {self.id} {self.label}: {self.outcome.value}{where}{took}{details}>"

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.outcome is Outcome.SUCCESS

    @property
    def seconds(self) -> float | None:
        """How long it ran."""
        return None if self.started is None or self.ended is None else self.ended - self.started


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text; the cause of a ``TaskError``."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class TaskError(RuntimeError):
    """A task failed; ``record`` has the details, the text is the failure's message, ``__cause__`` its traceback."""

    def __init__(self, record: TaskRecord) -> None:
        super().__init__(record.failure.message if record.failure is not None else record.outcome.value)
        self.record = record
        if record.failure is not None and record.failure.traceback:
            self.__cause__ = RemoteTraceback(record.failure.traceback)

    def __reduce__(self) -> tuple[type[TaskError], tuple[TaskRecord]]:
        return type(self), (self.record,)


class WorkerClosed(RuntimeError):
    """The worker is closed or closing."""


class StartupError(RuntimeError):
    """A worker's child could not be started."""


@dataclass(frozen=True, slots=True)
class Completion:
    """How a task ended at the endpoint that ran it."""

    outcome: Outcome
    payload: Any = None
    failure: TaskFailure | None = None


#: Of a task that has returned nothing, as most tasks do.
SUCCEEDED = Completion(Outcome.SUCCESS)


def failure_of(error: BaseException, trace: TracebackType | None = None) -> TaskFailure:
    """An exception as a failure, with its traceback from ``trace`` on, or as a whole."""
    if isinstance(error, TaskError) and error.record.failure is not None:
        return error.record.failure
    try:
        text = str(error)
    except BaseException as trouble:
        text = f"(its text is unavailable: {type(trouble).__name__})"
    name = type(error).__name__
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except BaseException:  # an exception's own methods
        lines = "".join(traceback.format_tb(trace or error.__traceback__))
    if len(lines) > MAX_TRACEBACK:
        lines = f"{lines[: MAX_TRACEBACK // 2]}\n...\n{lines[-MAX_TRACEBACK // 2 :]}"
    return TaskFailure(name, f"{name}: {text}"[:MAX_MESSAGE], lines)


def _cut(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
