"""Trials without pytest: ``run_trials(RunRequest(...))``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.plan import Selection, make_plan
from pytest_aorta.registry import Registry
from pytest_aorta.runtime.hosts.specs import expand_specs
from pytest_aorta.trial_runner import TrialRunner
from pytest_aorta.trials.elastic_options import elastic_options
from pytest_aorta.trials.execution import Execution, Resources
from pytest_aorta.trials.limits import Limits

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult


@dataclass(frozen=True)
class RunRequest:
    """N trials of one cell. Names are resolved through the registry."""

    workload: str
    trials: int
    environment: str = "local"
    mitigations: tuple[str, ...] = ("none",)
    extra_env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may be secrets
    steps: int | None = None
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    results_dir: Path = Path("results")
    resume: bool = False
    collect: tuple[str, ...] = ()
    registry_files: tuple[Path, ...] = ()
    execution: Execution = field(default_factory=Execution)
    limits: Limits = field(default_factory=Limits)
    resources: Resources = field(default_factory=Resources)


def run_trials(request: RunRequest) -> list[TrialResult]:
    """Run all trials of a cell, write their files, and return their records in the order of the trials.

    A trial that fails, crashes or times out is a result. Of several ranks, only rank 0 writes. With ``resume``, a
    trial that has a result of this very request is not run again.

    Raises:
        RegistryError: an unknown name.
        PlanError, ConfigError, LaunchModeError, EngineUnusable: what prevents every trial.
        ValueError: an option of the elastic agent has no valid value, or ``hosts`` holds what names no host.
    """
    execution, resources = request.execution, request.resources
    selection = Selection(
        workloads=(request.workload,),
        trials=request.trials,
        environments=(request.environment,),
        mitigations=(tuple(request.mitigations),),
        extra_env=request.extra_env,
        steps=request.steps,
        config=request.config_overrides,
        collect=request.collect,
        results_dir=request.results_dir,
        resume=request.resume,
        registry_files=request.registry_files,
        execution=replace(execution, elastic=elastic_options(execution.elastic.to_plain())),
        limits=request.limits,
        resources=replace(resources, hosts=tuple(expand_specs(resources.hosts)) if resources.hosts else ()),
    )
    plan = make_plan(selection, Registry.load(selection.registry_files))
    runner = TrialRunner(selection, Path(request.results_dir))
    runner.add_plan(plan)
    planned = [(spec, plan.paths(spec)) for spec in plan.trials]
    records = []
    try:
        runner.check(plan.trials[0])
        # All are looked for before the first one starts: to compare requests takes a slot, which trials would occupy.
        found = [runner.find(spec, paths) for spec, paths in planned]
        started = [
            earlier or runner.start(spec, paths, urgent=False)
            for earlier, (spec, paths) in zip(found, planned, strict=True)
        ]
        for trial, (_, paths) in zip(started, planned, strict=True):
            try:
                for phase in ("setup", "run"):
                    trial.wait(phase)
            except (Exception, SystemExit):
                pass  # only without isolation; the record has it
            records.append(trial.finish())
            if runner.store.is_writer:
                runner.store.write(paths, records[-1].to_dict(), resumed=trial.resumed)
            for text in trial.take_warnings():
                warnings.warn(text, stacklevel=2)
    finally:
        runner.close()
    return records
