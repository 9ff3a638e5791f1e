"""What a job has left behind when it has ended: completions for the index, and records of trials that it took along."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.clusters.jobs import Job, TaskState, command_statuses, started_units
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.cell_requests import Requests
from pytest_aorta.workflow.commands import takes_all
from pytest_aorta.workflow.unit_folders import results_folder, unit_folder
from pytest_aorta.workspace.index.completions import CommandCompletion, TrialCompletion
from pytest_aorta.workspace.index.journal import Journal

if TYPE_CHECKING:
    from pytest_aorta.plan import Plan


class EndedJobs:
    """Of one recipe.

    Args:
        recipe: with the actions.
        registry_files: with names that are not built in.
    """

    def __init__(self, recipe: Recipe, registry_files: tuple[Path, ...] = ()) -> None:
        self._recipe = recipe
        self._files = registry_files
        self._plans: dict[str, Plan] = {}

    def settle(self, job: Job, task: int, state: TaskState) -> None:
        """Note what has become of a task that has ended.

        Raises:
            RequestError: the recipe cannot be planned now.
            OSError: a record cannot be written.
        """
        action = self._action(job)
        if action is None:
            return
        if action.is_matrix:
            self._settle_trials(action, job, task, state)
        else:
            with Journal(self._recipe.index / "staged") as journal:
                for completion in self._commands(action, job, task):
                    journal.add(completion)

    def note_commands(self, job: Job, task: int) -> None:
        """The same of a job of commands that is about to end, by itself."""
        self.settle(job, task, TaskState(state="COMPLETED"))

    def _action(self, job: Job) -> Action | None:
        """The action of a job that has its units: several may share a name."""
        units = set(job.plan.tasks[0].units)
        found = self._recipe.by_name.get(job.plan.action, ())
        return next(iter(found), None) if units else None

    def _commands(self, action: Action, job: Job, task: int) -> list[CommandCompletion]:
        if not action.table.products:
            return []
        statuses, units = command_statuses(job, task), job.plan.tasks[task].units
        found = []
        for number, unit in enumerate(units):
            folder = unit_folder(action, unit, self._recipe, self._requests)
            has_all = all((folder / name).exists() for name in action.table.products)
            status = statuses.get(0 if takes_all(action.table.command or "") else number)
            found.append(CommandCompletion(action.name, unit, "completed" if has_all and not status else "failed"))
        return found

    def _settle_trials(self, action: Action, job: Job, task: int, state: TaskState) -> None:
        """A trial that was started and has left no file gets one that says how its job has ended."""
        from pytest_aorta.launch.record import logs_in, lost_record
        from pytest_aorta.workflow.requests import request_digest
        from pytest_aorta.workspace.history import stamp
        from pytest_aorta.workspace.trial_store import TrialStore

        started = {json.loads(line) for line in started_units(job, task)}
        if not started:
            return
        plan, results = self._plan(action), results_folder(action, self._recipe)
        store = TrialStore(results, stamp())
        with Journal(self._recipe.index / "staged") as journal:
            for spec in plan.trials:
                paths = plan.paths(spec)
                if f"{spec.cell}/{spec.trial_index}" not in started or paths.file_in(results).exists():
                    continue
                why = f"job {job.identity(task)} ended: {described(state)}"
                logs = logs_in(paths.folder_in(results))
                record = lost_record(spec, {"phase": "launch", "kind": "signal", "message": why}, logs)
                store.write(paths, record.to_dict())
                status, digest = record.exit_status, request_digest(spec)
                journal.add(TrialCompletion(action.name, spec.cell, spec.trial_index, status, digest))

    def _plan(self, action: Action) -> Plan:
        from pytest_aorta.plan import Selection, make_plan
        from pytest_aorta.recipe_plans import selection_of
        from pytest_aorta.registry import Registry

        if action.name not in self._plans:
            selection = selection_of(action, self._recipe, Selection(registry_files=self._files))
            self._plans[action.name] = make_plan(selection, Registry.load(self._files))
        return self._plans[action.name]

    @cached_property
    def _requests(self) -> Requests:
        from pytest_aorta.recipe_plans import cell_requests
        from pytest_aorta.registry import Registry

        return cell_requests(self._recipe, Registry.load(self._files))


def described(state: TaskState) -> str:
    """``TIMEOUT``, ``FAILED (NonZeroExitCode)``."""
    return f"{state.state} ({state.reason})" if state.reason else state.state
