"""The parts of a trial's record, and the events that bring them to its host.

There is one type per idea, from the process of a trial to its file. A trial's process must not import pydantic, so
these are plain dataclasses; pydantic checks them where they come from another process or from a file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

# Pydantic does not take those of ``typing`` before Python 3.12.
from typing_extensions import Required, TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: ``exit``: after the last phase, or after the last line of a command's program, while its process ended.
Phase = Literal["launch", "import", "setup", "run", "cleanup", "exit"]
FailureKind = Literal["exception", "signal", "exit_code", "timeout", "stall", "result", "rank"]
GroupStateName = Literal["INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED", "UNKNOWN"]
AttemptReason = Literal["failure", "membership"]
#: Whether a failed rank is the cause of the trial's failure, or only followed from it.
Blame = Literal["cause", "collateral", "unknown"]
#: Of the rank that is named as the cause. ``likely``: by its time, by a majority, or while others were ended unheard.
Confidence = Literal["certain", "likely", "unknown"]

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_non_finite(value: Any) -> Any:
    """Replace NaN and infinities by the strings ``NaN``, ``Infinity``, ``-Infinity``, for strict JSON.

    A text that already reads so gets a backslash in front, which ``decode_non_finite`` takes away again.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return "\\" + value if value.lstrip("\\") in _NON_FINITE else value
    if isinstance(value, list | tuple):
        return list(map(encode_non_finite, value))
    if isinstance(value, dict):
        return dict(zip(value, map(encode_non_finite, value.values()), strict=True))
    return value


def decode_non_finite(value: Any) -> Any:
    if isinstance(value, str):
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        return value[1:] if value.startswith("\\") and value.lstrip("\\") in _NON_FINITE else value
    if isinstance(value, list):
        return list(map(decode_non_finite, value))
    if isinstance(value, dict):
        return dict(zip(value, map(decode_non_finite, value.values()), strict=True))
    return value


def canonical_json(value: Any) -> str:
    """JSON with one text per value (sorted keys, no spaces, no NaN tokens), for digests."""
    return json.dumps(encode_non_finite(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


#: Validation context of data that ``TrialResult.to_dict`` gave, as opposed to values.
ENCODED = "encoded"


@dataclass(eq=False)
class _FreeForm:
    """Free-form data. Strict JSON has no NaN: it travels as a string, and comes back as a float."""

    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def decode(value: Any, info: Any) -> Any:
            return decode_non_finite(value) if info.context == ENCODED else value

        encode = core_schema.plain_serializer_function_ser_schema(encode_non_finite)
        return core_schema.with_info_before_validator_function(decode, handler(source), serialization=encode)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return self.schema


class _Strict:
    """A bool, or a finite float of at least 0, without conversion from other types."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        if source is bool:
            return core_schema.bool_schema(strict=True)
        return core_schema.float_schema(ge=0, allow_inf_nan=False, strict=True)


_OBJECT: dict[str, Any] = {"type": "object"}
Free = Annotated[dict[str, Any], _FreeForm(_OBJECT)]
FreeList = Annotated[list[dict[str, Any]], _FreeForm({"type": "array", "items": _OBJECT})]

#: A duration, or a time of ``time.time()``.
Time = Annotated[float, _Strict()]


#: How the note on a result begins that says ``passed=True``, and has not passed.
CONTRADICTED = "run() returned passed=True, but "


@dataclass(frozen=True, repr=False)
class ResultRecord:
    """What the workload returned; of a distributed workload, what rank 0 returned. Times in ms and seconds.

    What was not measured, or not returned, is ``None``. In the record of a trial, ``passed`` is true only if the trial
    is ``ok``: not where another rank has failed. ``output`` is what the lines of a command say: ``matched`` has the
    number of lines of each expression, ``detected`` what is known to be a fault, ``warnings`` what is to be doubted.
    """

    passed: Annotated[bool, _Strict()]
    failure_count: int | None = None
    first_failure_iteration: int | None = None
    failure_details: FreeList = field(default_factory=list)
    total_iterations: int | None = None
    step_times_ms: list[Time] = field(default_factory=list)
    elapsed_sec: Time | None = None
    metrics: Free = field(default_factory=dict)
    main_work_started: bool | None = None
    executed_iterations: int | None = None
    configured_iterations: int | None = None
    output: Free = field(default_factory=dict)

    def __repr__(self) -> str:
        known = [(it.name, value) for it in fields(self) if (value := getattr(self, it.name)) not in (None, [], {})]
        return f"ResultRecord({', '.join(f'{name}={value!r}' for name, value in known)})"


@dataclass(frozen=True)
class Failure:
    """Why a trial or a rank is not ``ok``, or what went wrong in its cleanup.

    ``at``: when it was noticed, in seconds of ``time.time()``; ``None`` where only the end of a process shows it.
    ``in_doubt``: of a trial in a batch job that a signal has ended, as long as it is not known whether that was the end
    of the job. ``confidence``: of a trial with ranks, how sure it is that it comes from ``rank``; ``unknown`` where no
    rank is named. ``evidence``: what that is concluded from. ``infrastructure``: true for an exception of ``run()``
    that says nothing about the workload, as its class has it.
    """

    phase: Phase
    kind: FailureKind
    message: str = ""
    type: str | None = None
    traceback: str | None = None
    signal: str | None = None
    exit_code: int | None = None
    rank: int | None = None
    stacks: str | None = None
    at: Time | None = None
    confidence: Confidence | None = None
    evidence: str | None = None
    infrastructure: bool | None = None
    in_doubt: bool | None = None

    @property
    def is_late(self) -> bool:
        return self.kind in ("timeout", "stall")

    def known(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Seeds:
    """Seeds of the random generators of a process, by module; ``kept``: generators that the workload seeded at import.

    ``hash``: ``PYTHONHASHSEED`` of its interpreter, drawn for it or set by the user; ``None`` where it is not known.
    """

    seed: int
    generators: dict[str, int]
    kept: list[str] = field(default_factory=list)
    hash: int | None = None


@dataclass(frozen=True)
class Progress:
    """``step`` of ``total`` steps are done."""

    step: int
    total: int | None = None


@dataclass(frozen=True)
class RankRecord:
    """One process of a distributed trial.

    ``collateral``: it failed because of another rank. ``blame`` is ``None`` for a rank that has neither failed nor let
    others wait. ``progress``: the last step that it reported. ``busy_ms``: how long it computes on average from one
    collective of all ranks to its entry into the next, and ``step_ms`` from step to step, without its waits for others;
    ``None`` where torch's flight recorder does not tell, and across hosts.
    """

    rank: int
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    passed: bool | None = None
    result: ResultRecord | None = None
    failure: Failure | None = None
    collateral: bool = False
    blame: Blame | None = None
    stdout: str | None = None
    stderr: str | None = None
    stacks: str | None = None
    error_file: Free | None = None
    collective: str | None = None
    seeds: Seeds | None = None
    progress: Progress | None = None
    busy_ms: Time | None = None
    step_ms: Time | None = None


@dataclass(frozen=True)
class GroupState:
    """A state of the worker group, and when it began (seconds of ``time.time()``)."""

    state: GroupStateName
    at: Time
    attempt: int
    world_size: int | None = None


@dataclass(frozen=True)
class Attempt:
    """An attempt that another one followed, because a rank failed, or because a node came or left."""

    attempt: int
    reason: AttemptReason = "failure"
    failure: Failure | None = None
    ranks: list[RankRecord] = field(default_factory=list)


EventType = Literal[
    "begin", "end", "progress", "alive", "env", "env_end", "imported", "imports_over", "imports_sec", "ranks_start",
    "ranks_ready", "rank_pids", "group", "attempt", "ranks", "failed", "lived",
]  # fmt: skip


class Event(TypedDict, total=False):
    """One event, a mapping with a ``type``. A trial's process sends it; a rank appends it to its event log.

    ``at``: when, in seconds of ``time.time()``. ``sec``: how long a phase took. ``end`` and ``sources``: the part of
    the snapshot that is taken when ``run()`` is over, and digests of the source files imported since the preparation of
    the cell; ``reads``: files that a class has opened, and only read. ``error``: as of ``describe_exception``.
    ``ranks_start``: ranks are about to be started, and import for themselves; ``ranks_ready``: the first of them has
    done so. ``rank_pids``: ranks that are no descendants of the process that sends it; ``left``: the names of processes
    that they have left behind.
    """

    type: Required[EventType]
    at: float | None
    phase: Phase
    sec: float
    result: ResultRecord | None
    failure: Failure | None
    step: int
    total: int | None
    env: dict[str, Any]
    seeds: Seeds | None
    launcher_variables: dict[str, str]
    end: dict[str, Any]
    sources: dict[str, str]
    modules: list[str]
    reads: list[str]
    module: str
    imports: dict[str, float]
    note: str | None
    group: GroupState
    attempt: Attempt
    ranks: list[RankRecord]
    pids: list[int]
    left: list[str]
    cleanup: Failure | None
    error: dict[str, str]


Send = Callable[[Event], None]


def to_json(data: object) -> str:
    return json.dumps(data, default=asdict)


def event_of_rank(data: dict[str, Any]) -> Event:
    """Read an event from the log of a rank, which this package has written, without importing pydantic."""
    types = {"result": ResultRecord, "failure": Failure, "seeds": Seeds}
    read = {name: kind(**data[name]) for name, kind in types.items() if data.get(name) is not None}
    return {**data, **read}  # type: ignore[typeddict-item]


@cache
def prepare_events() -> TypeAdapter[Event]:
    """Checks events that come from another process; raises ``ValueError`` for anything else."""
    from pydantic import TypeAdapter

    return TypeAdapter(Event)


# Records that AORTA's own runner has written (package ``amd-aorta``, schema 0.1)

#: What AORTA puts into the configuration for itself.
_OWN_OPTIONS = "_aorta_"

_TRIAL_ID = re.compile(r"_t(\d{1,9})$")

#: A detector of AORTA's tiers, a deadline or a status of the command has decided.
_DETAIL = ("failure_detectors_fired", "error_detectors_fired", "exit_code")


def is_of_aorta(record: object) -> bool:
    """Whether AORTA has written this record: neither kind of environment nor cell are named in it."""
    if not isinstance(record, Mapping) or "cell" in record or "config" not in record:
        return False
    environment = record.get("execution_env")
    return isinstance(environment, Mapping) and "kind" not in environment and isinstance(record.get("env"), Mapping)


def from_aorta(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record in this package's form, for ``TrialResult.from_dict``; an extension block of ours is merged back.

    ``workload_setup_failed``, and the verdict ``error`` of a command, are ``infrastructure_failed``; a command that
    AORTA has ended at its deadline is a ``timeout``. Its fingerprint is left out: it is of another form, and would not
    match. Nothing is added that the record does not say.
    """
    environment, result, env = record["execution_env"], record["result"], record["env"]
    detail: dict[str, Any] = {}
    status, is_late = str(record["exit_status"]), False
    for each in result.get("failure_details") or ():
        if isinstance(each, Mapping):
            detail, is_late = detail or dict(each), is_late or each.get("timed_out") is True
    phase = "setup" if status == "workload_setup_failed" else "run"
    if status != "ok" and is_late:
        status = "timeout"
    elif (result.get("metrics") or {}).get("verdict") == "error" or phase == "setup":
        status = "infrastructure_failed"
    raised = status == "infrastructure_failed" and "error" in detail
    failure = {
        "phase": phase,
        "kind": "timeout" if status == "timeout" else "exception" if raised else "result",
        "type": str(detail["type"]) if raised and "type" in detail else None,
        "message": str(detail.get("error") or ", ".join(f"{it}: {detail[it]}" for it in _DETAIL if detail.get(it))),
    }
    variables = {name: value for name, value in (env.get("env_vars") or {}).items() if value is not None}
    index = _TRIAL_ID.search(str(record.get("trial_id")))
    return {
        **record,
        "execution_env": {
            "kind": "docker" if environment.get("docker") else "venv" if environment.get("venv") else "local",
            "name": environment.get("name", "local"),
            "image": environment.get("docker"),
            "venv": environment.get("venv"),
            "source_package": environment.get("source_package") or "aorta",
        },
        "config": {key: value for key, value in record["config"].items() if not key.startswith(_OWN_OPTIONS)},
        # Of a command, one of each axis.
        "mitigations_applied": [name for name in record["mitigations_applied"] if name != "none"] or ["none"],
        "env": {"aorta": env, "env_vars": variables},  # its snapshot has other sections
        "trial_index": int(index[1]) if index else None,
        "exit_status": status,
        "request_fingerprint": None,
        "failure": None if status == "ok" else failure,
    }
