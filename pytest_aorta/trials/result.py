"""TrialResult, the record of one trial, schema 0.1."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytest_aorta.probe.health.model import HealthChange
from pytest_aorta.registry import Engine
from pytest_aorta.trials.execution import Cwd, Isolation, Launcher, Limits, Resources
from pytest_aorta.trials.records import (
    ENCODED,
    Attempt,
    Failure,
    Free,
    GroupState,
    RankRecord,
    ResultRecord,
    Seeds,
    Time,
    from_aorta,
    is_of_aorta,
)
from pytest_aorta.trials.workload import to_plain

SCHEMA_VERSION: Literal["0.1"] = "0.1"

ExitStatus = Literal["ok", "workload_failed", "infrastructure_failed", "timeout"]

#: Characters of a failure's message in the representation of a record.
_REPR = 200


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class Claim(_Part):
    """A claim of an environment, whether it is true (null if that is not known), and what was found instead."""

    claim: str
    verified: bool | None
    found: str


class ExecutionEnv(_Part):
    """The environment that the trial was started in.

    ``verified``: whether ``image``, ``venv`` and ``rocm`` are true of the trial: false if one is wrong; null if nothing
    is claimed, or one is not known. ``entered_with``: the engine that started the container.
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


class Imposed(_Part):
    """What a run imposes on a trial that a trial by itself would not have; ``None`` and empty for nothing.

    ``threads``: computing threads of each process; ``cpus``: those that it may run on; ``devices``: ids of those that
    it may see, empty where all were hidden; ``variables``: by which, where nothing else has set them.
    """

    threads: int | None = None
    cpus: list[int] | None = None
    devices: list[int] | None = None
    variables: dict[str, str] = Field(default_factory=dict)


class SideBySide(_Part):
    """How many trials could run at a time: ``slots`` of each host, or of each of xdist's ``workers``.

    ``cores``: physical cores of the trial's host that they may use; ``None`` where it is not known. ``slot``: the one
    that the trial had, of those of all workers, from 0; ``job``: of SLURM, by its number.
    """

    slots: int = 1
    workers: int = 1
    hosts: int = 1
    cores: int | None = None
    slot: int | None = None
    job: str | None = None


class Elastic(_Part):
    """What the agent of a distributed trial did.

    ``launcher``: ``command`` where the command of the trial has started its ranks again by itself.
    """

    launcher: Literal["elastic", "torchrun", "external", "command"]
    states: list[GroupState] = Field(default_factory=list)
    restarts: int = 0
    attempts: list[Attempt] = Field(default_factory=list)
    options: Free = Field(default_factory=dict)
    launcher_variables: dict[str, str] = Field(default_factory=dict)


class RequestedWorkload(_Part):
    """The class of a workload: ``target`` is ``module:Class``, or ``/absolute/file.py:Class``."""

    name: str
    target: str
    source_package: str


class RequestedEnvironment(_Part):
    """An environment without its variables, which are in the overlay.

    ``launcher`` is its prefix, ``beside`` a program that ran beside the trial.
    """

    name: str
    docker: str | None = None
    venv: str | None = None
    rocm: str | None = None
    launcher: list[str] = Field(default_factory=list)
    enter: bool | Engine = False
    engine_options: list[str] = Field(default_factory=list)
    repository: str | None = None
    commit: str | None = None
    build: str = ""
    beside: list[str] = Field(default_factory=list)
    source_package: str


class Request(_Part):
    """All that is needed to run a trial again, besides the cell and index of its record.

    ``overlay``: the variables that were set for it; ``ambient``: the values that each variable which any cell of the
    plan sets would have without, ``None`` where it is not set. A value that is a secret is ``<redacted>`` in both.
    ``config``, ``steps``, ``nproc``, ``elastic`` and ``run_seed`` (``--aorta-seed``) as they were given; ``seed``: of
    this trial, from which those of its generators derive, ``None`` where it was given none; ``hash_seed``: its
    ``PYTHONHASHSEED`` as drawn, which counts unless that variable is set. ``limits``: ``timeout`` is the deadline that
    the request sets; the workload's own counts where there is none. ``resources`` are those of the run. ``order``: in
    which the trials of the plan ran, and the seed of it. ``interpreter``, ``cwd`` and ``sys_path``: of the process that
    the trial was forked from or started by; the latter beyond the interpreter's own. ``cwd_of_trial``: whether the
    trial itself ran there, in an empty folder, or in a copy.
    """

    workload: RequestedWorkload
    environment: RequestedEnvironment
    environment_index: int = 0
    mitigation_index: int = 0
    overlay: dict[str, str] = Field(default_factory=dict)
    ambient: dict[str, str | None] = Field(default_factory=dict)
    config: Free = Field(default_factory=dict)
    steps: int | None = None
    isolation: Isolation = "fork"
    launcher: Launcher = "auto"
    nproc: int | None = None
    elastic: Free = Field(default_factory=dict)
    run_seed: int | None = None
    seed: int | None = None
    hash_seed: int | None = None
    limits: Limits = Limits()
    resources: Resources = Resources()
    order: str = ""
    collect: list[str] = Field(default_factory=list)
    interpreter: str
    cwd: str
    cwd_of_trial: Cwd = "here"
    sys_path: list[str] = Field(default_factory=list)


class StartedBy(_Part):
    """The test that has started a trial: its node id, of a marked test without the part that says which trial it is.

    ``options``: those that it gave, in short; ``digest``: of all that it chose besides environment and mitigations.
    """

    node_id: str
    options: str = ""
    digest: str = ""


class ReplayOf(_Part):
    """The record from which a trial was run again: its file, how that trial ended, and what differs now."""

    file: str
    started_at: str | None
    exit_status: ExitStatus
    request_fingerprint: str | None = None
    differences: list[str] = Field(default_factory=list)


class Collected(_Part):
    """Findings of a collector: its options, a sentence (empty for nothing), data, problems and files."""

    options: Free = Field(default_factory=dict)
    sentence: str = ""
    data: Free = Field(default_factory=dict)
    problems: list[str] = Field(default_factory=list)
    artifacts: list[str] = Field(default_factory=list)


class TrialResult(_Part):
    """The complete record of one trial. ``to_dict`` and ``from_dict`` round-trip without loss.

    A record that contradicts itself is refused: only a trial that is ``ok`` has passed, and its ``failure``, if it has
    one, is that of its cleanup or exit; a ``timeout`` is one in its failure, too. ``warnings`` are what a reader has to
    know before the result is believed. ``zygote``: which prepared process of its cell the trial was forked from, from
    0; those of one share what it drew at its start. ``None`` for a trial that was a process of its own.
    ``how_started``: what was chosen for the trials of its cell, and why. ``imports_sec``: seconds that the first rank
    has spent on imports from installed distributions, by module, of those that took 0.05 s and more. ``health``: what
    the hardware said meanwhile, ``None`` where that is switched off. Fields that the schema of
    AORTA does not have may be missing.
    """

    schema_version: Literal["0.1"] = SCHEMA_VERSION
    trial_id: str
    workload: str
    cell: str | None = None
    trial_index: int | None = None
    execution_env: ExecutionEnv
    mitigations_applied: list[str]
    config: Free
    env: Free
    result: ResultRecord
    wall_clock_sec: Time | None
    exit_status: ExitStatus
    failure: Failure | None = None
    warnings: list[str] = Field(default_factory=list)
    seeds: Seeds | None = None
    zygote: int | None = None
    how_started: str = ""
    preloaded: list[str] = Field(default_factory=list)
    not_preloaded: str | None = None
    imports_sec: dict[str, Time] = Field(default_factory=dict)
    ranks: list[RankRecord] = Field(default_factory=list)
    elastic: Elastic | None = None
    phases_sec: dict[str, Time] = Field(default_factory=dict)
    started_at: str | None = None
    host: str | None = None
    request_fingerprint: str | None = None
    request: Request | None = None
    replay_of: ReplayOf | None = None
    test: StartedBy | None = None
    fingerprint_parts: Free = Field(default_factory=dict)
    imposed: Imposed = Imposed()
    side_by_side: SideBySide | None = None
    artifacts: dict[str, str] = Field(default_factory=dict)
    collected: dict[str, Collected] = Field(default_factory=dict)
    health: HealthChange | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TrialResult:
        status, failure = self.exit_status, self.failure
        if self.result.passed is not (status == "ok"):
            raise ValueError(f"exit_status is {status!r}, but result.passed is {str(self.result.passed).lower()}")
        if failure is None:
            return self
        if status == "ok" and failure.phase not in ("cleanup", "exit"):
            raise ValueError(f"exit_status is 'ok', but failure.phase is {failure.phase!r}")
        if status != "ok" and (status == "timeout") is not (failure.kind in ("timeout", "stall")):
            raise ValueError(f"exit_status is {status!r}, but failure.kind is {failure.kind!r}")
        return self

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        yield "trial_id", self.trial_id
        yield "exit_status", self.exit_status
        if self.failure is not None:
            text = ": ".join(filter(None, (self.failure.type, self.failure.message)))
            yield "failure", text if len(text) <= _REPR else f"{text[:_REPR]}..."

    @property
    def restarts(self) -> int:
        """How often the ranks of a distributed trial were started again."""
        return 0 if self.elastic is None else self.elastic.restarts

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON; a NaN is the string ``NaN``."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrialResult:
        """Read what ``to_dict`` gave, or AORTA's own runner has written. Keys of a later schema are ignored.

        Raises:
            pydantic.ValidationError: a field is missing or has the wrong type; a time is negative, or not finite; the
                record contradicts itself. It names the field.
        """
        return cls.model_validate(from_aorta(data) if is_of_aorta(data) else data, context=ENCODED)


@dataclass(frozen=True)
class Judgement:
    """What another plugin says of a trial that has ended, see ``pytest_aorta_trial_result``.

    Attributes:
        metrics: to be added to those of the trial; names that it has stay as they are.
        failed: why a trial that is ok has failed; empty where it has not.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""


def with_judgement(record: TrialResult, said: Judgement) -> TrialResult:
    """The record of a trial with what another plugin says of it."""
    result, changes = record.result, dict[str, Any]()
    if said.metrics:
        result = replace(result, metrics={**to_plain(dict(said.metrics)), **result.metrics})
    if said.failed and record.exit_status == "ok":
        details = [*result.failure_details, {"message": said.failed}]
        count = max(1, result.failure_count or 0)
        result = replace(result, passed=False, failure_count=count, failure_details=details)
        changes = {"exit_status": "workload_failed", "failure": Failure("run", "result", said.failed)}
    return record.model_copy(update={"result": result, **changes})


def schema_text() -> str:
    """The schema of what ``TrialResult.to_dict()`` gives, as indented JSON with sorted keys.

    ``python -m pytest_aorta.trials.result > pytest_aorta/schemas/trial_result.schema.json`` publishes it.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **TrialResult.model_json_schema(mode="serialization"),
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
