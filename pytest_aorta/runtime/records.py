"""How a task ended: outcome, failure, times."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Characters of a failure's message that travel from level to level.
MAX_MESSAGE = 4096

#: Characters of its traceback; of a longer one, the middle is missing.
MAX_TRACEBACK = 65536

#: Characters of its details as JSON; larger ones are left out, and their size is given instead.
MAX_DETAILS = 65536


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
    ``details`` is what an exception's attribute ``details`` held: JSON values for the submitter.
    """

    type: str
    message: str
    traceback: str = field(default="", repr=False)
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def at(self, place: str) -> TaskFailure:
        """The same, seen from one level above."""
        return replace(self, message=f"{place}: {self.message}"[:MAX_MESSAGE])

    def to_plain(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
            "details": dict(self.details),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> TaskFailure:
        """The reverse of ``to_plain``."""
        return cls(plain["type"], plain["message"], plain.get("traceback", ""), plain.get("details") or {})


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
        told = "" if self.failure is None else f", {_cut(self.failure.message)!r}"
        if self.payload is not None:
            told += f", payload={_cut(repr(self.payload))}"
        where = "" if self.worker is None else f" on {self.worker}"
        took = "" if self.seconds is None else f" in {self.seconds:.3g} s"
        return f"<TaskRecord {self.id} {self.label}: {self.outcome.value}{where}{took}{told}>"

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


@dataclass(frozen=True, slots=True)
class Completion:
    """How a task ended at the endpoint that ran it."""

    outcome: Outcome
    payload: Any = None
    failure: TaskFailure | None = None

    def at(self, place: str) -> Completion:
        """The same, seen from one level above."""
        return self if self.failure is None else replace(self, failure=self.failure.at(place))


#: Of a task that has returned nothing, as most tasks do.
SUCCEEDED = Completion(Outcome.SUCCESS)


def failed(error: BaseException, outcome: Outcome = Outcome.TASK_FAILURE, traceback: str = "") -> Completion:
    """The completion of a task that ended with an exception."""
    if isinstance(error, TaskError) and error.record.failure is not None:
        return Completion(outcome, None, error.record.failure)
    try:
        text = str(error)
    except BaseException as trouble:
        text = f"(its text is unavailable: {type(trouble).__name__})"
    name = type(error).__name__
    message = f"{name}: {text}"[:MAX_MESSAGE]
    return Completion(outcome, None, TaskFailure(name, message, _shortened(traceback), _details(error)))


def _shortened(text: str) -> str:
    half = MAX_TRACEBACK // 2
    return text if len(text) <= MAX_TRACEBACK else f"{text[:half]}\n...\n{text[-half:]}"


def _details(error: BaseException) -> Mapping[str, Any]:
    """The attribute ``details`` of an exception, if it is JSON; in other libraries it may be any object."""
    try:
        details = getattr(error, "details", None)
        if not isinstance(details, Mapping):
            return {}
        size = len(json.dumps(details))
        return dict(details) if size <= MAX_DETAILS else {"left_out": f"{size} characters; at most {MAX_DETAILS} fit"}
    except Exception:
        return {}


def _cut(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
