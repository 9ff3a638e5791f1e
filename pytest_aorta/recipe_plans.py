"""Actions of a recipe as selections of trials, and what they ask of each cell."""

from __future__ import annotations

from dataclasses import replace

from pytest_aorta.plan import PlanError, Selection, trials_of
from pytest_aorta.registry import Registry, RegistryError
from pytest_aorta.trials.conversion import identifier, to_plain
from pytest_aorta.trials.execution import elastic_options
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.cell_requests import CellRequest
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.requests import request_digest as request_digest
from pytest_aorta.workflow.values import Json


def selection_of(action: Action, recipe: Recipe, base: Selection) -> Selection:
    """What an action with a workload asks for; what it leaves open is as in ``base``.

    Raises:
        RecipeError: an option of the agent is not valid.
    """
    table = action.table
    try:
        elastic = elastic_options(table.distributed.elastic)
    except ValueError as error:
        raise RecipeError(f"action {action.name!r}, distributed.elastic: {error}", recipe.file, action.line) from None
    return replace(
        base,
        workloads=(table.workload or "",),
        trials=table.trials,
        environments=table.environments,
        mitigations=tuple(mitigation_set(names) for names in table.mitigations),
        extra_env=table.extra_env,
        steps=table.steps,
        config=table.config,
        collect=table.collect,
        results_dir=recipe.directories / action.name,
        execution=replace(
            base.execution,
            isolation=table.isolation,
            launcher=table.distributed.launcher,
            nproc=table.distributed.nproc,
            elastic=elastic,
            seed=table.seed,
        ),
        limits=replace(base.limits, timeout=table.timeout, stall_timeout=table.stall_timeout),
    )


def mitigation_set(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Names as the option has them: ``"a,b"`` is a set of two."""
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names


def cell_requests(recipe: Recipe, registry: Registry) -> dict[str, dict[str, CellRequest]]:
    """What is asked of each cell, by action and cell, of all actions with a workload. No workload is imported.

    Raises:
        RecipeError: an action asks for what is not there, or cannot be.
    """
    return {action.name: _requests_of(action, recipe, registry) for action in recipe.actions if action.is_matrix}


def _requests_of(action: Action, recipe: Recipe, registry: Registry) -> dict[str, CellRequest]:
    selection = replace(selection_of(action, recipe, Selection()), trials=1)
    try:
        entries = [registry.workload(name) for name in selection.workloads]
        return {spec.cell: _request_of(spec) for (spec,) in trials_of(entries, selection, registry)}
    except (PlanError, RegistryError) as error:
        raise RecipeError(f"action {action.name!r}: {error}", recipe.file, action.line) from None


def cell_value(spec: TrialSpec) -> dict[str, Json]:
    """What JSON pointers lead into, of a cell: what was asked for, and no defaults of the workload."""
    return {
        "workload": spec.workload.name,
        "environment": spec.environment.name,
        "mitigations": list(spec.mitigations),
        "config": to_plain(dict(spec.overrides)),
    }


def trial_value(spec: TrialSpec) -> dict[str, Json]:
    """The same of a trial."""
    return {**cell_value(spec), "trial": spec.trial_index}


def _request_of(spec: TrialSpec) -> CellRequest:
    value = cell_value(spec)
    return CellRequest(request_digest(spec), value, (identifier(spec.workload.name), identifier(spec.cell)))
