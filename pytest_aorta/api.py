"""Trials without pytest: ``run_trials(RunRequest(...))``."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest_aorta.settings as valid
from pytest_aorta.plan import Selection, check_variables, hosts_of, make_plan
from pytest_aorta.registry import Registry
from pytest_aorta.settings import RequestError
from pytest_aorta.trial_runner import Runner, check_resources, check_results
from pytest_aorta.trials.execution import ElasticOptions, Execution, Limits, Resources, automatic_slots, elastic_options
from pytest_aorta.workspace.trial_store import KEPT_RECORDS

if TYPE_CHECKING:
    from pytest_aorta.trials.result import TrialResult


T = TypeVar("T")
Group = TypeVar("Group", Execution, Limits, Resources)


def _without_arguments(cls: type[T]) -> type[T]:
    init = cls.__init__

    @functools.wraps(init)
    def checked(self: T, *arguments: Any, **keywords: Any) -> None:
        __tracebackhide__ = True
        try:
            init(self, *arguments, **keywords)
        except RequestError as error:
            raise error.with_traceback(None) from None

    cls.__init__ = checked  # type: ignore[method-assign,assignment]
    return cls


@_without_arguments
@dataclass(frozen=True)
class RunRequest:
    """N trials of one cell. Names are resolved through the registry.

    Every field takes what its option takes: a value, or a text as on the command line (``memory="8G"``).

    Raises:
        RequestError: a field has a value that it cannot take; names field, value, and what would be valid.
    """

    workload: str
    trials: int
    environment: str = "local"
    mitigations: tuple[str, ...] = ("none",)
    extra_env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may be secrets
    steps: int | None = None
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    results_dir: Path = Path("results")
    resume: bool = False
    history: int = KEPT_RECORDS
    collect: tuple[str, ...] = ()
    registry_files: tuple[Path, ...] = ()
    execution: Execution = field(default_factory=Execution)
    limits: Limits = field(default_factory=Limits)
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        __tracebackhide__ = True  # pytest would show the variables
        for name, read in _readers(RunRequest).items():
            object.__setattr__(self, name, valid.taken(read, getattr(self, name), f"RunRequest.{name}"))
        object.__setattr__(self, "extra_env", _variables(self.extra_env))
        object.__setattr__(self, "execution", _group("execution", Execution, self.execution))
        object.__setattr__(self, "limits", _group("limits", Limits, self.limits))
        object.__setattr__(self, "resources", _group("resources", Resources, self.resources))


def _elastic(value: object) -> ElasticOptions:
    if not isinstance(value, ElasticOptions | Mapping):
        raise ValueError("ElasticOptions, or a mapping of their names to values")
    return elastic_options(vars(value) if isinstance(value, ElasticOptions) else value)


def _hosts(value: object) -> tuple[str, ...]:
    __tracebackhide__ = True  # a specification may set variables, which may be secrets
    for each in (texts := _several(value)):
        valid.taken(valid.name, each, "Resources.hosts")
    return hosts_of(texts, "Resources.hosts")


def _several(value: Any) -> Sequence[Any]:
    if isinstance(value, str | os.PathLike):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError("a name")
    return value


#: Fields that are no setting, or take other values than the setting's text.
_OWN_READERS: Mapping[str, valid.Reader] = {
    "allow_nonfinite": lambda value: tuple(map(valid.name, _several(value))),
    "collect": lambda value: () if value in ((), []) else valid.names(value),
    "config_overrides": valid.options,
    "elastic": _elastic,
    "hosts": _hosts,
    "own_cores": valid.switch,
    "registry_files": lambda value: tuple(map(valid.folder, _several(value))),
    "results_dir": valid.folder,
    "trials": valid.positive_int,
    "worker": valid.whole,
    "workers": valid.positive_int,
}


def _readers(kind: type[Any]) -> dict[str, valid.Reader]:
    found = {}
    for each in fields(kind):
        if each.name not in ("extra_env", "execution", "limits", "resources"):
            read = _OWN_READERS.get(each.name) or valid.BY_NAME[each.name.replace("_", "-")].parse
            found[each.name] = valid.optional(read) if each.default is None else read
    return found


def _group(field: str, kind: type[Group], given: object) -> Group:
    if not isinstance(given, kind):
        raise RequestError(f"RunRequest.{field}: {valid.quoted(given)} is not valid; expected {kind.__name__}(...)")
    changes = {
        name: valid.taken(read, getattr(given, name), f"{kind.__name__}.{name}")
        for name, read in _readers(kind).items()
    }
    if "slots" in changes:
        changes["slots"], own_cores = changes["slots"]
        changes["own_cores"] = changes["own_cores"] or own_cores
        changes["slots"] = changes["slots"] or automatic_slots(changes["devices"])
    return replace(given, **changes)


def _variables(given: object) -> Mapping[str, str]:
    __tracebackhide__ = True
    source = "RunRequest.extra_env"
    if not isinstance(given, str):
        check_variables(source, given)
        return given  # type: ignore[return-value]  # checked
    try:
        return valid.pairs(given)
    except ValueError as error:
        raise RequestError(f"{source}: {valid.shown_pairs(given)} is not valid; expected {error}") from None


def run_trials(request: RunRequest) -> list[TrialResult]:
    """Run all trials of a cell, write their files, and return their records in the order of the trials.

    A trial that fails, crashes or times out is a result. Of several ranks, only rank 0 writes. With ``resume``, a
    trial that has a result of this very request is not run again.

    Raises:
        RequestError: what prevents every trial, before any has started. Its subclasses say more: ``RegistryError`` (an
            unknown name), ``PlanError``, ``ConfigError`` (an option of the workload), ``LaunchModeError``,
            ``EngineUnusable`` (a host). An import that fails alike in all trials, when their files are written.
    """
    __tracebackhide__ = True  # pytest would show the variables
    given = dict(vars(request))
    selection = Selection(
        workloads=(given.pop("workload"),),
        environments=(given.pop("environment"),),
        mitigations=(given.pop("mitigations"),),
        config=given.pop("config_overrides"),
        **given,
    )
    plan = make_plan(selection, Registry.load(selection.registry_files))
    check_resources(selection, _spelled)
    runner = Runner(selection, request.results_dir)
    runner.add_plan(plan)
    planned = [(spec, plan.paths(spec)) for spec in plan.trials]
    records = []
    try:
        runner.check(plan.trials[0])
        check_results(selection, request.results_dir, f"RunRequest.results_dir={str(request.results_dir)!r}")
        runner.store.sort_into_cells(plan.flat_cells)
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
    runner.store.prune(request.history)
    failures = [record.failure for record in records]
    causes = {it and it.phase == "import" and it.kind == "exception" and it.message for it in failures}
    if len(causes) == 1 and isinstance(cause := causes.pop(), str):
        raise RequestError(f"workload {request.workload!r} cannot be imported: {cause}")
    return records


def _spelled(name: str, value: object) -> str:
    return f"{name}={value}"
