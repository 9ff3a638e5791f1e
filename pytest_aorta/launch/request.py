"""The ``request`` section of a record: what a trial was asked to be, so that it can be run again."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pytest_aorta.launch.environment import Inherited, interpreter
from pytest_aorta.probe.guard import printable
from pytest_aorta.probe.variables import redacted_command_line, shown_value
from pytest_aorta.registry import Environment
from pytest_aorta.runtime.host_specs import without_values
from pytest_aorta.trials.conversion import to_plain
from pytest_aorta.trials.execution import DEFAULTS, ElasticOptions, Resources
from pytest_aorta.trials.result import Request, RequestedEnvironment, RequestedWorkload
from pytest_aorta.trials.spec import TrialSpec


def request_of(
    spec: TrialSpec, inherited: Inherited, *, seed: int | None = None, timeout: float | None = None
) -> Request:
    """The request for a trial, without the values of secrets.

    Args:
        spec: the trial.
        inherited: what it has of the process that asks for it.
        seed: that it was given, where the spec has none.
        timeout: deadline in seconds that overrides the spec's.
    """
    workload, environment, execution = spec.workload, spec.environment, spec.execution
    return Request(
        workload=RequestedWorkload(name=workload.name, target=workload.target, source_package=workload.source_package),
        environment=_requested(environment),
        environment_index=spec.environment_index,
        mitigation_index=spec.mitigation_index,
        overlay={printable(name): shown_value(name, value) for name, value in spec.overlay.items()},
        ambient={printable(name): _ambient(name, inherited) for name in spec.all_watched},
        config=to_plain(dict(spec.overrides)),
        steps=spec.steps,
        isolation=execution.isolation,
        launcher=execution.launcher,
        nproc=execution.nproc,
        elastic=_changed(execution.elastic),
        run_seed=execution.seed,
        seed=spec.given_seed if seed is None else seed,
        limits=spec.limits if timeout is None else replace(spec.limits, timeout=timeout),
        resources=_shown(spec.resources),
        collect=list(spec.collect),
        interpreter=interpreter(environment),
        cwd=inherited.cwd,
        sys_path=[] if environment.venv is not None and not environment.enter else _added(inherited.sys_path),
    )


def _requested(environment: Environment) -> RequestedEnvironment:
    fields = {name: getattr(environment, name) for name in RequestedEnvironment.model_fields}
    words = {name: _without_secrets(fields[name]) for name in ("launcher", "engine_options")}
    return RequestedEnvironment(**{**fields, **words})


def _without_secrets(words: tuple[str, ...]) -> list[str]:
    line = " ".join(words)
    redacted = redacted_command_line(line)
    return list(words) if redacted == line else redacted.split(" ")


def _ambient(name: str, inherited: Inherited) -> str | None:
    value = inherited.variables.get(name)
    return None if value is None else shown_value(name, value)


def _changed(elastic: ElasticOptions) -> dict[str, object]:
    if elastic == DEFAULTS:
        return {}
    defaults = DEFAULTS.to_plain()
    return {name: to_plain(value) for name, value in elastic.to_plain().items() if value != defaults[name]}


def _shown(resources: Resources) -> Resources:
    return replace(resources, hosts=tuple(map(without_values, resources.hosts))) if resources.hosts else resources


def _added(sys_path: tuple[str, ...]) -> list[str]:
    """Folders beyond those of the interpreter itself, which another one has elsewhere."""
    return list(_beyond(sys_path, (sys.prefix, sys.base_prefix)))


@lru_cache(maxsize=8)
def _beyond(sys_path: tuple[str, ...], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    own = set(map(Path, prefixes))
    return tuple(path for path in sys_path if own.isdisjoint([Path(path), *Path(path).parents]))
