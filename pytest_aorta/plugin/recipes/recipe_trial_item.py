"""The pytest item of a trial of a recipe: with what it follows, and with what is expected of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.texts import printable
from pytest_aorta.plugin.failures import TrialFailed
from pytest_aorta.plugin.recipes.action_runs import action_run, asked_of_plan
from pytest_aorta.plugin.recipes.matrix_units import unit_of
from pytest_aorta.plugin.run import PAYLOAD
from pytest_aorta.plugin.stopping import NotNeeded, cell_of
from pytest_aorta.plugin.trial_item import TrialItem, item_of
from pytest_aorta.workflow.requests import recorded_digest, request_digest
from pytest_aorta.workspace.index.decided import read_decided

if TYPE_CHECKING:
    from pytest_aorta.plugin.recipes.recipe_run import RecipeRun, TrialState
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workflow.actions import Action

#: Statuses of trials that have failed, which an action may expect.
_FAILED = ("workload_failed", "timeout")


class RecipeTrialItem(TrialItem):
    """A trial of an action."""

    action_run: Run
    recipe: RecipeRun
    action: Action
    reproduced: bool

    @property
    def trial_run(self) -> Run:
        """The run of the action."""
        return self.action_run

    def setup(self) -> None:
        """As of any trial, when all that the action follows is complete.

        Raises:
            NotNeeded: it is not.
        """
        self.reproduced = False
        obstacle = self.recipe.obstacle(self.action, unit_of(self.spec))
        if obstacle is not None:
            raise NotNeeded(printable(obstacle))
        unit = unit_of(self.spec)
        if self.recipe.trial_states[self.action.name](unit) == "open":
            too_many = self.recipe.started.has_too_many(self.action.name, unit)
            if too_many is not None:
                raise NotNeeded(printable(too_many))
        self.recipe.started.note(unit)
        super().setup()

    def runtest(self) -> None:
        """Wait for the end of ``run()``, and hold it against what is expected.

        Raises:
            TrialFailed: the trial has failed, or was expected to.
        """
        if self.running is not None and self.running.resumed:
            self.user_properties.append(("aorta_state", "kept"))
        if not self.reproduced:
            super().runtest()
        if self.action.table.expect == "fail" and not self.reproduced:
            running = self.running
            if running is not None and running.finish().exit_status == "ok":
                raise TrialFailed('the trial is ok, and expected to fail (expect = "fail")')
        if self.reproduced:
            self.user_properties.append(("aorta_state", "reproduced"))

    def reportinfo(self) -> tuple[Path, int, str]:
        """The recipe, the line of the action, and the name."""
        return self.path, self.action.line - 1, self.name

    def _wait(self, phase: str) -> None:
        try:
            super()._wait(phase)
        except TrialFailed:
            if self.action.table.expect != "fail" or self.stash[PAYLOAD].exit_status not in _FAILED:
                raise
            self.reproduced = True


def trial_items(parent: pytest.Collector, recipe: RecipeRun, action: Action) -> Iterator[RecipeTrialItem]:
    """The trials of an action, in the order of its plan.

    Raises:
        RequestError: no plan can be made.
    """
    run = action_run(parent.config, recipe, action)
    recipe.trial_states[action.name] = _TrialStates(run, action, recipe.recipe.index)
    sibling: RecipeTrialItem | None = None
    for spec in run.plan.trials:
        name = run.shown_name(spec)
        sibling = item_of(RecipeTrialItem, parent, name, spec, run.plan.paths, sibling)
        sibling.action_run, sibling.recipe, sibling.action, sibling.reproduced = run, recipe, action, False
        sibling.extra_keyword_matches.add(action.name)
        recipe.declare(action.name, [unit_of(spec)], sibling.nodeid)
        yield sibling


class _TrialStates:
    """What is on disk of the trials of an action."""

    def __init__(self, run: Run, action: Action, index: Path) -> None:
        self._run, self._action, self._index = run, action, index
        self._results = run.results
        self._plan = run.plan
        self._digests: dict[str, str] = {}
        self._expected = ("ok",) if action.table.expect == "pass" else _FAILED

    @cached_property
    def _trials(self) -> dict[str, TrialSpec]:
        return {unit_of(spec): spec for spec in self._plan.trials}

    def __call__(self, unit: str) -> TrialState:
        """Of one of them."""
        spec = self._trials[unit]
        try:
            file = self._plan.paths(spec).file_in(self._results)
            record: dict[str, Any] = json.loads(file.read_bytes())
            status, request = record["exit_status"], recorded_digest(record)
        except (OSError, ValueError, TypeError, KeyError):
            return self._without_record(spec)
        if record.get("cell") != spec.cell or request != self._digests.setdefault(spec.cell, request_digest(spec)):
            return self._without_record(spec)
        if status in self._expected:
            return "completed"
        return "failed" if status in ("ok", *_FAILED) else "without_result"

    def _without_record(self, spec: TrialSpec) -> TrialState:
        is_decided = spec.cell in self._decided_before or self._run.stopping.decided.reason(cell_of(spec)) is not None
        return "not_needed" if is_decided else "open"

    @cached_property
    def _decided_before(self) -> Collection[str]:
        """The cells that an earlier run has decided, of the same request."""
        found = read_decided(self._index).get(self._action.name)
        return found.cells if found is not None and found.asked == asked_of_plan(self._action, self._run.plan) else ()
