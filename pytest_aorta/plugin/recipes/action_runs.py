"""A run for each action of a recipe that has a workload: its plan, its results directory, its engine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.plan import Plan, PlanError
from pytest_aorta.plugin.recipes.recipe_run import RecipeRun, recipe_run_of, shared_folder
from pytest_aorta.plugin.run import Run, run_of
from pytest_aorta.plugin.xdist_roles import test_run_everywhere
from pytest_aorta.recipe_plans import selection_of
from pytest_aorta.registry import RegistryError
from pytest_aorta.triage.gates import Gate, check_gates, parse_gate
from pytest_aorta.triage.verdicts import TriageSettings, check_baseline, is_named
from pytest_aorta.trials.names import identifier
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.completions import trial_completion
from pytest_aorta.workflow.decided import asked_of
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.requests import request_digest
from pytest_aorta.workspace.index.decided import DecidedCells, note_decided

ACTION_RUNS = pytest.StashKey[dict[tuple[Path, str], Run]]()


def action_run(config: pytest.Config, recipe: RecipeRun, action: Action) -> Run:
    """The run of an action with a workload, made when it is first asked for.

    Raises:
        RequestError: no plan can be made of it.
    """
    runs = config.stash.setdefault(ACTION_RUNS, {})
    key = (recipe.recipe.file, action.name)
    if key not in runs:
        runs[key] = _new_run(config, recipe, action)
    return runs[key]


def _new_run(config: pytest.Config, recipe: RecipeRun, action: Action) -> Run:
    table = action.table
    base = run_of(config)
    given = base.selection
    until_decided = table.until_decided or given.until_decided
    margin = given.triage.margin if table.margin is None else table.margin
    selection = replace(
        selection_of(action, recipe.recipe, given),
        resume=True,
        triage=TriageSettings(table.baseline, margin, sequential=until_decided or given.duration is not None),
        until_decided=until_decided,
        duration=None,  # the time is that of the whole run
        gates=(),
        minimize=(),
        replays=(),
        report=None,
    )
    run = Run(config, selection, base.runner.store.stamp, _stopping_folder(config, recipe, action))
    run.registry = base.registry
    run.action = identifier(action.name)
    run.expects_failures = table.expect == "fail"
    try:
        plan = run.plan
    except (PlanError, RegistryError) as error:
        raise RecipeError(f"action {action.name!r}: {error}", recipe.recipe.file, action.line) from None
    run.recipe_trials = cache(lambda: {run.shown_name(spec): spec for spec in plan.trials})

    def on_record(record: Mapping[str, Any]) -> None:
        completion = trial_completion(action.name, record)
        if completion is not None:
            recipe.add(completion)

    def on_decided(cells: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):  # as the journal: what cannot be written is found out again
            note_decided(recipe.recipe.index, action.name, DecidedCells(asked_of_plan(action, plan), cells))

    run.on_record, run.on_decided = on_record, on_decided
    if table.baseline is None and not table.gate and not given.gates:
        return run
    cells = [(spec.cell, spec.mitigations) for spec in _first_of_cells(plan)]
    place = f"{recipe.recipe.file}:{action.line}"
    if table.baseline is not None:
        check_baseline(table.baseline, cells, f"{place}: baseline")
    gates = [_gate(text, place) for text in table.gate]
    check_gates(gates, cells, f"{place}: gate")
    others = [gate for gate in given.gates if gate.cell is None or any(is_named(gate.cell, *cell) for cell in cells)]
    run.selection = replace(selection, gates=(*gates, *others))
    return run


def asked_of_plan(action: Action, plan: Plan) -> str:
    """What decisions on the cells of an action are about."""
    return asked_of(action, {spec.cell: request_digest(spec) for spec in _first_of_cells(plan)})


def _first_of_cells(plan: Plan) -> Iterable[TrialSpec]:
    found: dict[str, TrialSpec] = {}
    for spec in plan.trials:
        found.setdefault(spec.cell, spec)
    return found.values()


def _gate(text: str, place: str) -> Gate:
    try:
        return parse_gate(text)
    except ValueError as error:
        raise RecipeError(f"{place}: gate {text!r}: expected {error}") from None


def _stopping_folder(config: pytest.Config, recipe: RecipeRun, action: Action) -> Callable[[], Path] | None:
    """Where xdist's workers and their controller find decisions on an action; ``None`` in a single process."""
    run = test_run_everywhere(config)
    if run is None:
        return None
    name = hashlib.sha256(f"{recipe.recipe.file}:{action.name}".encode()).hexdigest()[:16]
    return partial(shared_folder, f"{run}-{name}")


def action_run_of_item(config: pytest.Config, nodeid: str) -> Run | None:
    """The run of the action whose trial an item is; also in a process that has not collected it.

    ``None`` where the item is none of a recipe's trials.
    """
    base, _, name = nodeid.rpartition("::")
    if not base.endswith(".toml"):
        return None
    file, beginning = config.rootpath / base, name.partition("[")[0]
    for (recipe_file, action_name), run in config.stash.get(ACTION_RUNS, {}).items():
        if recipe_file == file and identifier(action_name) == beginning:
            return run
    recipe = recipe_run_of(config, file)
    for action in recipe.recipe.actions:
        if action.is_matrix and identifier(action.name) == beginning:
            return action_run(config, recipe, action)
    return None


def action_runs(config: pytest.Config) -> list[Run]:
    """All runs of actions in this process."""
    return list(config.stash.get(ACTION_RUNS, {}).values())
