"""One recipe in one pytest process: what is complete, what keeps an item from running, and what is journaled."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_aorta.common.texts import printable
from pytest_aorta.plugin.recipes.in_job import StartedTrials
from pytest_aorta.plugin.recipes.item_states import ItemStateHooks, ItemStates
from pytest_aorta.plugin.roles import test_run_of
from pytest_aorta.runtime.resources.used_folders import PREFIX, UsedFolder
from pytest_aorta.workflow.directories import directories_of
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.reading import read_recipe
from pytest_aorta.workflow.states import Progress, containing, open_for
from pytest_aorta.workspace.index.cache import Index, read_index
from pytest_aorta.workspace.index.completions import CommandCompletion, Completion, Outcome
from pytest_aorta.workspace.index.journal import Journal

if TYPE_CHECKING:
    from pytest_aorta.clusters.tables import Launcher
    from pytest_aorta.workflow.actions import Action, Recipe
    from pytest_aorta.workflow.command_units import Units

#: The cluster that is this host, by Row's name.
HERE = "none"

#: Seconds between two readings of the trial file of another process.
_INTERVAL = 0.05

#: Seconds that a record may take from an xdist worker to the disk.
_WRITTEN_WITHIN = 30.0

#: Of a trial: ended as expected, ended otherwise, ended without a result, not to be run because its cell is decided, or
#: with no record of this request.
TrialState = Literal["completed", "failed", "without_result", "not_needed", "open"]

_RUNS = pytest.StashKey[dict[Path, "RecipeRun"]]()
_ITEM_STATES = pytest.StashKey[ItemStateHooks]()


class RecipeRun:
    """One per recipe and pytest process."""

    def __init__(self, recipe: Recipe, item_states: ItemStateHooks, warn: Callable[[str], object]) -> None:
        self.recipe = recipe
        self._warn = warn
        self._is_unwritable = False
        self.directories = directories_of(recipe, cached=False)
        self._item_states = item_states
        #: Action to unit to the node id of the item that runs it.
        self.items: dict[str, dict[str, str]] = {}
        #: Of commands on units of matrices, by action; all others are on directories.
        self.matrix_units: dict[str, Units] = {}
        #: By action with a workload: gives the state of a trial, by its unit.
        self.trial_states: dict[str, Callable[[str], TrialState]] = {}
        #: Why a matrix may not run, or ``None``, once that is known: it is the same for all of its trials.
        self._of_matrices: dict[str, str | None] = {}
        self._within: dict[str, dict[str, list[str]]] = {}
        self.journal = Journal(recipe.index / "staged")
        self.started = StartedTrials()
        self._launchers: Mapping[str, Launcher] | None = None

    def declare(self, action: str, units: Iterable[str], nodeid: str) -> None:
        """An item has been made for these units of an action."""
        self.items.setdefault(action, {}).update(dict.fromkeys(units, nodeid))
        self._item_states.nodeids.add(nodeid)

    def units_of(self, action: Action) -> Units:
        """What a command is run on."""
        return self.matrix_units.get(action.name, self.directories)

    def folder(self, action: Action, unit: str) -> Path:
        """The folder of a unit of a command."""
        return self.recipe.directories / self.units_of(action).path_of(unit)

    def prefix(self, action: Action, directories: int) -> str:
        """What the launchers of a command put before it on this host.

        Raises:
            RecipeError: one is unknown, or none starts the processes.
        """
        if not action.table.launchers:
            return ""
        from pytest_aorta.clusters.configuration import Configuration
        from pytest_aorta.clusters.launchers import launcher_prefix

        if self._launchers is None:
            self._launchers = Configuration.of_project(self.recipe.root).launchers_on(HERE)
        try:
            return launcher_prefix(action, directories, self._launchers, needs_one=True)
        except RecipeError as error:
            raise RecipeError(error.message, self.recipe.file, action.line) from None

    def missing(self, action: Action, unit: str) -> list[str]:
        """The products of a command that are not there."""
        folder = self.folder(action, unit)
        return [name for name in action.table.products if not (folder / name).exists()]

    def is_complete(self, action: Action, unit: str) -> bool:
        """Whether a command need not run; one without products always does, as in Row."""
        return bool(action.table.products) and not self.missing(action, unit)

    def note(self, action: Action, directory: str, outcome: Outcome | None) -> None:
        """Journal what has become of a directory; where that cannot be written, ``pytest-aorta scan`` finds it."""
        self.add(CommandCompletion(action.name, directory, outcome))

    def add(self, completion: Completion) -> None:
        """Journal a completion; where that is not possible, the run goes on, and warns of it once."""
        try:
            self.journal.add(completion)
        except OSError as error:
            if not self._is_unwritable:
                self._is_unwritable = True
                self._warn(
                    f"{self.recipe.index}: what this run completes cannot be noted ({error.strerror}); "
                    "pytest-aorta scan finds it later"
                )

    def note_kept(self, action: Action, unit: str) -> None:
        """Journal that a unit is complete, unless the index says so: a killed run has made its products."""
        if self._indexed.commands.get(action.name, {}).get(unit) != "completed":
            self.note(action, unit, "completed")

    @cached_property
    def _indexed(self) -> Index:
        return read_index(self.recipe.index)

    def obstacle(self, follower: Action, unit: str) -> str | None:
        """Why an action may not run on a unit, once what comes before it in this run is over; ``None`` if it may."""
        if not follower.is_matrix:
            return self._obstacle(follower, unit)
        if follower.name not in self._of_matrices:
            self._of_matrices[follower.name] = self._obstacle(follower, unit)
        return self._of_matrices[follower.name]

    def _obstacle(self, follower: Action, unit: str) -> str | None:
        for name in follower.table.previous_actions:
            action = self.recipe.by_name[name][0]
            units = self._units_before(follower, action, unit)
            for nodeid in dict.fromkeys(self.items.get(name, {}).get(each, "") for each in units):
                if nodeid in self._selected:
                    self._item_states.states.wait(nodeid)
            progress = self._progress(follower, action, units)
            left = open_for(follower, action, progress)
            if left.touches(unit):
                done = {*progress.completed, *(progress.failed if follower.table.each in ("cell", "matrix") else ())}
                done -= {*progress.without_result}
                return self._reason(action, [each for each in units if each not in done])
        return None

    def _units_before(self, follower: Action, action: Action, unit: str) -> Sequence[str]:
        """The units of ``action`` that matter for one of its follower: those that contain it, or that it contains."""
        known = self.items.get(action.name, {})
        kinds = {_kind(follower), _kind(action)}
        if follower.is_matrix or ("directory" in kinds and len(kinds) > 1):
            return list(known)
        if len(kinds) == 1:
            return [unit] if unit in known else []
        contained = self._units_within(action).get(unit, ())
        return list(contained) or [outer for outer in containing(unit) if outer in known]

    def _units_within(self, action: Action) -> Mapping[str, Sequence[str]]:
        """The units of an action by each unit that contains them, themselves included."""
        if action.name not in self._within:
            within = self._within[action.name] = {}
            for unit in self.items.get(action.name, ()):
                for outer in containing(unit):
                    within.setdefault(outer, []).append(unit)
        return self._within[action.name]

    def _progress(self, follower: Action, action: Action, units: Sequence[str]) -> Progress:
        """Of some units of an action, by what is on disk; of its trials those that matter for a follower."""
        if not action.is_matrix:
            return Progress(units, completed={each for each in units if self.is_complete(action, each)})
        states = {each: self._state(action, each) for each in units}
        by_state = {state: {unit for unit in units if states[unit] == state} for state in set(states.values())}
        without = by_state.get("without_result", set())
        if follower.is_matrix or follower.table.each != "trial":
            units = [unit for unit in units if states[unit] != "not_needed"]
        return Progress(
            units, by_state.get("completed", set()), by_state.get("failed", set()) | without, without_result=without
        )

    def _state(self, action: Action, unit: str) -> TrialState:
        """Of a trial. Under xdist, the controller may not have written the record of one that has just ended."""
        state_of = self.trial_states[action.name]
        give_up = time.monotonic() + _WRITTEN_WITHIN
        nodeid = self.items[action.name][unit]
        if (
            self._item_states.states.is_shared
            and nodeid in self._selected
            and self._item_states.states.of(nodeid) in ("passed", "failed")
        ):
            while state_of(unit) == "open" and time.monotonic() < give_up:
                time.sleep(_INTERVAL)
        return state_of(unit)

    @property
    def _selected(self) -> Collection[str]:
        return self._item_states.selected

    def _reason(self, action: Action, units: Sequence[str]) -> str:
        """Why units of an action are not complete, in one line."""
        if not action.table.products and not action.is_matrix:
            return f"{action.name} has no products, so it is never complete; previous_actions need products"
        nodeid = self.items[action.name][units[0]]
        where = nodeid.rpartition("::")[2]
        more = f" (and {len(units) - 1} more)" if len(units) > 1 else ""
        if nodeid not in self._selected:
            return f"{where}{more} is not complete, and not selected in this run"
        return f"{where}{more} {_WORDS[self._item_states.states.of(nodeid)]}"


def _kind(action: Action) -> str:
    return "trial" if action.is_matrix else action.table.each


_WORDS = {
    "to come": "is not complete; in this run it comes later",
    "running": "is not complete; it runs now",
    "passed": "is not complete, although it has passed",
    "failed": "failed",
    "skipped": "was skipped, and is not complete",
    "lost": "ended with its process",
}


def recipe_run(config: pytest.Config, recipe: Recipe) -> RecipeRun:
    """The run of a recipe in this process, made when it is first asked for."""
    runs = config.stash.setdefault(_RUNS, {})
    if recipe.file not in runs:

        def warn(text: str) -> None:
            with contextlib.suppress(pytest.PytestWarning):  # as an error, it would end the session
                config.issue_config_time_warning(pytest.PytestWarning(printable(text)), stacklevel=2)

        runs[recipe.file] = RecipeRun(recipe, _item_state_hooks(config), warn)
    return runs[recipe.file]


def recipe_run_of(config: pytest.Config, file: Path) -> RecipeRun:
    """The run of the recipe in a file, which is read when it is first asked for.

    Raises:
        RecipeError: the recipe cannot be read, or is not valid.
    """
    run = config.stash.setdefault(_RUNS, {}).get(file)
    return recipe_run(config, read_recipe(file)) if run is None else run


def close_recipes(config: pytest.Config) -> None:
    """Nothing more is journaled."""
    for run in config.stash.get(_RUNS, {}).values():
        run.journal.close()


def _item_state_hooks(config: pytest.Config) -> ItemStateHooks:
    if _ITEM_STATES not in config.stash:
        run = test_run_of(config)
        used = UsedFolder(partial(shared_folder, run)) if run is not None else None
        states = ItemStates(used.path if used is not None else None)
        config.stash[_ITEM_STATES] = ItemStateHooks(states)
        if used is not None:
            config.add_cleanup(used.close)
        config.pluginmanager.register(config.stash[_ITEM_STATES], "aorta_item_states")
    return config.stash[_ITEM_STATES]


def shared_folder(name: str) -> Path:
    """A folder of all processes of an xdist run; the last one that uses it removes it."""
    path = Path(tempfile.gettempdir()) / f"{PREFIX}items-{name}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
