"""Recipes in pytest: a recipe is a test file, with items for its commands and trials, and a run for each matrix.

An item runs if the actions that its own action follows are complete; otherwise it is skipped with the reason. In one
process, items come in that order. With xdist they may not: the reason ends with the command that runs the item next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_aorta.common.texts import identifier, printable
from pytest_aorta.plan import PlanError, unit_of
from pytest_aorta.plugin import is_controller, is_worker
from pytest_aorta.plugin.failures import TrialFailed, run_line
from pytest_aorta.plugin.options import read_option
from pytest_aorta.plugin.run import PAYLOAD, NotNeeded, SessionRun, cell_of, end_in_order_when_terminated, run_of
from pytest_aorta.plugin.trial_item import TrialItem, item_of
from pytest_aorta.registry import RegistryError
from pytest_aorta.runtime.resources.leases import PREFIX
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import TriageSettings
from pytest_aorta.triage import margin as read_margin
from pytest_aorta.triage.decisions import BASELINE_DECIDED
from pytest_aorta.triage.gates import Gate, check_gates, parse_gate
from pytest_aorta.triage.verdicts import check_baseline, is_named
from pytest_aorta.trials.outcome import signal_name
from pytest_aorta.workflow.clusters import Configuration, Launcher, launcher_prefix
from pytest_aorta.workflow.finding import RecipeError, is_sweep
from pytest_aorta.workflow.groups import CommandUnit, action_variables, command_units
from pytest_aorta.workflow.job_trials import StartedTrials, TrialsBeside
from pytest_aorta.workflow.jobs import JOB_VARIABLE, TASK_VARIABLE, read_job
from pytest_aorta.workflow.known import Decision, Journal, Known, Outcome, RequestDigests, Workspace
from pytest_aorta.workflow.project import Progress, Project, blocked_for, command_keys, containing, waited_for
from pytest_aorta.workflow.recipe import Action, Recipe, read_recipe, shell_commands
from pytest_aorta.workflow.requests import (
    asked_of_plan,
    first_of_cells,
    recorded_digest,
    request_digest,
    selection_of,
    since_of,
    trial_completion,
)
from pytest_aorta.workflow.shell import Shell

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import Json
    from pytest_aorta.launch.job import TrialJob
    from pytest_aorta.triage.facts import CellKey
    from pytest_aorta.trials.spec import TrialSpec

#: The cluster that is this host, by Row's name.
HERE = "none"

#: How often a job that is started again may start a trial that has never left a record.
MAXIMUM_STARTS = 3

_RECIPES = pytest.StashKey[dict[Path, "RecipeRun"]]()
_OUTCOMES = pytest.StashKey["ItemOutcomes"]()

ItemOutcome = Literal["to come", "passed", "failed", "skipped"]

_WORDS: Mapping[ItemOutcome, str] = {
    "to come": "is not complete; in this run it comes later",
    "passed": "is not complete, although it has passed",
    "failed": "failed",
    "skipped": "was skipped, and is not complete",
}


class ItemOutcomes:
    """Hooks that note how the items of this process have ended, whatever keeps one from running."""

    def __init__(self) -> None:
        #: All items of the run: with xdist, those of other processes as well.
        self.selected: frozenset[str] = frozenset()
        self._known: dict[str, ItemOutcome] = {}

    def of(self, nodeid: str) -> ItemOutcome:
        return self._known.get(nodeid, "to come")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        self.selected = frozenset(item.nodeid for item in session.items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._known[nodeid] = "passed"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self._known.get(report.nodeid)
        if before is None or hasattr(report, "wasxfail"):
            return
        if report.failed or (report.skipped and before == "passed"):
            self._known[report.nodeid] = "failed" if report.failed else "skipped"


class RecipeRun:
    def __init__(self, config: pytest.Config, recipe: Recipe) -> None:
        self.recipe = recipe
        self.project = Project(recipe, run_of(config).selection.registry_files, fresh=True)
        self._config = config
        self._is_unwritable = False
        if _OUTCOMES not in config.stash:
            config.stash[_OUTCOMES] = ItemOutcomes()
            config.pluginmanager.register(config.stash[_OUTCOMES], "aorta_item_outcomes")
        self.outcomes = config.stash[_OUTCOMES]
        self._only: frozenset[str] | None = read_option(config, "units")
        self._pattern: str = read_option(config, "actions") or "*"
        #: Action to unit to the node id of the item that runs it.
        self.items: dict[str, dict[str, str]] = {}
        #: In an xdist worker: units of commands, by action, that were complete before the first item ran.
        self._complete_before: dict[str, set[str]] = {}
        #: By action with a workload: gives the state of a trial, by its unit.
        self.trial_states: dict[str, Callable[[str], Progress]] = {}
        #: Why a matrix may not run, or ``None``, once that is known: it is the same for all of its trials.
        self._of_matrices: dict[str, str | None] = {}
        self._within: dict[str, dict[str, list[str]]] = {}
        self.journal = Journal(recipe.index)
        self.started = StartedTrials()

    def chosen(self, action: Action, units: Sequence[str]) -> list[str]:
        """The units of an action that this run is for: all, unless ``pytest-aorta run`` names some."""
        if not fnmatchcase(action.name, self._pattern):
            return []
        only = self._only
        return [unit for unit in units if only is None or any(outer in only for outer in containing(unit))]

    def declare(self, action: Action, units: Sequence[str], nodeid: str) -> None:
        self.items.setdefault(action.name, {}).update(dict.fromkeys(units, nodeid))
        if is_worker(self._config) and not action.is_matrix:
            complete = {unit for unit in units if self.is_complete(action, unit)}
            self._complete_before.setdefault(action.name, set()).update(complete)

    def path_of(self, action: Action, unit: str) -> str:
        """The folder of a unit of a command, relative to the workspace."""
        return str(self.project.folder(action, unit).relative_to(self.recipe.directories))

    @cached_property
    def _launchers(self) -> Mapping[str, Launcher]:
        return Configuration.of_project(self.recipe.root).launchers_on(HERE)

    def prefix(self, action: Action, directories: int) -> str:
        """What the launchers of a command put before it on this host; raises ``RecipeError``."""
        if not action.table.launchers and action.table.resources.total_processes(directories) <= 1:
            return ""
        try:
            return launcher_prefix(action, directories, self._launchers)
        except RecipeError as error:
            raise self.recipe.error(action, str(error)) from None

    def note(
        self, action: str, unit: str, outcome: Outcome | None, request: RequestDigests | None = None, **texts: str
    ) -> None:
        try:
            self.journal.add(action, unit, outcome, request, **texts)
        except OSError as error:
            if not self._is_unwritable:
                self._is_unwritable = True
                text = (
                    f"{self.recipe.index}: what this run completes cannot be noted ({error.strerror}); "
                    "pytest-aorta scan finds it later"
                )
                with contextlib.suppress(pytest.PytestWarning):  # as an error, it would end the session
                    self._config.issue_config_time_warning(pytest.PytestWarning(printable(text)), stacklevel=2)

    def note_kept(self, action: str, unit: str) -> None:
        """Journal that a unit is complete if the index does not say so: a killed run has made its products."""
        known = self.known.completed.get(action, {}).get(unit)
        if known is None or known[0] != "completed":
            self.note(action, unit, "completed")

    def is_complete(self, action: Action, unit: str) -> bool:
        """Whether the products of a command exist, and were made by the present command from the present value."""
        if not self.project.has_products(action, unit):
            return False
        matrix = self.project.matrix_of(action)
        since = "" if matrix is None else since_of(matrix, run_of(self._config).selection.since)
        if since and self.project.is_older(action, unit, datetime.fromisoformat(since)):
            return False  # it was made of the trials of an earlier run
        known = self.known.completed.get(action.name, {}).get(unit)
        return known is None or known[0] != "completed" or known[1] in ("", self.project.key_of(action)(unit))

    @cached_property
    def known(self) -> Known:
        return Workspace.from_cache(self.recipe).known

    def obstacle(self, follower: Action, unit: str) -> str | None:
        """Why an action may not run on a unit now; ``None`` if it may."""
        if follower.is_matrix and follower.name in self._of_matrices:
            return self._of_matrices[follower.name]
        reason = self._obstacle(follower, unit)
        if follower.is_matrix and (reason is None or not is_worker(self._config)):
            self._of_matrices[follower.name] = reason
        return reason

    def _obstacle(self, follower: Action, unit: str) -> str | None:
        for name in follower.table.previous_actions:
            action = self.recipe.by_name[name][0]
            units = self._units_before(follower, action, unit)
            progress: dict[str, Progress] = {each: self._progress(action, each) for each in units}
            waiting = waited_for(follower, action, progress)
            if blocked_for(follower, action, waiting).touches(unit):
                return self._reason(action, waiting)
        return None

    def _units_before(self, follower: Action, action: Action, unit: str) -> Sequence[str]:
        known = self.items.get(action.name, {})
        kinds = {"trial" if each.is_matrix else each.table.each for each in (follower, action)}
        if follower.is_matrix or ("directory" in kinds and len(kinds) > 1):
            return list(known)
        if len(kinds) == 1:
            return [unit] if unit in known or "directory" in kinds else []
        if action.name not in self._within:
            within = self._within[action.name] = {}
            for each in known:
                for outer in containing(each):
                    within.setdefault(outer, []).append(each)
        contained = self._within[action.name].get(unit, ())
        return list(contained) or [outer for outer in containing(unit) if outer in known]

    def _progress(self, action: Action, unit: str) -> Progress:
        if action.is_matrix:
            return self.trial_states[action.name](unit)
        nodeid = self.items.get(action.name, {}).get(unit, "")
        if nodeid not in self.outcomes.selected:
            is_complete = self.is_complete(action, unit)
        elif self.outcomes.of(nodeid) == "passed":
            is_complete = self.project.has_products(action, unit)
        elif is_worker(self._config):  # its command may run in another worker, and have written half of its products
            is_complete = unit in self._complete_before.get(action.name, ())
        else:
            is_complete = self.is_complete(action, unit)
        return "completed" if is_complete else "open"

    def _reason(self, action: Action, units: Sequence[str]) -> str:
        if not action.table.products and not action.is_matrix:
            return f"{action.name} has no products, so it is never complete; previous_actions need products"
        nodeid = self.items.get(action.name, {}).get(units[0])
        if nodeid is None:
            return f"{action.name} does not include {units[0]}, and is not complete there"
        where = nodeid.rpartition("::")[2]
        more = f" (and {len(units) - 1} more)" if len(units) > 1 else ""
        if nodeid not in self.outcomes.selected:
            return f"{where}{more} is not complete, and not selected in this run"
        outcome = self.outcomes.of(nodeid)
        if outcome in ("to come", "passed") and is_worker(self._config):
            slots = self._config.workerinput["workercount"]  # type: ignore[attr-defined]
            given = [] if read_option(self._config, "slots") else ["--aorta-slots", str(slots)]
            line = run_line(self._config, nodeid.partition("::")[0], given)
            return f"{where}{more} is not complete, and may run in another process (-n); next: {line}"
        return f"{where}{more} {_WORDS[outcome]}"


def recipe_run(config: pytest.Config, file: Path) -> RecipeRun:
    """The run of the recipe in a file; the first call reads the file, and may raise ``RecipeError``."""
    runs = config.stash.setdefault(_RECIPES, {})
    if file not in runs:
        if is_sweep(file):
            from pytest_aorta.workflow.sweeps import read_as_recipe

            recipe, notes = read_as_recipe(file)
            if notes:
                config.pluginmanager.register(CollectionNotes([f"{file.name}: without {note}" for note in notes]))
        else:
            recipe = read_recipe(file)
        runs[file] = RecipeRun(config, recipe)
        config.add_cleanup(runs[file].journal.close)  # nothing more is journaled
    return runs[file]


class CollectionNotes:
    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def pytest_report_collectionfinish(self) -> list[str]:
        return [printable(line) for line in self._lines]


def _shared_folder(name: str) -> Path:
    path = Path(tempfile.gettempdir()) / f"{PREFIX}items-{name}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def action_run(config: pytest.Config, recipe: RecipeRun, action: Action) -> SessionRun:
    table, base = action.table, run_of(config)
    key, given = (recipe.recipe.file, action.name), base.selection
    if key in base.of_actions:
        return base.of_actions[key]
    until_decided = table.until_decided or given.stop.decided
    stop = replace(
        given.stop, decided=until_decided, failures=table.stop_after or given.stop.failures, seconds=None
    )  # the time is that of the whole run
    margin = given.triage.margin if table.margin is None else read_margin(table.margin)
    speed_margin = given.triage.speed_margin if table.speed_margin is None else table.speed_margin
    selection = replace(
        selection_of(action, recipe.recipe, given),
        resume=True,
        since=since_of(action, given.since),
        triage=TriageSettings(
            table.baseline,
            margin,
            speed_margin,
            sequential=stop.ends_cells or given.stop.seconds is not None,
            confirm=until_decided and (given.triage.confirm or not given.stop.decided),
            screens=until_decided and not given.stop.equivalence,
            by_node=action.nodes is not None,
            signatures=action.signatures,
        ),
        stop=stop,
        gates=(),
        minimize=(),
        replays=(),
        report=None,
    )
    stamp, folder = base.runner.store.stamp, None
    if is_worker(config) or is_controller(config):
        name = hashlib.sha256(f"{recipe.recipe.file}:{action.name}".encode()).hexdigest()[:16]
        folder = partial(_shared_folder, f"{stamp}-{name}")
    run = SessionRun(config, selection, stamp, folder)
    run.registry = recipe.recipe.names_in(base.registry)
    run.action = identifier(action.name)
    run.expects_failures = table.expect == "fail"
    try:
        plan = run.plan
    except (PlanError, RegistryError) as error:
        raise recipe.recipe.error(action, f"action {action.name!r}: {error}") from None

    def on_record(record: Mapping[str, Any]) -> None:
        if (completion := trial_completion(record)) is not None:
            recipe.note(action.name, *completion)

    def on_decided(cells: Mapping[str, str]) -> None:
        new = Decision(asked=asked_of_plan(action, plan), cells=dict(cells))
        before = recipe.known.decided.get(action.name, Decision(asked=""))
        if new.cells and (before.asked != new.asked or not new.cells.items() <= before.cells.items()):
            recipe.known.add(Known(decided={action.name: new}))
            with contextlib.suppress(OSError):  # what cannot be written is found out again
                recipe.journal.append(Known(decided={action.name: new}))

    run.on_record, run.on_decided = on_record, on_decided
    if stop.ends_cells:
        run.stopping.decided_before = cache(partial(_decided_before, recipe, action, run))
        job = read_job(Path(os.environ[JOB_VARIABLE])) if JOB_VARIABLE in os.environ else None
        if job is not None:
            task = int(os.environ.get(TASK_VARIABLE, "0"))
            run.others = TrialsBeside(plan, run.results, run.selection, recipe.project.workspace, job, task)
        run.stopping.skips_nothing = run.others is not None and action.least_nodes > 1
    if table.baseline is not None or table.gate or given.gates:
        cells = [(spec.cell, spec.mitigations) for spec in first_of_cells(plan)]
        place = f"{recipe.recipe.file}:{action.line}"
        if table.baseline is not None:
            check_baseline(table.baseline, cells, f"{place}: baseline")
        gates: list[Gate] = []
        for text in table.gate:
            try:
                gates.append(parse_gate(text))
            except ValueError as error:
                raise RecipeError(f"{place}: gate {text!r}: expected {error}") from None
        check_gates(gates, cells, f"{place}: gate")
        gates += [it for it in given.gates if it.cell is None or any(is_named(it.cell, *cell) for cell in cells)]
        run.selection = replace(selection, gates=tuple(gates))
    base.of_actions[key] = run
    return run


def _decided_before(recipe: RecipeRun, action: Action, run: SessionRun) -> Mapping[CellKey, str]:
    """What earlier runs and jobs have decided on cells that are compared with a baseline, as the status has it."""
    project = Project(recipe.recipe, recipe.project.registry_files)
    decision = project.workspace.known.decided.get(action.name)
    if run_of(run.config).selection.since or decision is None or decision.asked != asked_of_plan(action, run.plan):
        return {}
    left = {unit.rpartition("/")[0] for unit, each in project.progress[action.name].items() if each == "not_needed"}
    reasons = ((cell_of(spec), decision.cells[spec.cell]) for spec in first_of_cells(run.plan) if spec.cell in left)
    return {key: reason for key, reason in reasons if reason.startswith("decided: ") and reason != BASELINE_DECIDED}


def action_run_of_item(config: pytest.Config, nodeid: str) -> SessionRun | None:
    """The run of the action that a trial item of a recipe belongs to, collected or not; ``None`` for other items."""
    base, _, name = nodeid.rpartition("::")
    recipe = recipe_run(config, config.rootpath / base)
    for action in recipe.recipe.actions:
        if action.is_matrix and identifier(action.name) == name.partition("[")[0]:
            return action_run(config, recipe, action)
    return None


#: Bytes of the end of a command's output that its report has.
_SHOWN = 65_536

#: Of these, lines and characters that ``pytest-aorta why`` shows later.
_KEPT_LINES, _KEPT = 10, 2000

#: Statuses of trials that have failed, which an action may expect.
_FAILED = ("workload_failed", "timeout")


class RecipeFile(pytest.File):
    """A recipe. Its items are its actions on their directories, each after the actions that it follows."""

    def collect(self) -> Iterable[pytest.Item]:
        """All items, complete ones included: pytest shows them as kept."""
        try:
            run = recipe_run(self.config, self.path)
            items = [item for action in run.recipe.in_order() for item in self._items(run, action)]
        except RequestError as error:
            raise self.CollectError(str(error)) from None
        if not items:
            recipe, count = run.recipe, len(run.project.directories)
            why = (
                'it has no action; command = "python train.py" and trials = 20 make one, or [[action]] for each of '
                "several"
            )
            if recipe.actions:
                reason = f"none of the {count} has what the action includes" if count else "there is none"
                names = ", ".join(recipe.by_name)
                why = f"{names}: a command runs on each directory of {recipe.directories}, and {reason}"
            self.config.pluginmanager.register(CollectionNotes([f"{self.name}: {why}"]))
        return items

    def _items(self, run: RecipeRun, action: Action) -> Iterable[pytest.Item]:
        if action.is_matrix:
            yield from self._trials(run, action)
            return
        run.prefix(action, 1)  # refused now, and not when it is about to run
        matrix, each = run.recipe.matrix_before(action), action.table.each
        if (each == "directory") != (matrix is None):
            why = "follows no action with a workload" if matrix is None else f"follows the workload of {matrix.name!r}"
            expected = "directory" if matrix is None else "trial, cell or matrix"
            message = f"action {action.name!r} {why}; each = {each!r} cannot be, expected {expected}"
            raise run.recipe.error(action, message)
        units, value_of = run.project.units(action), run.project.value_of(action)
        chosen = run.chosen(action, units)
        all_units = list(command_units(run.recipe, action, units, value_of))
        for unit in all_units:
            run.declare(action, unit.units, f"{self.nodeid}::{unit.name}")
        for unit in all_units if len(chosen) == len(units) else command_units(run.recipe, action, chosen, value_of):
            item: CommandItem = CommandItem.from_parent(self, name=unit.name)
            item.unit, item.run, item.is_whole = unit, run, len(chosen) == len(units)
            item.extra_keyword_matches.update([action.name, *unit.units])
            run.declare(action, unit.units, item.nodeid)
            yield item

    def _trials(self, recipe: RecipeRun, action: Action) -> Iterator[RecipeTrialItem]:
        run = action_run(self.config, recipe, action)
        recipe.trial_states[action.name] = _TrialStates(recipe, run, action)
        item: RecipeTrialItem | None = None
        chosen = set(recipe.chosen(action, [unit_of(spec) for spec in run.plan.trials]))
        for spec in run.plan.trials:
            name = run.shown_name(spec)
            recipe.declare(action, [unit_of(spec)], f"{self.nodeid}::{name}")
            if unit_of(spec) in chosen:
                item = item_of(RecipeTrialItem, self, name, run, spec, run.plan.paths, item)
                item.recipe, item.action, item.reproduced = recipe, action, False
                item.extra_keyword_matches.add(action.name)
                yield item


class CommandItem(pytest.Item):
    """A command on its directories. It runs on those that are not complete and need not wait for other actions."""

    unit: CommandUnit
    run: RecipeRun
    is_whole: bool

    def runtest(self) -> None:
        __tracebackhide__ = True
        action = self.unit.action
        left = [name for name in self.unit.units if not self.run.is_complete(action, name)]
        for name in set(self.unit.units).difference(left):
            self.run.note_kept(action.name, name)
        if not left:
            self.user_properties.append(("aorta_state", "kept"))
            return
        obstacles = {name: self.run.obstacle(action, name) for name in left}
        eligible = [name for name in left if obstacles[name] is None]
        if not eligible:
            raise NotNeeded(printable(next(reason for reason in obstacles.values() if reason is not None)))
        try:
            self._run(eligible)
        except RequestError as error:
            raise TrialFailed(printable(str(error))) from None

    def _run(self, units: Sequence[str]) -> None:
        action, run, project = self.unit.action, self.run, self.run.project
        value_of, root = project.value_of(action), run.recipe.root
        if not self.is_whole or len(units) < len(self.unit.units):  # else they are a whole group already
            whole = project.whole_group(action, units[0])
            if len(whole) > 1 and set(whole) != set(units):
                pytest.skip(f"{len(units)} of a group of {len(whole)}, which runs as a whole only (submit_whole)")
        for unit in units:
            project.folder(action, unit).mkdir(parents=True, exist_ok=True)  # a trial may have no artifacts
        paths, workspace = [run.path_of(action, unit) for unit in units], run.recipe.workspace.path
        (line,) = shell_commands(action.table.command or "", paths, [value_of(unit) for unit in units], workspace)
        variables = action_variables(action.name, action.table.resources, len(units), workspace, HERE)
        line = run.prefix(action, len(units)) + line
        keys = {unit: project.key_of(action)(unit) for unit in units}
        end_in_order_when_terminated(self.config)
        if _SHELL not in self.config.stash:
            self.config.stash[_SHELL] = Shell(run_of(self.config).selection.limits.grace)
            self.config.add_cleanup(self.config.stash[_SHELL].close)
        shell, end = self.config.stash[_SHELL], ""
        if self.config.getoption("capture", "fd") == "no":
            sys.stdout.flush()
            status = shell.run(line, root, variables, None)
        else:
            with tempfile.TemporaryFile() as output:
                try:
                    status = shell.run(line, root, variables, output)
                finally:
                    output.seek(max(0, output.seek(0, 2) - _SHOWN))
                    text = printable(output.read().decode(errors="replace"))
                    end = "\n".join(text.splitlines()[-_KEPT_LINES:])[-_KEPT:]
                    if text:
                        self.add_report_section("call", "output", text)
        missing = {unit: project.missing_products(action, unit) for unit in units}
        how = signal_name(-status) if status < 0 else f"exit status {status}"
        wrong = [f"the command ended with {how}"] if status else []
        wrong += [f"no {', '.join(names)} in {run.path_of(action, unit)}" for unit, names in missing.items() if names]
        end = "\n".join(filter(None, (end, printable("; ".join(wrong)))))
        for unit in units:
            done = status == 0 and not missing[unit]
            if done and action.table.products:
                run.note(action.name, unit, "completed", key=keys[unit])
            else:
                run.note(action.name, unit, None if done else "failed", output="" if done else end)
        if wrong:
            raise TrialFailed(printable(f"{'; '.join(wrong)}\ncommand: {line}\nin: {root}"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.unit.action.line - 1, self.name

    def shard_keys(self) -> list[Hashable]:
        return [(self.path, *key) for key in command_keys(self.unit.action, self.run.recipe, self.unit.units)]

    def condition_values(self) -> list[Callable[[], Json]]:
        value_of = self.run.project.value_of(self.unit.action)
        return [partial(value_of, unit) for unit in self.unit.units]


_SHELL = pytest.StashKey[Shell]()


class RecipeTrialItem(TrialItem):
    """A trial of an action, which may follow other actions and may be expected to fail."""

    recipe: RecipeRun
    action: Action
    reproduced: bool

    def setup(self) -> None:
        self.reproduced = False
        unit = unit_of(self.spec)
        obstacle = self.recipe.obstacle(self.action, unit)
        times = self.recipe.started.times(unit)
        # It has left no record.
        if obstacle is None and times >= MAXIMUM_STARTS and self.recipe.trial_states[self.action.name](unit) == "open":
            obstacle = f"{self.action.name}: started {times} times by this job, which it has taken along each time"
        if obstacle is not None:
            raise NotNeeded(printable(obstacle))
        super().setup()

    def launch(self, extra_env: Mapping[str, str]) -> TrialJob:
        self.recipe.started.note(unit_of(self.spec))
        return super().launch(extra_env)

    def runtest(self) -> None:
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
        return self.path, self.action.line - 1, self.name

    def shard_keys(self) -> list[Hashable]:
        return [(self.path, self.action.name, unit_of(self.spec))]

    def _wait(self, phase: str) -> None:
        try:
            super()._wait(phase)
        except TrialFailed:
            if self.action.table.expect != "fail" or self.stash[PAYLOAD].exit_status not in _FAILED:
                raise
            self.reproduced = True


class _TrialStates:
    def __init__(self, recipe: RecipeRun, run: SessionRun, action: Action) -> None:
        self._recipe, self._run, self._action = recipe, run, action
        self._trials = {unit_of(spec): spec for spec in run.plan.trials}
        self._digests: dict[str, str] = {}
        self._expected = ("ok",) if action.table.expect == "pass" else _FAILED

    def __call__(self, unit: str) -> Progress:
        spec = self._trials[unit]
        try:
            file = self._run.plan.paths(spec).file_in(self._run.results)
            record: dict[str, Any] = json.loads(file.read_bytes())
            status, request = record["exit_status"], recorded_digest(record)
        except (OSError, ValueError, TypeError, KeyError):
            return self._without_record(spec)
        if record.get("cell") != spec.cell or request != self._digests.setdefault(spec.cell, request_digest(spec)):
            return self._without_record(spec)
        if status in self._expected:
            return "completed"
        return "failed" if status in ("ok", *_FAILED) else "without_result"

    def _without_record(self, spec: TrialSpec) -> Progress:
        is_decided = spec.cell in self._decided_before or self._run.stopping.decided(cell_of(spec)) is not None
        return "not_needed" if is_decided else "open"

    @cached_property
    def _decided_before(self) -> Collection[str]:
        decision = self._recipe.known.decided.get(self._action.name)
        is_current = decision is not None and decision.asked == asked_of_plan(self._action, self._run.plan)
        return decision.cells if decision is not None and is_current else ()
