"""TrialResult, the record of one trial, schema 0.1."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)

from pytest_aorta.trials.conversion import decode_non_finite, encode_non_finite
from pytest_aorta.trials.events import AttemptReason, FailureKind, GroupStateName, Phase

SCHEMA_VERSION: Literal["0.1"] = "0.1"

ExitStatus = Literal["ok", "workload_failed", "infrastructure_failed", "timeout"]

#: Validation context of data that ``to_dict`` gave, as opposed to values.
ENCODED = "encoded"


def _decoded(value: Any, info: ValidationInfo) -> Any:
    return decode_non_finite(value) if info.context == ENCODED else value


# Free-form data and floats: strict JSON has no NaN, so it travels as a string and comes back as a float.
_decode = BeforeValidator(_decoded)
_encode = PlainSerializer(encode_non_finite)
_FLOAT: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
_OBJECT: dict[str, Any] = {"type": "object"}


def _shown_as(schema: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema(schema, mode="serialization")


Float = Annotated[float, _decode, _encode, _shown_as(_FLOAT)]
Floats = Annotated[list[float], _decode, _encode, _shown_as({"type": "array", "items": _FLOAT})]
Free = Annotated[dict[str, Any], _decode, _encode, _shown_as(_OBJECT)]
FreeList = Annotated[list[dict[str, Any]], _decode, _encode, _shown_as({"type": "array", "items": _OBJECT})]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class Claim(_Record):
    """Something that an environment claims, whether it is true (null where that is not known), and what was found."""

    claim: str
    verified: bool | None
    found: str


class ExecutionEnv(_Record):
    """The environment that the trial was started in.

    ``verified`` says whether the trial has seen what ``image``, ``venv`` and ``rocm`` claim: false if one is wrong;
    null where nothing is claimed or one is not known. ``entered_with`` is the engine that has started it.
    """

    kind: Literal["local", "venv", "docker", "rocm"]
    name: str
    image: str | None = None
    digest: str | None = None
    venv: str | None = None
    rocm: str | None = None
    verified: bool | None = None
    claims: list[Claim] = Field(default_factory=list)
    entered_with: str | None = None
    source_package: str


class ResultRecord(_Record):
    """What the workload returned; of a distributed workload, what rank 0 returned. Times in ms and seconds."""

    passed: bool
    failure_count: int = 0
    first_failure_iteration: int | None = None
    failure_details: FreeList = Field(default_factory=list)
    total_iterations: int = 0
    step_times_ms: Floats = Field(default_factory=list)
    elapsed_sec: Float = 0.0
    metrics: Free = Field(default_factory=dict)
    main_work_started: bool | None = None
    executed_iterations: int | None = None
    configured_iterations: int | None = None


class Failure(_Record):
    """Why a trial is not ``ok``, or what went wrong in its cleanup."""

    phase: Phase
    kind: FailureKind
    type: str | None = None
    message: str = ""
    traceback: str | None = None
    signal: str | None = None
    exit_code: int | None = None
    rank: int | None = None
    stacks: str | None = None


class Seeds(_Record):
    """Seeds of the random generators of a process, by module; ``kept`` are those that the workload seeded at import."""

    seed: int
    generators: dict[str, int]
    kept: list[str] = Field(default_factory=list)


class Imposed(_Record):
    """What a run has imposed on a trial, which would not have it alone; ``None`` and empty for nothing.

    ``threads``: computing threads of each process; ``cpus``: those that it may run on; ``devices``: ids of those that
    it may see, empty where all were hidden; ``variables``: by which, where nothing else has set them.
    """

    threads: int | None = None
    cpus: list[int] | None = None
    devices: list[int] | None = None
    variables: dict[str, str] = Field(default_factory=dict)


class SideBySide(_Record):
    """How many trials could run at a time: ``slots`` of each host, or of each of xdist's ``workers``.

    ``cores``: physical cores of the trial's host that they may use; ``None`` where it is not known.
    """

    slots: int = 1
    workers: int = 1
    hosts: int = 1
    cores: int | None = None


class RankRecord(_Record):
    """One process of a distributed trial."""

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
    stdout: str | None = None
    stderr: str | None = None
    stacks: str | None = None
    error_file: Free | None = None
    collective: str | None = None
    seeds: Seeds | None = None


class GroupState(_Record):
    """A state of the worker group, and when it began (seconds of ``time.time()``)."""

    state: GroupStateName
    at: Float
    attempt: int
    world_size: int | None = None


class Attempt(_Record):
    """An attempt that was followed by another one: because a rank failed, or because a node came or left."""

    attempt: int
    reason: AttemptReason = "failure"
    failure: Failure | None = None
    ranks: list[RankRecord] = Field(default_factory=list)


class Elastic(_Record):
    """What the agent of a distributed trial did."""

    launcher: Literal["elastic", "torchrun", "external"]
    states: list[GroupState] = Field(default_factory=list)
    restarts: int = 0
    attempts: list[Attempt] = Field(default_factory=list)
    options: Free = Field(default_factory=dict)
    launcher_variables: dict[str, str] = Field(default_factory=dict)


class TrialResult(_Record):
    """The complete record of one trial. ``to_dict`` and ``from_dict`` round-trip without loss."""

    schema_version: Literal["0.1"] = SCHEMA_VERSION
    trial_id: str
    workload: str
    cell: str
    trial_index: int
    execution_env: ExecutionEnv
    mitigations_applied: list[str]
    config: Free
    env: Free
    result: ResultRecord
    wall_clock_sec: Float
    exit_status: ExitStatus
    failure: Failure | None = None
    seeds: Seeds | None = None
    ranks: list[RankRecord] = Field(default_factory=list)
    elastic: Elastic | None = None
    phases_sec: dict[str, Float] = Field(default_factory=dict)
    started_at: str
    host: str
    request_fingerprint: str | None = None
    fingerprint_parts: Free = Field(default_factory=dict)
    imposed: Imposed = Imposed()
    side_by_side: SideBySide | None = None
    artifacts: dict[str, str] = Field(default_factory=dict)

    @property
    def restarts(self) -> int:
        """How often the ranks of a distributed trial were started again."""
        return 0 if self.elastic is None else self.elastic.restarts

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON; a NaN is the string ``NaN``."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrialResult:
        """Read what ``to_dict`` gave. Keys of a later schema are ignored.

        Raises:
            pydantic.ValidationError: a field is missing or has the wrong type; it names the field.
        """
        return cls.model_validate(data, context=ENCODED)
