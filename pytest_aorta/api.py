"""Trials without pytest: ``run_trials(RunRequest(...))``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.launch.inprocess import InProcessTrial, check_here
from pytest_aorta.launch.make_engine import make_engine
from pytest_aorta.launch.nodes.addressing import part
from pytest_aorta.launch.resuming import kept_trial
from pytest_aorta.plan import Selection, make_plan
from pytest_aorta.registry import Registry
from pytest_aorta.runtime.hosts.specs import expand_specs
from pytest_aorta.trials.elastic_options import elastic_options
from pytest_aorta.trials.execution import Execution, Resources
from pytest_aorta.trials.limits import Limits
from pytest_aorta.workspace import history
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.leftovers import Leftovers
from pytest_aorta.workspace.resume import read_kept, retitle

if TYPE_CHECKING:
    from pytest_aorta.launch.submitted import RunningTrial
    from pytest_aorta.trials.result import TrialResult
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPlace


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
    engine, run, results = make_engine(selection, [plan]), history.stamp(), Path(request.results_dir)
    leftovers = Leftovers(results)

    kind, number = part(selection.execution.elastic, selection.resources.hosts)

    def retire(place: TrialPlace) -> None:
        history.retire(results, place, run, number, kind)

    check = check_here if execution.isolation == "none" else engine.checked

    def launch(spec: TrialSpec) -> RunningTrial:
        place = plan.place(spec)
        if spec.execution.isolation == "none":
            retire(place)
            return InProcessTrial(spec)
        return engine.launch(
            spec, place.folder_in(results, number or 0, kind), urgent=False, on_start=lambda: retire(place)
        )

    def write(running: RunningTrial, place: TrialPlace) -> None:
        file, record = place.file_in(results), running.finish()
        if running.resumed:
            retitle(file, record.trial_id)
        elif not (request.resume and read_kept(file)):
            if file.exists():  # of an earlier run: this trial could not even be started
                retire(place)
            write_json(file, record.to_dict())
        leftovers.remove(place.file)

    records = []
    try:
        check(plan.trials[0])
        # All of them first: each looks for what is there before any trial takes its place.
        found = [
            kept_trial(spec, plan.place(spec).file_in(results), check) if request.resume else None
            for spec in plan.trials
        ]
        for running in [it or launch(spec) for it, spec in zip(found, plan.trials, strict=True)]:
            try:
                for phase in ("setup", "run"):
                    running.wait(phase)
            except Exception:
                pass  # only without isolation; the record has it
            records.append(running.finish())
            if not number:
                write(running, plan.place(running.spec))
    finally:
        engine.close()
    return records
