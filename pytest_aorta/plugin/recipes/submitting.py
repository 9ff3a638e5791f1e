"""The items of recipes as jobs: which of them, in which groups, after which question."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_aorta.clusters.configuration import Configuration
from pytest_aorta.clusters.jobs import JOBS, read_jobs, submitted_units
from pytest_aorta.clusters.reconciliation import reconcile
from pytest_aorta.clusters.slurm import LostAnswer
from pytest_aorta.clusters.submission import (
    PlannedJob,
    Target,
    command_lines,
    interrupts_noted,
    plan_jobs,
    pytest_line,
    submit,
)
from pytest_aorta.common.terminal_text import printable
from pytest_aorta.ended_jobs import EndedJobs
from pytest_aorta.plugin.compat import without_capture
from pytest_aorta.plugin.recipes.command_item import CommandItem
from pytest_aorta.plugin.recipes.matrix_units import MatrixUnits, unit_of
from pytest_aorta.plugin.recipes.recipe_run import RecipeRun
from pytest_aorta.plugin.recipes.recipe_trial_item import RecipeTrialItem
from pytest_aorta.plugin.run import run_of
from pytest_aorta.settings import BY_NAME, RequestError
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.command_units import Units
from pytest_aorta.workflow.commands import shell_commands
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.groups import check_whole, grouped
from pytest_aorta.workflow.resources import Cost
from pytest_aorta.workspace.atomic import locked

#: Options of ours that a job needs as this pytest has them; all else is in the recipe.
_PASSED_ON = ("registry-file", "slots", "devices", "preload", "grace", "memory", "log-limit", "history")


@dataclass
class _SelectedAction:
    """An action with the units that were selected.

    Attributes:
        run: of the recipe.
        action: of it.
        units: all that it has, also those that were not selected.
        items: by unit.
        counts: units by what becomes of them.
        jobs: of those that may run.
    """

    run: RecipeRun
    action: Action
    units: Units
    items: dict[str, pytest.Item] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    jobs: list[PlannedJob] = field(default_factory=list)


class Submission:
    """Of one pytest run.

    Args:
        session: with the items.
        cluster: name; ``None`` for the one that this host is part of.
        limit: of the number of jobs.

    """

    def __init__(self, session: pytest.Session, cluster: str | None, limit: int | None) -> None:
        self._session = session
        self._config = session.config
        self._cluster = cluster
        self._limit = limit
        self._terminal: pytest.TerminalReporter = self._config.pluginmanager.getplugin("terminalreporter")

    def run(self, *, is_dry: bool, sure: bool) -> None:
        """Submit, or with ``is_dry`` show the scripts; ``sure``: without a question.

        Raises:
            pytest.UsageError: what was selected cannot be submitted, or the scheduler refuses it.
            KeyboardInterrupt: it was interrupted; what was submitted by then is recorded.
        """
        try:
            actions = self._actions()
            for run in {id(selected.run): selected.run for selected in actions}.values():
                own = [selected for selected in actions if selected.run is run]
                folder = run.recipe.index / JOBS
                if not is_dry:
                    folder.mkdir(parents=True, exist_ok=True)
                with locked(folder):  # one submission at a time
                    self._run_recipe(run, own, is_dry, sure)
        except (RequestError, OSError) as error:
            raise pytest.UsageError(printable(str(error))) from None

    def _run_recipe(self, run: RecipeRun, actions: Sequence[_SelectedAction], is_dry: bool, sure: bool) -> None:
        configuration = Configuration.of_project(run.recipe.root)
        cluster = configuration.cluster(self._cluster)
        target = Target(run.recipe, cluster, configuration.launchers_on(cluster.name))
        submitted: Mapping[str, Mapping[str, str]]
        if is_dry:
            submitted = submitted_units(read_jobs(run.recipe.index, only_open=True))
        else:
            ended = EndedJobs(run.recipe, tuple(run_of(self._config).selection.registry_files))
            known = reconcile(run.recipe.index, run.recipe.root, ended.settle, is_submitting=True)
            for problem in known.problems:
                self._say(f"warning: {problem}", yellow=True)
            submitted = submitted_units(known.jobs)
        left = self._limit
        for selected in actions:
            groups = self._groups(selected, submitted.get(selected.action.name, {}))
            selected.jobs = [*self._planned(target, selected, groups[: len(groups) if left is None else left])]
            count = _tasks(selected.jobs)
            if left is not None:
                selected.counts["left for another time"] += sum(map(len, groups[left:]))
                left -= count
        self._report(target, actions)
        jobs = [job for selected in actions for job in selected.jobs]
        if is_dry:
            self._show(jobs)
        elif jobs and (sure or self._is_confirmed(target, jobs)):
            self._submit(target, actions)

    def _actions(self) -> list[_SelectedAction]:
        """The selected items by recipe and action.

        Raises:
            RecipeError: an item is of no recipe.
        """
        found: dict[tuple[Path, str, int], _SelectedAction] = {}
        for item in self._session.items:
            if isinstance(item, RecipeTrialItem):
                key = (item.recipe.recipe.file, item.action.name, item.action.line)
                if key not in found:
                    units: Units = MatrixUnits(item.action, item.action_run.plan, "trial")
                    found[key] = _SelectedAction(item.recipe, item.action, units)
                found[key].items[unit_of(item.spec)] = item
            elif isinstance(item, CommandItem):
                key = (item.run.recipe.file, item.unit.action.name, item.unit.action.line)
                found.setdefault(key, _SelectedAction(item.run, item.unit.action, item.run.units_of(item.unit.action)))
                found[key].items.update(dict.fromkeys(item.unit.units, item))
            else:
                raise RecipeError(
                    f"--aorta-submit: {item.nodeid} is of no recipe; only items of aorta.toml and *.aorta.toml can be "
                    "submitted"
                )
        return list(found.values())

    def _groups(self, selected: _SelectedAction, submitted: Mapping[str, str]) -> list[list[str]]:
        """The units that may run and that no scheduler has, in the groups of their jobs."""
        run, action, eligible = selected.run, selected.action, []
        for unit in selected.items:
            if unit in submitted:
                selected.counts["submitted already"] += 1
            elif action.is_matrix and (state := run.trial_states[action.name](unit)) in ("completed", "failed"):
                selected.counts[state] += 1
            elif not action.is_matrix and run.is_complete(action, unit):
                selected.counts["completed"] += 1
            elif run.obstacle(action, unit) is not None:
                selected.counts["waiting"] += 1
            else:
                eligible.append(unit)
        group = action.table.group
        groups = grouped(group, eligible, selected.units.value_of)
        check_whole(group, action.name, groups, selected.units.names, selected.units.value_of)
        return groups

    def _planned(
        self, target: Target, selected: _SelectedAction, groups: Sequence[Sequence[str]]
    ) -> Iterator[PlannedJob]:
        action, recipe = selected.action, selected.run.recipe
        start = self._config.invocation_params.dir

        def commands(units: Sequence[str], folder: Path, task: int) -> list[str]:
            if action.is_matrix:
                arguments = [*self._arguments(), "-o", f"cache_dir={folder}/cache-{task}"]
                return [pytest_line(action, start, arguments, folder / f"items-{task}.txt")]
            paths = [selected.units.path_of(unit) for unit in units]
            values = [selected.units.value_of(unit) for unit in units]
            lines = shell_commands(action.table.command or "", paths, values, recipe.workspace.path)
            return command_lines(target, action, lines, len(units))

        def files(units: Sequence[str], task: int) -> dict[str, str]:
            if not action.is_matrix:
                return {}
            file = f"./{os.path.relpath(recipe.file, start)}"
            if not file.isprintable():
                raise RecipeError(f"the path of the recipe, {file!r}, cannot be given to a job; rename it")
            return {f"items-{task}.txt": "".join(f"{file}::{selected.items[unit].name}\n" for unit in units)}

        yield from plan_jobs(target, action, groups, commands, files)

    def _arguments(self) -> Iterator[str]:
        """What pytest is given in a job beside its items."""
        yield "--color=no"
        option = self._config.option
        if option.inifilename:
            yield from ("-c", str(Path(option.inifilename).absolute()))
        if option.rootdir:
            yield f"--rootdir={Path(option.rootdir).absolute()}"
        for each in map(BY_NAME.__getitem__, _PASSED_ON):
            given = getattr(option, each.ini, None)
            for value in given if isinstance(given, list) else [] if given is None else [given]:
                yield f"{each.flag}={value}"
            yield from (f"-o{text}" for text in option.override_ini or () if text.startswith(f"{each.ini}="))

    def _report(self, target: Target, actions: Sequence[_SelectedAction]) -> None:
        """A line for each action."""
        for selected in actions:
            jobs, action = _tasks(selected.jobs), selected.action
            units = sum(len(task.units) for job in selected.jobs for task in job.plan.tasks)
            cost = sum((job.cost for job in selected.jobs), Cost())
            new = [f"{_counted(jobs, 'job')} ({units} {_units(action, units)}) on {target.cluster.name}, up to {cost}"]
            others = [f"{count} {what}" for what, count in selected.counts.items() if count]
            self._say(f"{action.name}: {', '.join([*(new if jobs else ['no job']), *others])}")
            for warning in dict.fromkeys(text for job in selected.jobs for text in job.warnings):
                self._say(f"warning: {action.name}: {warning}", yellow=True)

    def _show(self, jobs: Sequence[PlannedJob]) -> None:
        for number, job in enumerate(jobs, 1):
            self._say(f"# script {number} of {len(jobs)}: {job.plan.name}")
            for line in job.script.splitlines():
                self._say(line)

    def _is_confirmed(self, target: Target, jobs: Sequence[PlannedJob]) -> bool:
        """Whether to submit; asked where there is a terminal, as Row does."""
        count, cost = _tasks(jobs), sum((job.cost for job in jobs), Cost())
        with without_capture(self._config):
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                return True
            sys.stdout.flush()
            question = f"Submit {_counted(count, 'job')} to {target.cluster.name} that may cost up to {cost}? [Y/n] "
            try:
                answer = input(question)
            except EOFError:
                answer = "n"
        if answer.strip().lower() in ("", "y", "yes"):
            return True
        self._say("nothing was submitted")
        return False

    def _submit(self, target: Target, actions: Sequence[_SelectedAction]) -> None:
        done = 0
        total = sum(len(selected.jobs) for selected in actions)
        with interrupts_noted() as interrupted, without_capture(self._config):
            for selected in actions:
                for planned in selected.jobs:
                    if interrupted():
                        self._say(f"interrupted: {done} of {total} submitted, which are recorded; the rest is not")
                        raise KeyboardInterrupt
                    try:
                        job = submit(target, planned)
                    except LostAnswer as lost:
                        raise RecipeError(
                            f"{lost}. Whether it has job {planned.plan.name} is looked up by this name the next time "
                            f"(pytest-aorta jobs); {done} of {total} were submitted before, the rest was not"
                        ) from None
                    except RequestError as error:
                        raise RecipeError(
                            f"{error}; {done} of {total} were submitted before, the rest was not"
                        ) from None
                    done += 1
                    self._say(f"{job.plan.cluster}/{job.states.number}  {planned.plan.name}")
                    for number, task in enumerate(planned.plan.tasks):
                        place = f"{job.plan.cluster}/{job.identity(number)}"
                        for item in dict.fromkeys(selected.items[unit] for unit in task.units):
                            self._log(item, place)

    def _log(self, item: pytest.Item, place: str) -> None:
        """An item was submitted, which for pytest is one that was not run."""
        report = pytest.TestReport(
            item.nodeid,
            item.location,
            {item.name: 1},
            "skipped",
            (str(item.path), (item.location[1] or 0) + 1, f"submitted: {place}"),
            "setup",
            user_properties=[("aorta_state", "submitted"), ("aorta_job", place)],
        )
        self._terminal.stats.setdefault("submitted", []).append(report)

    def _say(self, line: str, **markup: bool) -> None:
        self._terminal.ensure_newline()
        self._terminal.write_line(printable(line), **markup)


def _tasks(jobs: Sequence[PlannedJob]) -> int:
    return sum(len(job.plan.tasks) for job in jobs)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _units(action: Action, count: int) -> str:
    word = "trial" if action.is_matrix else {"directory": "directorie"}.get(action.table.each, action.table.each)
    return f"{word}s" if count != 1 else "trial" if action.is_matrix else action.table.each
