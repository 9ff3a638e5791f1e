"""What a trial reports to its host: one type per event, and the plain data of a result, a failure and a rank.

Events are JSON mappings with a ``type``. A trial's process sends them through its channel, a rank appends them to its
event log. They are built as typed dicts, at no cost; the host checks what comes from another process with
``parse_event``, whose schema is too slow to build (50 ms) in the process of a trial.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

# Pydantic does not take those of ``typing`` before Python 3.12.
from typing_extensions import NotRequired, Required, TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Phase = Literal["launch", "import", "setup", "run", "cleanup"]
FailureKind = Literal["exception", "signal", "exit_code", "timeout", "stall", "result", "rank"]
GroupStateName = Literal["INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED", "UNKNOWN"]
AttemptReason = Literal["failure", "membership"]
#: Whether a rank that failed is what the trial's failure comes from, or has only followed.
Blame = Literal["cause", "collateral", "unknown"]


class FailureData(TypedDict):
    """A ``Failure`` before it is recorded. ``at``: when it was noticed, in seconds of ``time.time()``."""

    phase: Phase
    kind: FailureKind
    message: str
    type: NotRequired[str]
    traceback: NotRequired[str]
    signal: NotRequired[str | None]
    exit_code: NotRequired[int | None]
    rank: NotRequired[int | None]
    stacks: NotRequired[str]
    at: NotRequired[float]


class ResultData(TypedDict, total=False):
    """A ``ResultRecord`` before it is recorded: the fields that ``run()`` returned."""

    passed: Required[bool]
    failure_count: int
    first_failure_iteration: int | None
    failure_details: list[dict[str, Any]]
    total_iterations: int
    step_times_ms: list[float]
    elapsed_sec: float
    metrics: dict[str, Any]
    main_work_started: bool | None
    executed_iterations: int | None
    configured_iterations: int | None


class SeedsData(TypedDict):
    """Seeds of the generators of one process: ``generators`` by module, derived from ``seed``.

    ``kept``: modules whose generator the workload's import has seeded itself.
    """

    seed: int
    generators: dict[str, int]
    kept: list[str]


class ProgressEvent(TypedDict):
    """``step`` of ``total`` steps are done."""

    type: Literal["progress"]
    step: int
    total: int | None


class AliveEvent(TypedDict):
    type: Literal["alive"]


class RankData(TypedDict):
    """A ``RankRecord`` before it is recorded.

    ``collateral``: the rank failed because of another one. ``blame`` is ``None`` for a rank that has neither failed
    nor let others wait. ``progress``: the last step that it has reported.
    """

    rank: int
    local_rank: int | None
    host: str | None
    pid: int | None
    exit_code: int | None
    signal: str | None
    passed: bool | None
    failure: FailureData | None
    collateral: bool
    blame: NotRequired[Blame | None]
    error_file: dict[str, Any] | None
    result: ResultData | None
    stdout: str | None
    stderr: str | None
    stacks: str | None
    collective: NotRequired[str]
    seeds: NotRequired[SeedsData | None]
    progress: NotRequired[ProgressEvent | None]


class BeginEvent(TypedDict):
    """A phase begins. ``at``: seconds of ``time.time()``."""

    type: Literal["begin"]
    phase: Phase
    at: NotRequired[float]


class EndEvent(TypedDict):
    """A phase has ended after ``sec`` seconds; that of a successful ``run`` has the result.

    ``at``: seconds of ``time.time()``.
    """

    type: Literal["end"]
    phase: Phase
    sec: float
    at: NotRequired[float]
    result: NotRequired[ResultData]
    failure: NotRequired[FailureData]


class EnvEvent(TypedDict):
    """The snapshot of the environment, the variables that a launcher has set for its ranks, and the seeds."""

    type: Literal["env"]
    env: dict[str, Any]
    seeds: NotRequired[SeedsData]
    launcher_variables: NotRequired[dict[str, str]]


class EnvEndEvent(TypedDict):
    """The part of the snapshot that is taken when ``run()`` is over.

    ``sources``: digests of the source files that were imported after the cell was prepared; see ``trials.sources``.
    """

    type: Literal["env_end"]
    end: dict[str, Any]
    sources: NotRequired[dict[str, str]]


class ImportedEvent(TypedDict):
    type: Literal["imported"]
    module: str


class ImportsOverEvent(TypedDict):
    type: Literal["imports_over"]
    note: str | None


class GroupEvent(TypedDict):
    """The worker group has changed its state. ``at``: seconds of ``time.time()``."""

    type: Literal["group"]
    state: GroupStateName
    at: float
    attempt: int
    world_size: int | None


class AttemptEvent(TypedDict):
    """All ranks of an attempt have ended, and another attempt follows."""

    type: Literal["attempt"]
    attempt: int
    reason: AttemptReason
    ranks: list[RankData]
    failure: FailureData | None


class RanksEvent(TypedDict):
    """All ranks have ended; ``failure`` is their root cause, ``cleanup`` the first failure in a cleanup."""

    type: Literal["ranks"]
    ranks: list[RankData]
    failure: FailureData | None
    cleanup: FailureData | None


class FinishedEvent(TypedDict):
    """All phases are over. ``at``: seconds of ``time.time()``."""

    type: Literal["lived"]
    at: NotRequired[float]


class NotStartedEvent(TypedDict):
    """The trial could not be started: its logs could not be opened, or the workload could not be imported.

    ``error``: as of ``describe_exception``.
    """

    type: Literal["failed"]
    error: dict[str, str]
    phase: NotRequired[Phase]


class ExitEvent(TypedDict):
    """The process of a rank has ended; added to the rank's event log by the process that has waited for it.

    ``overdue``: when the deadline passed (seconds of ``time.time()``), if it did; ``interrupted``: whether its
    pytest has ended it; ``at``: when it ended.
    """

    type: Literal["over"]
    returncode: int | None
    overdue: float | None
    interrupted: NotRequired[bool]
    at: NotRequired[float]


TrialEvent = (
    BeginEvent
    | EndEvent
    | ProgressEvent
    | AliveEvent
    | EnvEvent
    | EnvEndEvent
    | ImportedEvent
    | ImportsOverEvent
    | GroupEvent
    | AttemptEvent
    | RanksEvent
    | FinishedEvent
    | NotStartedEvent
    | ExitEvent
)
Send = Callable[[TrialEvent], None]


def parse_event(data: object) -> TrialEvent:
    """An event from another process.

    Raises:
        pydantic.ValidationError: ``data`` is not an event. This is a ``ValueError``.
    """
    return _adapter().validate_python(data)


def prepare_events() -> None:
    """Build the schema of ``parse_event`` now, which takes 50 ms."""
    _adapter()


@cache
def _adapter() -> TypeAdapter[TrialEvent]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[TrialEvent, Field(discriminator="type")])
