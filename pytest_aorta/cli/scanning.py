"""What the disk says of the actions of a recipe: trial files and products."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_aorta.triage.reading import Results
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.cell_requests import Requests
from pytest_aorta.workflow.completions import trial_completion
from pytest_aorta.workflow.progress import units_of
from pytest_aorta.workflow.states import containing
from pytest_aorta.workflow.unit_folders import may_have_trial, results_folder, unit_folder
from pytest_aorta.workspace.index.cache import Index
from pytest_aorta.workspace.index.completions import CommandCompletion, Completion
from pytest_aorta.workspace.index.merging import Key


@dataclass
class Scan:
    """A search for completions; trial files are read one by one, and only their letters are kept.

    Attributes:
        recipe: whose actions are looked for.
        requests: what is asked of each cell.
        directories: of the workspace.
        actions: that are looked for.
        only: units that are looked for, with all that lie in them; ``None`` for all.
        found: completions.
        unreadable: trial files that could not be read, with the reason.
    """

    recipe: Recipe
    requests: Requests
    directories: Sequence[str]
    actions: Sequence[Action]
    only: Collection[str] | None = None
    found: Index = field(default_factory=Index)
    unreadable: list[str] = field(default_factory=list)

    @property
    def expected(self) -> int:
        """About how many times ``run`` calls ``seen``."""
        return sum(len(self._units(action)) for action in self._names().values())

    def run(self, seen: Callable[[], object] = lambda: None) -> None:
        """Look for everything; ``seen`` is called for each trial file and each directory of a command."""
        for action in self._names().values():
            for completion in self._trials(action) if action.is_matrix else self._products(action):
                if completion is not None:
                    self.found.add(completion)
                seen()

    def is_gone(self, key: Key, index: Index) -> bool:
        """Whether an entry of an index was looked for, and is not there; of a failed command, its directory."""
        action = self._names().get(key[0])
        if action is None or not self._is_wanted(key[1] if len(key) == 2 else f"{key[1]}/{key[2]}"):
            return False
        if len(key) == 2:
            if index.commands.get(action.name, {}).get(key[1]) == "failed":
                return not self._folder(action, key[1]).exists()
            return not action.is_matrix and self._outcome(action, key[1]) is None
        request = self.requests.get(action.name, {}).get(key[1])
        if request is None:  # a cell that the recipe does not have any more, and whose files were looked for as well
            return True
        return not may_have_trial(results_folder(action, self.recipe), request.folder, key[2])

    def _names(self) -> dict[str, Action]:
        """One action for each name: those of one name have the same products."""
        return {action.name: action for action in reversed(self.actions)}

    def _units(self, action: Action) -> Sequence[str]:
        units = units_of(action, self.recipe, self.requests, self.directories)
        return units if self.only is None else [unit for unit in units if self._is_wanted(unit)]

    def _is_wanted(self, unit: str) -> bool:
        return self.only is None or any(outer in self.only for outer in containing(unit))

    def _trials(self, action: Action) -> Iterator[Completion | None]:
        folder = results_folder(action, self.recipe)
        if not folder.is_dir():
            return
        results = Results(folder)
        for trial in results:
            found = trial_completion(action.name, trial.record)
            yield found if found is not None and self._is_wanted(f"{found.cell}/{found.trial}") else None
        self.unreadable += [f"{folder / each.file}: {each.reason}" for each in results.unreadable]

    def _folder(self, action: Action, unit: str) -> Path:
        return unit_folder(action, unit, self.recipe, self.requests)

    def _products(self, action: Action) -> Iterator[Completion | None]:
        for unit in self._units(action):
            yield self._outcome(action, unit)

    def _outcome(self, action: Action, unit: str) -> CommandCompletion | None:
        """That all products of a command are there; ``None`` where they are not."""
        products = action.table.products
        folder = self._folder(action, unit)
        if not products or not all(os.path.exists(os.path.join(folder, name)) for name in products):
            return None
        return CommandCompletion(action.name, unit, "completed")
