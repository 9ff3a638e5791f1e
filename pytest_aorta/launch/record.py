"""The complete record of a trial that is over."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_aorta.launch.containers import choose_engine
from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.request import request_of
from pytest_aorta.launch.verification import check_claims, overall
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.probe.host import image_digest
from pytest_aorta.probe.snapshot import EnvSnapshot, utc_now
from pytest_aorta.registry import Environment
from pytest_aorta.trials.events import FailureData
from pytest_aorta.trials.execution import FILES
from pytest_aorta.trials.fingerprint import fingerprint, recorded_parts, requested_parts
from pytest_aorta.trials.outcome import Observed, conclude, recorded_result, warnings_of
from pytest_aorta.trials.result import (
    Elastic,
    ExecutionEnv,
    Failure,
    Imposed,
    RankRecord,
    Request,
    ResultRecord,
    Seeds,
    SideBySide,
    TrialResult,
)
from pytest_aorta.trials.spec import TrialSpec


def build_record(
    spec: TrialSpec,
    seen: Observed,
    cell: PreparedCell | None = None,
    *,
    started_at: str,
    wall: float | None = None,
    artifacts: Mapping[str, str] = MappingProxyType({}),
    stacks: str | None = None,
    crash: str | None = None,
    imposed: Imposed = Imposed(),  # noqa: B008  (frozen)
    side_by_side: SideBySide | None = None,
    request: Request | None = None,
) -> TrialResult:
    """The complete record of a trial that is over.

    ``cell`` is ``None`` where that could not be prepared, ``wall`` (seconds) where no process was started; ``crash`` is
    what a process has written as it died of a signal. Without a ``request``, it is that of this process for a trial
    that was not started.
    """
    parts = {} if cell is None else cell.request(spec)
    status, failure = conclude(seen)
    if failure is not None and stacks is not None and failure["kind"] in ("timeout", "stall"):
        failure = {**failure, "stacks": stacks}
    if failure is not None and crash is not None and failure["kind"] == "signal":
        failure = {**failure, "traceback": crash}
    result = recorded_result(seen)
    details = list(result.get("failure_details", []))
    if "cleanup" in seen.failures and failure is not seen.failures["cleanup"]:
        details.append(seen.failures["cleanup"])
    result["failure_details"] = details + seen.notes
    env = seen.env or EnvSnapshot.unavailable("the trial's process took no snapshot").to_dict()
    mode = "single" if cell is None else cell.plan.mode
    return TrialResult(
        trial_id=spec.trial_id,
        workload=spec.workload.name,
        cell=spec.cell,
        trial_index=spec.trial_index,
        execution_env=execution_env(spec.environment, env),
        mitigations_applied=list(spec.mitigations),
        config={} if cell is None else cell.info.config,
        env=env,
        result=ResultRecord.model_validate(result),
        wall_clock_sec=wall,
        exit_status=status,
        failure=None if failure is None else Failure.model_validate(failure),
        warnings=warnings_of(seen),
        elastic=None if mode == "single" else _elastic(spec, seen, mode),
        seeds=None if seen.seeds is None or seen.ranks else Seeds.model_validate(seen.seeds),
        preloaded=seen.preloaded,
        not_preloaded=seen.not_preloaded,
        ranks=[RankRecord.model_validate(record) for record in seen.ranks],
        phases_sec=seen.phases_sec,
        started_at=started_at,
        host=socket.gethostname(),
        request_fingerprint=fingerprint(parts) if parts else None,
        fingerprint_parts=recorded_parts(parts or requested_parts(spec), seen.imported_later),
        request=request or request_of(spec, Inherited.now(origin=spec.origin)),
        imposed=imposed,
        side_by_side=side_by_side,
        artifacts=dict(artifacts),
    )


def execution_env(environment: Environment, env: Mapping[str, Any]) -> ExecutionEnv:
    """The environment of a trial, with what its snapshot says of it."""
    found = choose_engine(environment) if environment.enter else None
    digest = image_digest(environment.docker, found[0] if found else "docker") if environment.docker else None
    claims = check_claims(environment, env, digest)
    return ExecutionEnv(
        kind=environment.kind,
        name=environment.name,
        image=environment.docker,
        digest=digest,
        venv=environment.venv,
        rocm=environment.rocm,
        verified=overall(claims),
        claims=claims,
        entered_with=found[0] if found and env.get("runtime_context") else None,
        source_package=environment.source_package,
    )


def lost_record(spec: TrialSpec, lost: FailureData, artifacts: Mapping[str, str] = MappingProxyType({})) -> TrialResult:
    """The record of a trial that was not started, or whose process gave no record; ``lost`` is its failure."""
    return build_record(spec, Observed(lost=lost), started_at=utc_now(), artifacts=artifacts)


def _elastic(spec: TrialSpec, seen: Observed, launcher: str) -> Elastic:
    return Elastic.model_validate(
        {
            "launcher": launcher,
            "states": seen.states,
            "restarts": sum(attempt["reason"] == "failure" for attempt in seen.attempts),
            "attempts": seen.attempts,
            "options": spec.execution.elastic.to_plain(),
            "launcher_variables": seen.launcher_variables,
        }
    )


def logs_in(folder: Path) -> dict[str, str]:
    """The logs and files of a trial whose processes are gone, as ``artifacts`` of its record."""
    with contextlib.suppress(OSError):
        (folder / FILES).rmdir()  # only when it is empty
    kept = [*sorted(folder.glob("*.log")), *folder.glob(FILES)]
    return {path.stem: f"{folder.name}/{path.name}" for path in kept}
