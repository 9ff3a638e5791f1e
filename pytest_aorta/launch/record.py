"""The complete record of a trial that is over."""

from __future__ import annotations

import contextlib
import operator
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_aorta.common.texts import utc_now
from pytest_aorta.launch.environment import Inherited, PreparedCell, choose_engine, interpreter
from pytest_aorta.probe.collect import EnvSnapshot
from pytest_aorta.probe.guard import printable
from pytest_aorta.probe.host import image_digest
from pytest_aorta.probe.variables import redacted_command_line, shown_value
from pytest_aorta.registry import Environment
from pytest_aorta.runtime.hosts import without_values
from pytest_aorta.trials.execution import FILES
from pytest_aorta.trials.losses import was_perhaps_ended
from pytest_aorta.trials.outcome import Observation, conclude, recorded_result, warnings_of
from pytest_aorta.trials.records import Failure
from pytest_aorta.trials.result import (
    Claim,
    Collected,
    Elastic,
    ExecutionEnv,
    Imposed,
    Request,
    RequestedEnvironment,
    RequestedWorkload,
    SideBySide,
    TrialResult,
)
from pytest_aorta.trials.spec import TrialSpec, fingerprint, recorded_parts, requested_parts
from pytest_aorta.trials.workload import to_plain

#: Every job of a batch system has one of these variables.
_BATCH_JOBS = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"}


def request_of(
    spec: TrialSpec, inherited: Inherited, *, seed: int | None = None, timeout: float | None = None
) -> Request:
    """The request for a trial, without the values of secrets."""
    workload, environment, execution = spec.workload, spec.environment, spec.execution
    requested = dict(vars(environment))
    del requested["env"]  # its variables are in the overlay
    for name in ("launcher", "engine_options", "beside"):
        line = " ".join(requested[name])
        redacted = redacted_command_line(line)
        requested[name] = list(requested[name]) if redacted == line else redacted.split(" ")
    overlay = dict(zip(map(printable, spec.overlay), starmap(shown_value, spec.overlay.items()), strict=True))
    ambient: dict[str, str | None] = {}
    for name in spec.all_watched:
        there = inherited.variables.get(name)
        ambient[printable(name)] = None if there is None else shown_value(name, there)
    resources, sys_path = spec.resources, []
    if environment.venv is None or environment.enter:
        own = os.path.join(sys.prefix, ""), os.path.join(sys.base_prefix, "")
        for path in inherited.sys_path:
            if not os.path.join(path, "").startswith(own):
                sys_path.append(path)
    return Request(
        workload=RequestedWorkload(name=workload.name, target=workload.target, source_package=workload.source_package),
        environment=RequestedEnvironment(**requested),
        environment_index=spec.environment_index,
        mitigation_index=spec.mitigation_index,
        overlay=overlay,
        ambient=ambient,
        config=to_plain(dict(spec.overrides)),
        steps=spec.steps,
        isolation=execution.isolation,
        launcher=execution.launcher,
        nproc=execution.nproc,
        elastic=to_plain(execution.elastic.given()),
        run_seed=execution.seed,
        seed=spec.given_seed if seed is None else seed,
        limits=spec.limits if timeout is None else replace(spec.limits, timeout=timeout),
        resources=replace(resources, hosts=tuple(map(without_values, resources.hosts))),
        order=spec.order,
        collect=list(spec.collect),
        interpreter=interpreter(environment),
        cwd=inherited.cwd,
        cwd_of_trial=execution.cwd,
        sys_path=sys_path,
    )


def check_claims(environment: Environment, env: Mapping[str, Any], digest: str | None = None) -> list[Claim]:
    """Check whether a trial ran in the image, venv and ROCm of its environment; one claim for each that is named."""
    image, venv, rocm = environment.docker, environment.venv, environment.rocm
    verdicts: dict[str, tuple[bool | None, str]] = {}
    if image is not None:
        verdicts[f"image {image}"] = _image(image, bool(environment.enter), env.get("runtime_context") or {}, digest)
    if venv is not None:
        prefix = (env.get("python") or {}).get("prefix")
        same = prefix == venv or (prefix and os.path.realpath(prefix) == os.path.realpath(os.path.expanduser(venv)))
        verdicts[f"venv {venv}"] = (bool(same), f"the interpreter's prefix is {'this' if same else prefix}")
        if prefix is None:
            verdicts[f"venv {venv}"] = None, "it is not known which interpreter ran the trial"
    if rocm is not None:
        verdicts[f"ROCm {rocm}"] = _rocm(rocm, env.get("torch") or {}, env.get("accelerator") or {})
    return [Claim(claim=claim, verified=value, found=text) for claim, (value, text) in verdicts.items()]


def overall(claims: Sequence[Claim]) -> bool | None:
    """False if any claim is false, true if all are true; ``None`` without claims, or if one is not known."""
    values = set(map(operator.attrgetter("verified"), claims))
    return False if False in values else None if not values or None in values else True


def warning_of(environment: Environment, claims: Sequence[Claim]) -> str | None:
    """A warning for the user if a claim is false."""
    wrong = "; ".join(f"{claim.claim}: {claim.found}" for claim in claims if claim.verified is False)
    name = f"{environment.name!r} ({environment.source_package})"
    return f"trials of the environment {name} do not run in it: {wrong}" if wrong else None


def _image(image: str, entered: bool, context: Mapping[str, Any], digest: str | None) -> tuple[bool | None, str]:
    if "container" not in context:
        return None, "it is not known whether the trial ran in a container"
    container = context["container"]
    if container is None:
        if entered:
            return None, "entered, but nothing that the trial sees shows a container"
        return False, "the trial ran in no container"
    there = f"a {container['kind']} container"
    shown, shown_id = container.get("image"), container.get("image_id")
    same: bool | None = None
    if digest is not None and shown_id is not None:
        same = digest.removeprefix("sha256:") == shown_id.removeprefix("sha256:")
    elif shown is not None:
        digests = [reference.partition("@")[2] for reference in (shown, image)]
        if all(digests) or not any(digests):
            same = digests[0] == digests[1] if any(digests) else _reference(shown) == _reference(image)
    elif entered:
        return True, f"entered, and the trial ran in {there}"
    else:
        return None, f"the trial ran in {there}, which does not show its image"
    return same, f"the trial ran in {there} of {'this image' if same else shown or shown_id}"


def _reference(image: str) -> str:
    if image.startswith(("/", ".")):
        return os.path.realpath(image)
    name = image.removeprefix("docker://")
    for default in ("docker.io/", "library/", "localhost/"):
        name = name.removeprefix(default)
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _rocm(rocm: str, torch: Mapping[str, Any], accelerator: Mapping[str, Any]) -> tuple[bool | None, str]:
    installed = accelerator.get("rocm") or {}
    if rocm.startswith(("/", "~")):
        path = installed.get("path")
        same = path is not None and os.path.realpath(os.path.expanduser(rocm)) == path
        return same, f"ROCm is in {path}" if path else "there is no ROCm"
    # The version of a wheel names its release; for another torch that was not imported, the target is not known.
    wheel = re.search(r"\+rocm([\d.]+)", torch.get("version") or "")
    versions = {
        "torch was built for HIP": torch.get("hip"),
        "torch was built for ROCm": wheel[1] if wheel and not torch.get("hip") else None,
        "installed is ROCm": installed.get("version"),
    }
    there = {what: version for what, version in versions.items() if version}
    text = " and ".join(f"{what} {version}" for what, version in there.items()) or "there is no ROCm"
    wanted = rocm.lower().removeprefix("rocm").lstrip("-v ").split(".")
    if any(version.partition("-")[0].split(".")[: len(wanted)] == wanted for version in there.values()):
        return True, text
    if "hip" in torch or wheel or ("rocm" in accelerator and not installed):
        return False, text
    return None, "it is not known what torch was built for"


def build_record(
    spec: TrialSpec,
    seen: Observation,
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
    collected: Mapping[str, Collected] = MappingProxyType({}),
) -> TrialResult:
    """The complete record of a trial that is over.

    ``cell`` is ``None`` if it could not be prepared, ``wall`` (seconds) if no process was started. ``crash``: what a
    process wrote as it died of a signal. Without a ``request``, the record has the request as of this process.
    """
    parts = {} if cell is None else cell.request(spec)
    status, failure = conclude(seen)
    if failure is not None and stacks is not None and failure.is_late:
        failure = replace(failure, stacks=stacks)
    if failure is not None and crash is not None and failure.kind == "signal":
        failure = replace(failure, traceback=crash)
    if failure is not None and was_perhaps_ended(status, failure) and not _BATCH_JOBS.isdisjoint(os.environ):
        failure = replace(failure, in_doubt=True)
    result, cleanup = recorded_result(seen), seen.failures.get("cleanup")
    other = [] if cleanup is None or cleanup is failure else [cleanup.known()]
    env = seen.env or EnvSnapshot.unavailable("the trial's process took no snapshot").to_dict()
    mode = "single" if cell is None else cell.plan.mode
    environment, engine, digest = spec.environment, None, None
    if environment.enter and (chosen := choose_engine(environment)):
        engine = chosen[0]
    if environment.docker:
        digest = image_digest(environment.docker, engine or "docker")
    claims = check_claims(environment, env, digest)
    return TrialResult(
        trial_id=spec.trial_id,
        workload=spec.workload.name,
        cell=spec.cell,
        trial_index=spec.trial_index,
        execution_env=ExecutionEnv(
            kind=environment.kind,
            name=environment.name,
            image=environment.docker,
            digest=digest,
            venv=environment.venv,
            rocm=environment.rocm,
            verified=overall(claims),
            claims=claims,
            entered_with=engine if env.get("runtime_context") else None,
            source_package=environment.source_package,
        ),
        mitigations_applied=list(spec.mitigations),
        config={} if cell is None else cell.info.config,
        env=env,
        result=replace(result, failure_details=[*result.failure_details, *other, *seen.notes]),
        wall_clock_sec=wall,
        exit_status=status,
        failure=failure,
        warnings=[*warnings_of(seen), *_of_neighbours(failure, side_by_side)],
        elastic=None
        if mode == "single" and not seen.attempts
        else Elastic(
            launcher="command" if mode == "single" else mode,
            states=seen.states,
            restarts=sum(attempt.reason == "failure" for attempt in seen.attempts),
            attempts=seen.attempts,
            options=vars(spec.execution.elastic),
            launcher_variables=seen.launcher_variables,
        ),
        # Ranks of a command have those of the command.
        seeds=None if any(rank.seeds is not None for rank in seen.ranks) else seen.seeds,
        zygote=seen.zygote,
        how_started=seen.how_started,
        preloaded=seen.preloaded,
        not_preloaded=seen.not_preloaded,
        imports_sec=seen.imports_sec,
        ranks=seen.ranks,
        phases_sec=seen.phases_sec,
        started_at=started_at,
        host=socket.gethostname(),
        request_fingerprint=fingerprint(parts) if parts else None,
        fingerprint_parts=recorded_parts(parts or requested_parts(spec), seen.imported_later, seen.modules),
        request=request or request_of(spec, Inherited.now(origin=spec.origin)),
        imposed=imposed,
        side_by_side=side_by_side,
        artifacts=dict(artifacts),
        collected=dict(collected),
    )


#: Of a port that another process listens on.
_PORT_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")


def _of_neighbours(failure: Failure | None, beside: SideBySide | None) -> list[str]:
    """Warn if a trial may have failed because of trials that run beside it."""
    if failure is None or beside is None or beside.slots * beside.workers < 2:
        return []
    if not _PORT_IN_USE.search(f"{failure.message} {failure.traceback or ''}"):
        return []
    return [
        "a port was in use, perhaps by a trial beside it: run one at a time (--aorta-slots 1), or give each trial a "
        "port of its own ({trial} in a command is the number of the trial)"
    ]


def lost_record(spec: TrialSpec, lost: Failure, artifacts: Mapping[str, str] = MappingProxyType({})) -> TrialResult:
    """The record, with the failure ``lost``, of a trial that was not started or whose process died without a record."""
    return build_record(spec, Observation(lost=lost), started_at=utc_now(), artifacts=artifacts)


def logs_in(folder: Path) -> dict[str, str]:
    """Logs and files of a trial whose processes are gone, as ``artifacts`` of its record."""
    with contextlib.suppress(OSError):
        (folder / FILES).rmdir()  # only when it is empty
    kept = [*sorted(folder.glob("*.log")), *folder.glob(FILES)]
    return {path.stem: f"{folder.name}/{path.name}" for path in kept}
