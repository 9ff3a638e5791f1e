"""One recipe in one pytest process: what is complete, what keeps an item from running, and what is journaled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.plugin.recipes.turns import TurnHooks, Turns
from pytest_aorta.plugin.xdist_roles import decisions_of_controller, is_worker
from pytest_aorta.workflow.directories import Directories
from pytest_aorta.workflow.states import Progress, open_for
from pytest_aorta.workspace.index.completions import CommandCompletion, Completion, Outcome
from pytest_aorta.workspace.index.journal import Journal

if TYPE_CHECKING:
    from pytest_aorta.workflow.actions import Action, Recipe

#: Seconds between two looks at the items of other processes.
_LOOK = 0.05

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
        self.journal = Journal(recipe.index / "staged")

    def declare(self, action: str, units: Iterable[str], nodeid: str) -> None:
        """An item has been made for these units of an action."""
        self.items.setdefault(action, {}).update(dict.fromkeys(units, nodeid))
        self._turns.nodeids.add(nodeid)

    def missing(self, action: Action, directory: str) -> list[str]:
        """The products of a command that are not there."""
        folder = self.recipe.directories / directory
        return [name for name in action.table.products if not (folder / name).exists()]

    def is_complete(self, action: Action, directory: str) -> bool:
        """Whether a command need not run; one without products always does, as in Row."""
        return bool(action.table.products) and not self.missing(action, directory)

    def note(self, action: Action, directory: str, outcome: Outcome | None) -> None:
        """Journal what has become of a directory; where that cannot be written, ``pytest-aorta scan`` finds it."""
        self.add(CommandCompletion(action.name, directory, outcome))

    def add(self, completion: Completion) -> None:
        """Journal a completion."""
        with contextlib.suppress(OSError):
            self.journal.add(completion)

    def obstacle(self, follower: Action, unit: str, planned: set[str]) -> str | None:
        """Why an action may not run on a unit yet, once what comes before it in this run is over; ``None`` if it may.

        Args:
            follower: the action.
            unit: of it.
            planned: node ids of the items of this run.
        """
        for name in follower.table.previous_actions:
            action = self.recipe.by_name[name][0]
            units = self._units_before(follower, action, unit)
            for nodeid in dict.fromkeys(self.items.get(name, {}).get(each, "") for each in units):
                if nodeid in planned:
                    self._wait(nodeid)
            progress = Progress(units, completed={each for each in units if self.is_complete(action, each)})
            if open_for(follower, action, progress).touches(unit):
                left = [each for each in units if each not in progress.completed]
                return self._reason(action, left, planned)
        return None

    def _units_before(self, follower: Action, action: Action, unit: str) -> Sequence[str]:
        """The units of ``action`` that may matter for a unit of its follower."""
        known = self.items.get(action.name, {})
        if not follower.is_matrix and not action.is_matrix and follower.table.each == action.table.each:
            return [unit] if unit in known else []
        return list(known)

    def _wait(self, nodeid: str) -> None:
        """Until an item that another process runs is over; it comes before in the order of all items."""
        while self._turns.turns.of(nodeid) in ("to come", "running") and self._several:
            time.sleep(_LOOK)

    @cached_property
    def _several(self) -> bool:
        return self._turns.turns.is_shared

    def _reason(self, action: Action, units: Sequence[str], planned: set[str]) -> str:
        """Why units of an action are not complete, in one line."""
        if not action.table.products and not action.is_matrix:
            return f"{action.name} has no products, so it is never complete; previous_actions need products"
        nodeid = self.items[action.name][units[0]]
        where = nodeid.rpartition("::")[2]
        more = f" (and {len(units) - 1} more)" if len(units) > 1 else ""
        if nodeid not in planned:
            return f"{where}{more} is not complete, and not selected in this run"
        return f"{where}{more} {_WORDS[self._turns.turns.of(nodeid)]}"


_WORDS = {
    "to come": "is not complete; in this run it comes later",
    "running": "is not complete; it runs now",
    "passed": "has passed, but its products are not there any more",
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
        shared = decisions_of_controller(config).get("folder") if is_worker(config) else None
        config.stash[_TURNS] = TurnHooks(Turns(Path(shared) if shared else None))
        config.pluginmanager.register(config.stash[_TURNS], "aorta_turns")
    return config.stash[_TURNS]
