"""One recipe in one pytest process: what is complete, what keeps an item from running, and what is journaled."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_aorta.plugin.recipes.turns import TurnHooks, Turns
from pytest_aorta.plugin.xdist_roles import test_run_of
from pytest_aorta.runtime.resources.used_folders import PREFIX, UsedFolder
from pytest_aorta.workflow.directories import Directories
from pytest_aorta.workflow.states import Progress, open_for
from pytest_aorta.workspace.index.cache import Index, read_index
from pytest_aorta.workspace.index.completions import CommandCompletion, Completion, Outcome
from pytest_aorta.workspace.index.journal import Journal

if TYPE_CHECKING:
    from pytest_aorta.workflow.actions import Action, Recipe
    from pytest_aorta.workflow.command_units import Places

#: Seconds between two looks at the items of other processes.
_LOOK = 0.05

#: Seconds that a record may take from a worker to the disk.
_ON_ITS_WAY = 30.0

#: Of a trial: ended as expected, ended otherwise, ended without a result, not to be run because its cell is decided, or
#: with no record of this request.
TrialState = Literal["completed", "failed", "without_result", "not_needed", "open"]

_RUNS = pytest.StashKey[dict[Path, "RecipeRun"]]()
_TURNS = pytest.StashKey[TurnHooks]()


class RecipeRun:
    """One per recipe and pytest process."""

    def __init__(self, recipe: Recipe, turns: TurnHooks) -> None:
        self.recipe = recipe
        self.directories = Directories(recipe)
        self._turns = turns
        #: Action to unit to the node id of the item that runs it.
        self.items: dict[str, dict[str, str]] = {}
        #: Of commands on units of matrices, by action; all others are on directories.
        self.own_places: dict[str, Places] = {}
        #: What is on disk of the trials of an action, by action: of the unit of a trial.
        self.looks: dict[str, Callable[[str], TrialState]] = {}
        #: Why a matrix may not run, or ``None``, once that is known: it is the same for all of its trials.
        self._of_matrices: dict[str, str | None] = {}
        self._planned: Set[str] | None = None
        self.journal = Journal(recipe.index / "staged")

    def declare(self, action: str, units: Iterable[str], nodeid: str) -> None:
        """An item has been made for these units of an action."""
        self.items.setdefault(action, {}).update(dict.fromkeys(units, nodeid))
        self._turns.nodeids.add(nodeid)

    def places(self, action: Action) -> Places:
        """What a command is run on."""
        return self.own_places.get(action.name, self.directories)

    def folder(self, action: Action, unit: str) -> Path:
        """The folder of a unit of a command."""
        return self.recipe.directories / self.places(action).path_of(unit)

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

    def note_kept(self, action: Action, units: Iterable[str]) -> None:
        """Journal of what is complete what the index does not know: products that were copied here."""
        known = self._index.commands.get(action.name, {})
        for unit in units:
            if known.get(unit) != "completed":
                self.note(action, unit, "completed")

    @cached_property
    def _index(self) -> Index:
        """As it is when it is first asked for."""
        return read_index(self.recipe.index)

    def add(self, completion: Completion) -> None:
        """Journal a completion."""
        with contextlib.suppress(OSError):
            self.journal.add(completion)

    def planned(self, session: pytest.Session) -> Set[str]:
        """Node ids of the items of this run, which are many; those of recipes do not change once they run."""
        if self._planned is None:
            self._planned = frozenset(item.nodeid for item in session.items)
        return self._planned

    def obstacle(self, follower: Action, unit: str, planned: Set[str]) -> str | None:
        """Why an action may not run on a unit yet, once what comes before it in this run is over; ``None`` if it may.

        Args:
            follower: the action.
            unit: of it.
            planned: node ids of the items of this run.
        """
        if not follower.is_matrix:
            return self._obstacle(follower, unit, planned)
        if follower.name not in self._of_matrices:
            self._of_matrices[follower.name] = self._obstacle(follower, unit, planned)
        return self._of_matrices[follower.name]

    def _obstacle(self, follower: Action, unit: str, planned: Set[str]) -> str | None:
        for name in follower.table.previous_actions:
            action = self.recipe.by_name[name][0]
            units = self._units_before(follower, action, unit)
            for nodeid in dict.fromkeys(self.items.get(name, {}).get(each, "") for each in units):
                if nodeid in planned:
                    self._turns.turns.wait(nodeid)
            progress = self._progress(follower, action, units, planned)
            left = open_for(follower, action, progress)
            if left.touches(unit):
                done = {*progress.completed, *(progress.failed if follower.table.each in ("cell", "matrix") else ())}
                done -= {*progress.without_result}
                return self._reason(action, [each for each in units if each not in done], planned)
        return None

    def _units_before(self, follower: Action, action: Action, unit: str) -> Sequence[str]:
        """The units of ``action`` that matter for one of its follower: those that contain it, or that it contains."""
        known = self.items.get(action.name, {})
        kinds = {_kind(follower), _kind(action)}
        if follower.is_matrix or ("directory" in kinds and len(kinds) > 1):
            return list(known)
        if len(kinds) == 1:
            return [unit] if unit in known else []
        return [each for each in known if _contains(each, unit) or _contains(unit, each)]

    def _progress(self, follower: Action, action: Action, units: Sequence[str], planned: Set[str]) -> Progress:
        """Of some units of an action, by what is on disk; of its trials those that matter for a follower."""
        if not action.is_matrix:
            return Progress(units, completed={each for each in units if self.is_complete(action, each)})
        states = {each: self._state(action, each, planned) for each in units}
        by_state = {state: {unit for unit in units if states[unit] == state} for state in set(states.values())}
        without = by_state.get("without_result", set())
        if follower.is_matrix or follower.table.each != "trial":
            units = [unit for unit in units if states[unit] != "not_needed"]
        return Progress(
            units, by_state.get("completed", set()), by_state.get("failed", set()) | without, without_result=without
        )

    def _state(self, action: Action, unit: str, planned: Set[str]) -> TrialState:
        """Of a trial. Under xdist, the record of one that has just ended is on its way to the process that writes."""
        look = self.looks[action.name]
        give_up = time.monotonic() + _ON_ITS_WAY
        nodeid = self.items[action.name][unit]
        if self._several and nodeid in planned and self._turns.turns.of(nodeid) in ("passed", "failed"):
            while look(unit) == "open" and time.monotonic() < give_up:
                time.sleep(_LOOK)
        return look(unit)

    @cached_property
    def _several(self) -> bool:
        return self._turns.turns.is_shared

    def _reason(self, action: Action, units: Sequence[str], planned: Set[str]) -> str:
        """Why units of an action are not complete, in one line."""
        if not action.table.products and not action.is_matrix:
            return f"{action.name} has no products, so it is never complete; previous_actions need products"
        nodeid = self.items[action.name][units[0]]
        where = nodeid.rpartition("::")[2]
        more = f" (and {len(units) - 1} more)" if len(units) > 1 else ""
        if nodeid not in planned:
            return f"{where}{more} is not complete, and not selected in this run"
        return f"{where}{more} {_WORDS[self._turns.turns.of(nodeid)]}"


def _kind(action: Action) -> str:
    return "trial" if action.is_matrix else action.table.each


def _contains(outer: str, inner: str) -> bool:
    return not outer or inner == outer or inner.startswith(f"{outer}/")


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
        runs[recipe.file] = RecipeRun(recipe, _turn_hooks(config))
    return runs[recipe.file]


def close_recipes(config: pytest.Config) -> None:
    """Nothing more is journaled."""
    for run in config.stash.get(_RUNS, {}).values():
        run.journal.close()


def _turn_hooks(config: pytest.Config) -> TurnHooks:
    if _TURNS not in config.stash:
        run = test_run_of(config)
        used = UsedFolder(partial(shared_folder, run)) if run is not None else None
        turns = Turns(used.path if used is not None else None)
        turns.be_busy(str(os.getpid()))
        config.stash[_TURNS] = TurnHooks(turns)
        if used is not None:
            config.add_cleanup(used.close)
        config.pluginmanager.register(config.stash[_TURNS], "aorta_turns")
    return config.stash[_TURNS]


def shared_folder(name: str) -> Path:
    """A folder of all processes of an xdist run; the last one that uses it removes it."""
    path = Path(tempfile.gettempdir()) / f"{PREFIX}turns-{name}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
