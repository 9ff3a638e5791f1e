"""A run for each action of a recipe that has a workload: its plan, its results directory, its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.plugin.recipes.recipe_run import RecipeRun, recipe_run_of
from pytest_aorta.plugin.run import Run, run_of
from pytest_aorta.recipe_plans import selection_of
from pytest_aorta.triage.baselines import check_baseline
from pytest_aorta.triage.settings import MARGIN, TriageSettings
from pytest_aorta.trials.names import identifier
from pytest_aorta.trials.spec import TrialSpec
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.completions import trial_completion
from pytest_aorta.workflow.errors import RecipeError

#: Keys of the triage that recipes cannot have yet.
_NOT_YET = ("until_decided", "gate")

PARTS = pytest.StashKey[dict[tuple[Path, str], Run]]()


def part_of(config: pytest.Config, recipe: RecipeRun, action: Action) -> Run:
    """The run of an action with a workload, made when it is first asked for.

    Raises:
        RequestError: no plan can be made of it.
    """
    parts = config.stash.setdefault(PARTS, {})
    key = (recipe.recipe.file, action.name)
    if key not in parts:
        parts[key] = _new_part(config, recipe, action)
    return parts[key]


def _new_part(config: pytest.Config, recipe: RecipeRun, action: Action) -> Run:
    table = action.table
    for name in _NOT_YET:
        if getattr(table, name):
            raise RecipeError(
                f"action {action.name!r}: {name} is not possible in a recipe yet; it is as an option of pytest",
                recipe.recipe.file,
                action.line,
            )
    base = run_of(config)
    selection = replace(
        selection_of(action, recipe.recipe, base.selection),
        resume=True,
        triage=TriageSettings(table.baseline, MARGIN if table.margin is None else table.margin),
        until_decided=False,
        duration=None,
        gates=(),
        minimize=(),
        replays=(),
        report=None,
    )
    part = Run(config, selection, base.runner.store.stamp)
    part.registry = base.registry
    plan = part.plan
    part.trials_by_name = cache(lambda: {item_name(action, spec): spec for spec in plan.trials})

    def on_record(record: Mapping[str, Any]) -> None:
        completion = trial_completion(action.name, record)
        if completion is not None:
            recipe.add(completion)

    part.on_record = on_record
    if table.baseline is not None:
        cells = {spec.cell: spec.mitigations for spec in plan.trials}
        check_baseline(table.baseline, list(cells.items()), f"{recipe.recipe.file}:{action.line}: baseline")
    return part


def item_name(action: Action, spec: TrialSpec) -> str:
    """``matrix[local-none-0]``."""
    return f"{identifier(action.name)}[{spec.item_name.partition('[')[2]}"


def part_of_item(config: pytest.Config, nodeid: str) -> Run | None:
    """The run of the action whose trial an item is; also in a process that has not collected it.

    ``None`` where the item is none of a recipe's trials.
    """
    base, _, name = nodeid.rpartition("::")
    if not base.endswith(".toml"):
        return None
    file, beginning = config.rootpath / base, name.partition("[")[0]
    for (recipe_file, action_name), part in config.stash.get(PARTS, {}).items():
        if recipe_file == file and identifier(action_name) == beginning:
            return part
    recipe = recipe_run_of(config, file)
    for action in recipe.recipe.actions:
        if action.is_matrix and identifier(action.name) == beginning:
            return part_of(config, recipe, action)
    return None


def parts(config: pytest.Config) -> list[Run]:
    """All runs of actions in this process."""
    return list(config.stash.get(PARTS, {}).values())
