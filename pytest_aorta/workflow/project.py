"""A project: a recipe, its workspace, and the state of each unit of each action.

A unit is the smallest thing that an action can complete: a directory of the workspace, or a trial ``CELL/INDEX``, a
cell ``CELL`` or the whole matrix ``""`` of an action with a workload. These units contain each other like paths.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_aorta.common.conditions import Json
from pytest_aorta.common.texts import identifier
from pytest_aorta.plan import Selection, make_plan, unit_of
from pytest_aorta.registry import Registry
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.losses import is_in_doubt, settled
from pytest_aorta.workflow.groups import ValueOf, command_units, grouped, included, next_wave, whole_groups
from pytest_aorta.workflow.jobs import JOBS, Job, reconcile
from pytest_aorta.workflow.known import Completion, Journal, Known, RequestDigests, Workspace
from pytest_aorta.workflow.recipe import Action, Cost, Recipe, present, takes_all
from pytest_aorta.workflow.requests import (
    Requests,
    asked_of,
    cell_requests,
    request_digest,
    selection_of,
    trial_completion,
)
from pytest_aorta.workflow.slurm import TaskState

if TYPE_CHECKING:
    from pytest_aorta.plan import Plan

#: The state of an action on a unit, in the order of columns.
State = Literal["completed", "failed", "stale", "submitted", "eligible", "waiting"]

#: Progress of a unit, but for what it waits for. ``without_result``: the trial says nothing of the workload, and
#: runs again. ``not_needed``: its cell is decided without it. ``stale``: its result is of another request.
Progress = Literal["completed", "failed", "without_result", "stale", "submitted", "not_needed", "open"]

#: Progress by outcome of a trial, for each value of ``expect``.
_MEANINGS: Mapping[str, Mapping[str, Progress]] = {
    expect: {
        "ok": "completed" if expect == "pass" else "failed",
        "workload_failed": "failed" if expect == "pass" else "completed",
        "timeout": "failed" if expect == "pass" else "completed",
        "infrastructure_failed": "without_result",
    }
    for expect in ("pass", "fail")
}

#: Trials whose durations are read for what the others may cost.
_MEASURED = 20

_HOW = {"open": "has not run", "failed": "has failed", "without_result": "has no result"}


def containing(unit: str) -> Iterator[str]:
    """A unit, and all units that contain it."""
    yield unit
    while unit:
        unit = unit.rpartition("/")[0]
        yield unit


def is_within(unit: str, units: Collection[str] | None) -> bool:
    """Whether a unit is in ``units`` or contained in one of them; ``None`` stands for all units."""
    return units is None or any(outer in units for outer in containing(unit))


class Blocked:
    """Units of an action that a later action has to wait for."""

    def __init__(self, units: Iterable[str] = ()) -> None:
        self.units = frozenset(units)
        self._within = {*self.units, *([""] if self.units else [])}
        self._within |= {outer for unit in self.units if "/" in unit for outer in containing(unit)}

    def touches(self, unit: str) -> bool:
        """Whether one of them equals, contains, or is contained in ``unit``."""
        if unit in self._within or "" in self.units:
            return True
        return "/" in unit and any(outer in self.units for outer in containing(unit))


def waited_for(follower: Action, action: Action, progress: Mapping[str, Progress]) -> list[str]:
    """The units of ``action`` that ``follower`` has to wait for.

    A follower on cells or on the matrix needs results, failed ones too. Any other follower needs completed units.
    """
    done = {"completed"}
    if action.is_matrix and (follower.is_matrix or follower.table.each != "trial"):
        done.add("not_needed")
    if action.is_matrix and follower.table.each in ("cell", "matrix"):
        done.add("failed")
    return [unit for unit, each in progress.items() if each not in done]


def blocked_for(follower: Action, action: Action, units: Sequence[str]) -> Blocked:
    """The units that block: ``units``, or all of the action where the follower has units of another kind."""
    on_directories = [each.table.each == "directory" and not each.is_matrix for each in (follower, action)]
    if units and (follower.is_matrix or on_directories[0] != on_directories[1]):
        return Blocked([""])
    return Blocked(units)


def waits_for(previous: Sequence[Blocked]) -> Callable[[str], bool]:
    """Whether any of them blocks a unit."""
    waits = [each.touches for each in previous if each.units]
    if len(waits) <= 1:
        return waits[0] if waits else lambda unit: False
    return lambda unit: any(touches(unit) for touches in waits)


def states_of(progress: Mapping[str, Progress], previous: Sequence[Blocked]) -> dict[str, State]:
    """The state of each unit that is still needed.

    ``progress``: of each unit, by its name. ``previous``: units on which earlier actions are not complete.
    """
    waits = waits_for(previous)
    states: dict[str, State] = {}
    for unit, each in progress.items():
        if each == "open" or each == "without_result":
            states[unit] = "waiting" if waits(unit) else "eligible"
        elif each != "not_needed":
            states[unit] = each
    return states


class Project:
    """A recipe and its workspace.

    Args:
        registry_files: define more names.
        fresh: read directories and values from disk, and do not store them: for a run.
        only: names of interest. Where all actions work on single directories, others are not read.

    Attributes:
        workspace: directories with their values, and completions; read when it is first asked for.
        jobs: that had not ended before the scheduler was asked.
        problems: why some of that may be out of date.
    """

    def __init__(
        self,
        recipe: Recipe,
        registry_files: Sequence[str | Path] = (),
        *,
        fresh: bool = False,
        only: Collection[str] = (),
    ) -> None:
        self.recipe = recipe
        self._fresh = fresh
        each_for_itself = all(
            action.table.each == "directory" and not (action.is_matrix or action.table.group.submit_whole)
            for action in recipe.actions
        )
        self._only = {name.rstrip("/") for name in only} if only and each_for_itself else None
        self._workspace = str(recipe.directories)
        self.registry_files = tuple(map(Path, registry_files))
        self.jobs: Sequence[Job] = ()
        self.problems: list[str] = []
        on_directories = any(it.table.each == "directory" and not it.is_matrix for it in recipe.actions)
        if on_directories and not recipe.directories.is_dir():
            self.problems.append(f"the workspace {recipe.directories} does not exist")
        self._plans: dict[str, Plan] = {}
        self._keys: dict[str, Callable[[str], str]] = {}
        self._whole: dict[int, dict[str, list[str]]] = {}  # by the line of an action

    @cached_property
    def workspace(self) -> Workspace:
        if self._fresh:
            return Workspace(self.recipe)
        workspace = Workspace.from_cache(self.recipe, self._only)
        return Workspace.from_cache(self.recipe) if workspace.damaged and self._only is not None else workspace

    @cached_property
    def requests(self) -> Requests:
        """The requests of all cells, by action."""
        if not any(action.is_matrix for action in self.recipe.actions):
            return {}
        return cell_requests(self.recipe, self.registry)

    @property
    def registry(self) -> Registry:
        """The registry, with the names that the recipe defines."""
        return self.recipe.names_in(Registry.load(self.registry_files))

    @property
    def directories(self) -> Sequence[str]:
        return self.workspace.names

    def synchronize_jobs(self, cluster: str | None = None, *, is_submitting: bool = False) -> Sequence[Job]:
        """Update open jobs from the scheduler. Call it before reading completions, which ended jobs have then written.

        ``cluster`` and ``is_submitting``: see ``reconcile``.
        """
        if (self.recipe.index / JOBS).exists():
            self.jobs, problems = reconcile(self.recipe, self.settle, cluster, is_submitting=is_submitting)
            self.problems += problems
        return self.jobs

    @cached_property
    def submitted(self) -> Mapping[str, Mapping[str, str]]:
        """Submitted units by action, with their job ``CLUSTER/ID``."""
        submitted: dict[str, dict[str, str]] = {}
        for job in self.jobs:
            for number, task in enumerate(job.tasks if job.is_open else ()):
                if not task.is_over:
                    place = f"{job.cluster}/{job.identity(number)}"
                    submitted.setdefault(job.action, {}).update(dict.fromkeys(task.units, place))
        return submitted

    def rebuild(self) -> None:
        """Rebuild a damaged index from disk."""
        if not self.workspace.damaged:
            return
        for name, reason in self.workspace.damaged.items():
            self.problems.append(
                f"{self.recipe.index / name} {reason}; results and products are looked for on disk, failed commands "
                "are forgotten"
            )
        scan = Scan(self, self.recipe.actions)
        scan.run()
        try:
            self.workspace.record(scan.found)
        except OSError:
            self.workspace.known.add(scan.found)

    def actions(self, pattern: str) -> list[Action]:
        """The actions whose names match, in the order of the file; raises ``RequestError`` where there is none."""
        matching = [action for action in self.recipe.actions if fnmatchcase(action.name, pattern)]
        if not matching and self.recipe.actions:
            raise RequestError(f"no action matches {pattern!r}; there are {', '.join(self.recipe.by_name)}")
        return matching

    def units(self, action: Action) -> Sequence[str]:
        """All units of an action, including those that its group excludes."""
        matrix = self.matrix_of(action)
        if matrix is None:
            return self.directories
        cells = self.requests[matrix.name]
        if not action.is_matrix and action.table.each != "trial":
            return [*cells] if action.table.each == "cell" else [""]
        return [f"{cell}/{index}" for cell in cells for index in range(matrix.table.trials_in(cell))]

    def value_of(self, action: Action) -> ValueOf:
        matrix = self.matrix_of(action)
        if matrix is None:
            return self.workspace.value_of
        cells, table = self.requests[matrix.name], matrix.table

        def value(unit: str) -> Json:
            cell, _, trial = unit.partition("/")
            if not cell:
                return {"workload": table.workload or table.command, "config": dict(table.config)}
            return {**cells[cell].value, **({"trial": int(trial)} if trial else {})}

        return value

    def folder(self, action: Action, unit: str) -> Path:
        """The folder of a unit: a directory of the workspace, or the folder of a trial, a cell or a matrix.

        A matrix with one cell keeps its files in the folder of the workload, as a plan does.
        """
        matrix = self.matrix_of(action)
        if matrix is None:
            return self.recipe.directories / unit
        results, cells = self.recipe.directories / matrix.name, self.requests[matrix.name]
        cell, _, trial = unit.partition("/")
        if not cell:
            return results
        workload, name = cells[cell].folder
        folder = results / workload / name if len(cells) > 1 else results / workload
        return folder / f"trial_{trial}" if trial else folder

    def matrix_of(self, action: Action) -> Action | None:
        """The action itself if it has trials, else the action whose trials it works on."""
        if action.is_matrix:
            return action
        return None if action.table.each == "directory" else self.recipe.matrix_before(action)

    @cached_property
    def progress(self) -> dict[str, dict[str, Progress]]:
        """The progress of each unit by action, from the index; products of commands are not looked up."""
        progress = {}
        for name, (action, *_) in self.recipe.by_name.items():
            progress[name] = self._due(action, self._trials(action) if action.is_matrix else self._commands(action))
        for name, units in progress.items():
            action = self.recipe.by_name[name][0]
            matrix = self.matrix_of(action)
            if matrix is not None and not action.is_matrix and action.table.each == "trial":
                trials = progress[matrix.name]
                progress[name] = {unit: each for unit, each in units.items() if trials[unit] != "not_needed"}
        return progress

    def _commands(self, action: Action) -> dict[str, Progress]:
        completed, submitted = self.workspace.known.completed.get(action.name, {}), self.submitted.get(action.name, {})
        progress: dict[str, Progress] = dict.fromkeys(self.units(action), "open")
        key_of, has_products = self.key_of(action), bool(action.table.products)
        for unit, completion in completed.items():
            if completion is None or unit not in progress:
                continue
            outcome, key = completion
            if outcome == "completed" and has_products:
                progress[unit] = "completed" if not key or key == key_of(unit) else "stale"
            elif outcome == "failed":
                progress[unit] = "failed"
        for unit in submitted:
            if progress.get(unit, "completed") != "completed":
                progress[unit] = "submitted"
        return progress

    def key_of(self, action: Action) -> Callable[[str], str]:
        """A function from a unit to a digest of the command's text and the directory's value."""
        if action.name in self._keys:
            return self._keys[action.name]
        commands: dict[str, str] = {}  # where actions share the name
        same = self.recipe.by_name[action.name]
        for each in same if len(same) > 1 else ():
            units = included(each.table.group, self.units(each), self.value_of(each))
            commands.update(dict.fromkeys(units, each.table.command or ""))
        value_of, own = self.value_of(action), action.table.command or ""
        has_values = self.matrix_of(action) is not None or self.recipe.workspace.value_file is not None

        def key(unit: str) -> str:
            value = json.dumps(value_of(unit), sort_keys=True) if has_values else ""
            return hashlib.sha256(f"{commands.get(unit, own)}\0{value}".encode()).hexdigest()[:16]

        return self._keys.setdefault(action.name, cache(key))

    def _trials(self, action: Action) -> dict[str, Progress]:
        known = self.workspace.known
        completed, submitted = known.completed.get(action.name, {}), self.submitted.get(action.name, {})
        meaning = _MEANINGS[action.table.expect]
        by_unit: dict[str, Progress] = {}
        for cell, request in self.requests[action.name].items():
            current: dict[str, bool] = {}  # keys of requests: whether they are what is asked for now
            for index in range(action.table.trials_in(cell)):
                unit = f"{cell}/{index}"
                completion, progress = completed.get(unit), "open"
                if completion is not None:
                    outcome, key = completion
                    if key not in current:
                        of = known.requests.get(key, RequestDigests(digest=""))
                        current[key] = of.digest == request.digest and not self.workspace.have_changed(of.sources)
                    progress = meaning.get(outcome, "stale") if current[key] else "stale"
                if unit in submitted and progress not in ("completed", "failed"):
                    progress = "submitted"
                by_unit[unit] = progress  # type: ignore[assignment]
        decided = known.decided.get(action.name)
        if decided is not None and "stale" not in by_unit.values():  # else the deciding trials run again
            asked = {cell: each.digest for cell, each in self.requests[action.name].items()}
            if decided.asked == asked_of(action, asked):
                for unit, each in by_unit.items():
                    if each == "open" and unit.rpartition("/")[0] in decided.cells:
                        by_unit[unit] = "not_needed"
        return by_unit

    def states(self, action: Action, only: Collection[str] | None = None) -> dict[str, State]:
        """The state of each unit that an action includes; ``only``: restrict it to these units and their parts."""
        progress = self.progress[action.name]
        if only is not None:
            progress = {unit: each for unit, each in progress.items() if is_within(unit, only)}
        states = states_of(progress, self._blocked(action))
        if not action.table.group.include:
            return states
        return {unit: states[unit] for unit in included(action.table.group, [*states], self.value_of(action))}

    def _blocked(self, action: Action) -> list[Blocked]:
        previous = [self.recipe.by_name[name][0] for name in action.table.previous_actions]
        return [blocked_for(action, each, waited_for(action, each, self._before(action, each))) for each in previous]

    def waits_for(self, action: Action, unit: str) -> Iterator[str]:
        """Why a unit waits: a sentence for each previous action that blocks it."""
        for name in action.table.previous_actions:
            previous = self.recipe.by_name[name][0]
            units = waited_for(action, previous, self._before(action, previous))
            if not blocked_for(action, previous, units).touches(unit):
                continue
            same = [each for each in units if each == unit or unit in containing(each) or each in containing(unit)]
            first = (same or units)[0]
            state, more = self.progress[name][first], len(same or units) - 1
            where = f"on {first}" if first else "on all"
            how = f"{name} {_HOW.get(state, f'is {state}')} {where}"
            if not previous.table.products and not previous.is_matrix:
                how = f"{name} has no products, so it is never complete"
            elif first not in self.states(previous):
                how = f"{name} does not include {first}, and is not complete there"
            yield f"{how} ({more} more)" if more else how

    def _before(self, follower: Action, action: Action) -> Mapping[str, Progress]:
        """What a follower may wait for: as a whole, of the units that are included; else of each, included or not."""
        progress = self.progress[action.name]
        if follower.is_matrix or (action.table.each == "directory") != (follower.table.each == "directory"):
            same = self.recipe.by_name[action.name]
            within = [included(each.table.group, [*progress], self.value_of(action)) for each in same]
            return {unit: progress[unit] for units in within for unit in units}
        return progress

    def check_overlap(self, action: Action, only: Collection[str] | None = None) -> None:
        """Raise ``RecipeError`` where another action of this name would be submitted on the same units."""
        left: dict[str, int] = {}
        same = self.recipe.by_name[action.name]
        for each in same if len(same) > 1 else ():
            for unit, state in self.states(each, only).items():
                line = left.setdefault(unit, each.line) if state in ("failed", "stale", "eligible") else each.line
                if line != each.line:
                    raise self.recipe.error(
                        each,
                        f"{unit!r} would be submitted multiple times: the action {action.name!r} of line {line} "
                        "includes it as well; groups of one name must not overlap",
                    )

    def runnable(
        self, action: Action, only: Collection[str] | None = None, *, looks: bool = True
    ) -> tuple[list[str], Counter[str]]:
        """Units that the next submission would run, and counts of the other units by kind.

        ``looks``: whether those are left out whose products are there, although the index does not know them.
        """
        waits, others = waits_for(self._blocked(action)), Counter[str]()
        progress, units = self.progress[action.name], []
        again = ("open", "stale", "without_result") if action.is_matrix else ("open", "failed", "stale")
        for unit in self.states(action, only):
            if progress[unit] == "submitted":
                others["submitted already"] += 1
            elif progress[unit] not in again:
                others[progress[unit]] += 1
            elif waits(unit):
                others["waiting"] += 1
            elif looks and self.is_made(action, unit):
                others["completed"] += 1
            else:
                units.append(unit)
        return units, others

    def summary(self, action: Action, only: Collection[str] | None = None) -> tuple[dict[State, int], Cost]:
        """The number of units in each state, see ``states``, and the cost of the remaining ones."""
        states, progress, group = self.states(action, only), self.progress[action.name], action.table.group
        # A failed command is run again, and so is a trial whose result says nothing.
        over = {"completed", "failed"} if action.is_matrix else {"completed"}
        left = [unit for unit in states if progress[unit] not in over]
        if group.split_by_sort_key or action.is_matrix:
            sizes = Counter(len(names) for names in self.groups(action, left))
        else:
            size = group.maximum_size or max(len(left), 1)
            sizes = Counter({size: len(left) // size})
            sizes[len(left) % size] += 1
        remaining, measured = Cost(), self._measured(action) if left else None
        for size, count in sizes.items():
            remaining += action.table.resources.cost(size, measured) * count if size else Cost()
        return {**dict.fromkeys(get_args(State), 0), **Counter(states.values())}, remaining

    def is_older(self, action: Action, unit: str, than: datetime) -> bool:
        """Whether the record of a trial, or a product of a command, is of before a time."""
        with contextlib.suppress(OSError):
            folder = self.folder(action, unit)
            products = [folder / name for name in action.table.products]
            files = [self.record_file(action, unit)] if action.is_matrix else products
            return any(file.stat().st_mtime < than.timestamp() for file in files)
        return False

    def _due(self, action: Action, units: dict[str, Progress]) -> dict[str, Progress]:
        """What is done, but of an earlier week, is to be done again."""
        matrix = self.matrix_of(action)
        if matrix is None or matrix.table.every is None:
            return units
        since = present(matrix.table.every)
        return {
            unit: "stale" if each in ("completed", "failed") and self.is_older(action, unit, since) else each
            for unit, each in units.items()
        }

    def _measured(self, action: Action) -> timedelta | None:
        """What a trial of an action takes, by the records of some; ``None`` as long as there is none."""
        known = self.workspace.known.completed.get(action.name, {}) if action.is_matrix else {}
        times = []
        for unit in list(known)[:: max(1, len(known) // _MEASURED)]:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                times.append(float(json.loads(self.record_file(action, unit).read_bytes())["wall_clock_sec"]))
        return timedelta(seconds=statistics.fmean(times)) if times else None

    def record_file(self, action: Action, unit: str) -> Path:
        """That of a trial; raises ``FileNotFoundError``. Those of a plan that had one cell lie a folder higher."""
        folder = self.folder(action, unit)
        for file in (folder.with_suffix(".json"), folder.parent.parent / f"{folder.name}.json"):
            if file.exists():
                return file
        raise FileNotFoundError(folder.with_suffix(".json"))

    def groups(
        self, action: Action, units: Sequence[str], is_left: Callable[[str], bool] = lambda unit: True
    ) -> Iterator[list[str]]:
        """Groups of an action in the order of submission; checks group by group which units still have to run."""
        parts: dict[str | None, list[str]] = {}
        for unit in units:
            parts.setdefault(action.node_of(unit), []).append(unit)
        group, value_of = action.table.group, self.value_of(action)
        for part in parts.values():
            yield from grouped(group, part, value_of, is_left, of_trials=action.is_matrix)

    def whole_group(self, action: Action, unit: str) -> list[str]:
        """All of the group that a unit is submitted with; only the unit itself where groups need not be whole."""
        if not action.table.group.submit_whole:
            return [unit]
        if action.line not in self._whole:
            groups = whole_groups(action, self.units(action), self.value_of(action))
            self._whole[action.line] = {each: group for group in groups for each in group}
        return self._whole[action.line][unit]

    def next_wave(self, action: Action, units: Sequence[str]) -> list[str]:
        """Of trials that may run those to submit now: none as long as any of the wave before has not ended."""
        states = Counter(self.progress[action.name].values())
        if states["submitted"]:
            return []
        return next_wave(units, action.table.group.maximum_size, states["completed"] + states["failed"])

    def running(self, action: Action) -> set[str]:
        """The units of an action whose jobs run now."""
        return {
            unit
            for job in self.jobs
            if job.action == action.name
            for number, task in enumerate(job.tasks)
            if job.state(number).state == "RUNNING"
            for unit in task.units
        }

    def settle(self, job: Job, task: int, state: TaskState) -> None:
        """Note what a task of a job has left behind when it has ended."""
        action = next(iter(self.recipe.by_name.get(job.action, ())), None)
        if action is None:
            return
        with contextlib.closing(Journal(self.recipe.index)) as journal:
            settle = self._settle_trials if action.is_matrix else self._settle_commands
            settle(action, job, task, state, journal)

    def _settle_commands(self, action: Action, job: Job, task: int, state: TaskState, journal: Journal) -> None:
        """What a job was ended before, such as a cancelled one, is as it was before it was submitted."""
        if not action.table.products:
            return
        statuses, own = job.command_statuses(task), job.tasks[task]
        ended_by_its_limits = state.state in ("TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")
        takes_them_all, is_ended_one_noted = takes_all(action.table.command or ""), False
        for number, unit in enumerate(own.units):
            status, key = statuses.get(0 if takes_them_all else number), own.keys[number] if own.keys else ""
            products = [self.folder(action, unit) / name for name in action.table.products]
            is_complete = not status and all(path.exists() for path in products)
            # Else they may come from the stale command that the job had to run again.
            if is_complete and (status == 0 or all(path.stat().st_mtime >= job.created for path in products)):
                journal.add(action.name, unit, "completed", key=key)
            elif status is not None:
                journal.add(action.name, unit, "failed")
            elif ended_by_its_limits and (takes_them_all or not is_ended_one_noted):
                is_ended_one_noted = True
                journal.add(action.name, unit, "failed")

    def is_made(self, action: Action, unit: str) -> bool:
        """Whether the products of a command are there that does not have to run again for another reason."""
        return not action.is_matrix and self.progress[action.name][unit] != "stale" and self.has_products(action, unit)

    def missing_products(self, action: Action, unit: str) -> list[str]:
        """The products of a command that are not there."""
        folder = f"{self._workspace}/{unit}" if action.table.each == "directory" else str(self.folder(action, unit))
        return [name for name in action.table.products if not os.path.exists(f"{folder}/{name}")]

    def has_products(self, action: Action, unit: str) -> bool:
        """Whether a command is complete; one without products never is, as in Row."""
        return bool(action.table.products) and not self.missing_products(action, unit)

    def _settle_trials(self, action: Action, job: Job, task: int, state: TaskState, journal: Journal) -> None:
        from pytest_aorta.launch.record import logs_in, lost_record
        from pytest_aorta.workspace.trial_store import TrialStore, stamp

        started = {json.loads(line) for line in job.noted("started", task)}
        if not started:
            return
        if action.name not in self._plans:
            selection = selection_of(action, self.recipe, Selection(registry_files=self.registry_files))
            self._plans[action.name] = make_plan(selection, self.registry)
        plan, results = self._plans[action.name], self.recipe.directories / action.name
        store = TrialStore(results, stamp())
        message = f"job {job.identity(task)} ended: {state}"
        for spec in plan.trials:
            paths = plan.paths(spec)
            file = paths.file_in(results)
            if unit_of(spec) not in started:
                continue
            if not file.exists():
                lost: Any = {"phase": "launch", "kind": "signal", "message": message}
                logs = logs_in(paths.folder_in(results))
                record = lost_record(spec, lost, logs).model_copy(update={"host": None})  # it ran on none that is known
                store.write(paths, record.to_dict())
                journal.add(action.name, unit_of(spec), record.exit_status, RequestDigests(digest=request_digest(spec)))
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # of another version, or damaged
                there = json.loads(file.read_bytes())
                killed = there["exit_status"] == "workload_failed" and there["failure"]["signal"] == "SIGKILL"
                ran_out = state.state == "OUT_OF_MEMORY" and killed
                if not (is_in_doubt(there) or ran_out) or state.state == "UNKNOWN":
                    continue
                has_failed = ran_out or state.state in ("COMPLETED", "FAILED")
                there = settled(there, None if has_failed else message, name=state.state if ran_out else "")
                store.settle(paths, there)
                if (completion := trial_completion(there)) is not None:
                    journal.add(action.name, *completion)


#: Looks at directories at a time, as in Row.
THREADS = 8


class Scan:
    """A search on disk for completed units: trial files and products.

    ``accepts``: treat products of stale commands as current.
    """

    def __init__(
        self, project: Project, actions: Sequence[Action], only: Collection[str] | None = None, *, accepts: bool = False
    ) -> None:
        self._project, self._only, self._accepts = project, only, accepts
        # Actions of one name have the same products.
        self._actions = {action.name: action for action in reversed(actions)}
        self._units = {
            name: [unit for unit in project.units(action) if is_within(unit, only)]
            for name, action in self._actions.items()
        }
        self.found = Known()
        self.unreadable: list[str] = []  # trial files, with the reason
        #: The directories that are looked at, each once for all actions.
        self._directories = [name for name in project.directories if is_within(name, only)]
        #: About how many times ``run`` calls ``seen``.
        self.expected = len(self._directories) + sum(len(self._units[it.name]) for it in self._others())

    def _others(self) -> list[Action]:
        """Those that are not for single directories."""
        return [it for it in self._actions.values() if it.is_matrix or it.table.each != "directory"]

    def run(self, seen: Callable[[], object] = lambda: None, threads: int = THREADS) -> None:
        """Look for everything; ``seen`` is called for each trial file and each directory of a command."""
        for action in self._others():
            own = self.found.completed.setdefault(action.name, {})
            folder = self._project.recipe.directories / action.name
            if action.is_matrix and folder.is_dir():
                from pytest_aorta.triage.reading import Results

                for trial in (results := Results(folder, ())):
                    completion = trial_completion(trial.record)
                    if completion is not None and is_within(completion[0], self._only):
                        unit, outcome, request = completion
                        own[unit] = (outcome, request.key)
                        self.found.requests[request.key] = request
                    seen()
                self.unreadable += [f"{folder / each.file}: {each.reason}" for each in results.unreadable]
            for unit in () if action.is_matrix else self._units[action.name]:
                if self._project.has_products(action, unit):
                    own[unit] = self._completion(action, unit)
                seen()
        commands = [it for it in self._actions.values() if it not in self._others()]
        for action in commands:
            self.found.completed.setdefault(action.name, {})
        for name, there in self._project.workspace.look(self._directories, threads):
            for action in commands:
                products = action.table.products
                if products and all(it in there or ("/" in it and self._has(name, it)) for it in products):
                    self.found.completed[action.name][name] = self._completion(action, name)
            seen()

    def _has(self, directory: str, product: str) -> bool:
        return (self._project.recipe.directories / directory / product).exists()

    def _completion(self, action: Action, unit: str) -> Completion:
        before = self._project.workspace.known.completed.get(action.name, {}).get(unit)
        key = before[1] if before is not None and before[0] == "completed" else ""
        return "completed", self._project.key_of(action)(unit) if self._accepts else key

    def is_gone(self, name: str, unit: str) -> bool:
        """Whether a unit was looked for, and is not there; of a failed command, its directory."""
        action = self._actions.get(name)
        if action is None or not is_within(unit, self._only):
            return False
        if not action.is_matrix:
            known = self._project.workspace.known.completed[name][unit]
            if known is not None and known[0] == "failed":
                return not self._project.folder(action, unit).exists()
            return True
        cell, _, trial = unit.rpartition("/")
        request = self._project.requests[name].get(cell)
        if request is None:  # a cell that the recipe does not have any more, and whose files were looked for as well
            return True
        workload, folder = request.folder
        results, file = self._project.recipe.directories / name / workload, f"trial_{trial}.json"
        return not ((results / folder / file).exists() or (results / file).exists())


def planned_items(project: Project) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Name and keys (see ``command_keys``) of each item that pytest will have, trials cell by cell."""
    recipe = project.recipe
    for action in recipe.in_order():
        units = project.units(action)
        if not action.is_matrix:
            for run in command_units(recipe, action, units, project.value_of(action)):
                yield run.name, command_keys(action, recipe, run.units)
        for unit in units if action.is_matrix else ():
            cell, _, index = unit.rpartition("/")
            yield f"{identifier(action.name)}[{cell}-{index}]", [(action.name, unit)]


def command_keys(action: Action, recipe: Recipe, units: Sequence[str]) -> list[tuple[str, str]]:
    """Keys that a command shares with the items that must run on the same machine: an action and a unit.

    No keys where a unit consists of several trials, which are divided among machines.
    """
    if action.table.each in ("cell", "matrix"):
        return []
    matrix = recipe.matrix_before(action) if action.table.each == "trial" else None
    return [(matrix.name if matrix is not None else "", unit) for unit in units]
