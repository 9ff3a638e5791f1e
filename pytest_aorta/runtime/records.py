"""How a task ended: outcome, failure, times."""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from pytest_aorta.common.texts import describe_exception

#: Characters of a failure's message that travel from level to level.
MAX_MESSAGE = 4096

#: Bytes of an exception that does.
MAX_EXCEPTION = 2**16


class Outcome(str, enum.Enum):
    """How a task ended."""

    SUCCESS = "success"
    #: Its callable raised.
    TASK_FAILURE = "task_failure"
    #: The process or the host that ran it, or a part of it on a level below, died.
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
    #: The exception itself, if it can be pickled.
    pickled: bytes = field(default=b"", repr=False, compare=False)

    def exception(self) -> Exception | None:
        """The original exception, with its traceback as text; ``None`` if it cannot be unpickled."""
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # its own methods may raise anything
            return None
        if not isinstance(error, Exception):
            return None
        error.__cause__ = RemoteTraceback(self.traceback)
        return error

    def at(self, place: str) -> TaskFailure:
        """This failure with the name of an endpoint in front, for the level above."""
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
    payload: Any = field(default=None, repr=False)
    failure: TaskFailure | None = None
    worker: str | None = None
    submitted: float = 0.0
    started: float | None = None
    ended: float | None = None
    members: tuple[TaskRecord, ...] = ()

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.SUCCESS

    @property
    def value(self) -> Any:
        """What its callable returned; of a group, a list of what its members returned."""
        return [member.payload for member in self.members] if self.members else self.payload


class RemoteTraceback(Exception):
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
    outcome: Outcome
    payload: Any = None
    failure: TaskFailure | None = None


#: The completion of tasks that return nothing, as most do.
SUCCEEDED = Completion(Outcome.SUCCESS)


def failure_of(error: BaseException, trace: TracebackType | None = None) -> TaskFailure:
    """An exception as a failure, with its traceback from ``trace`` on, or as a whole."""
    if isinstance(error, TaskError) and error.record.failure is not None:
        return error.record.failure
    told = describe_exception(error if trace is None else error.with_traceback(trace))
    text = f"{told['type']}: {told['message']}"[:MAX_MESSAGE]
    return TaskFailure(told["type"], text, told["traceback"], _pickled(error))


def _pickled(error: BaseException) -> bytes:
    if not isinstance(error, Exception):
        return b""  # the SystemExit of a task must not end its caller
    try:
        import cloudpickle

        data: bytes = cloudpickle.dumps(error)
    except Exception:  # its own methods may raise anything
        return b""
    return data if len(data) <= MAX_EXCEPTION else b""
