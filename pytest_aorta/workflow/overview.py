"""The actions of a recipe with the states of their units, and what is left to be paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.cell_requests import Requests
from pytest_aorta.workflow.groups import grouped, included
from pytest_aorta.workflow.progress import (
    COMPLETED,
    FAILED,
    HaveChanged,
    Trials,
    matrix_before,
    previous_of,
    progress_of,
    state_counts,
    units_of,
)
from pytest_aorta.workflow.resources import Cost
from pytest_aorta.workflow.states import Open, Progress, State, classified, containing
from pytest_aorta.workflow.values import Json
from pytest_aorta.workspace.index.cache import Index
from pytest_aorta.workspace.index.decided import Decided
from pytest_aorta.workspace.index.submitted import Submitted


@dataclass(frozen=True)
class ActionSummary:
    """An action in numbers.

    Attributes:
        action: which one.
        counts: units in each state.
        remaining: cost of what is still to be run.
    """

    action: Action
    counts: Mapping[State, int]
    remaining: Cost


@dataclass(frozen=True)
class Overview:
    """What the index says of the actions of a recipe.

    Attributes:
        recipe: with the actions.
        index: what has been completed.
        requests: what is asked of each cell.
        directories: of the workspace.
        directory_value: of a directory.
        have_changed: whether source files have changed.
        submitted: what a scheduler has.
        decided: cells that need no more trials.
    """

    recipe: Recipe
    index: Index
    requests: Requests
    directories: Sequence[str]
    directory_value: Callable[[str], Json]
    have_changed: HaveChanged
    submitted: Submitted = field(default_factory=dict)
    decided: Decided = field(default_factory=dict)

    @cached_property
    def _progress(self) -> Mapping[str, Trials | Progress]:
        return progress_of(
            self.recipe, self.index, self.requests, self.directories, self.have_changed, self.submitted, self.decided
        )

    def summary(self, action: Action, only: Collection[str] | None = None) -> ActionSummary:
        """An action in numbers; ``only``: the units that count, with all that lie in them.

        Raises:
            RecipeError: a value that a condition or a sort key of the action needs is missing.
        """
        progress, group = self._progress[action.name], action.table.group
        if isinstance(progress, Trials) and only is None and not group.include and not group.split_by_sort_key:
            counts = state_counts(progress, self._previous(action))
            left = sum(counts.values()) - progress.count(COMPLETED) - progress.count(FAILED)
            return ActionSummary(action, counts, _cost(action, _sizes(left, group.maximum_size)))
        states = self.states(action, only)
        counts = {**dict.fromkeys(State, 0), **Counter(states.values())}
        remaining = [unit for unit, state in states.items() if self._is_left(progress, unit, state)]
        if group.split_by_sort_key:
            sizes = [len(names) for names in grouped(group, remaining, self.value_of(action))]
        else:
            sizes = [*_sizes(len(remaining), group.maximum_size)]
        return ActionSummary(action, counts, _cost(action, sizes))

    def states(self, action: Action, only: Collection[str] | None = None) -> dict[str, State]:
        """The state of each unit that an action includes, see ``summary``."""
        progress = self._progress[action.name]
        named = progress.progress() if isinstance(progress, Trials) else progress
        states = classified(named, self._previous(action))
        units = [unit for unit in self.units(action) if unit in states]  # others are not needed
        if only is not None:
            units = [unit for unit in units if any(outer in only for outer in containing(unit))]
        return {unit: states[unit] for unit in included(action.table.group, units, self.value_of(action))}

    def units(self, action: Action) -> Sequence[str]:
        """All units of an action, also those that it does not include."""
        return units_of(action, self.recipe, self.requests, self.directories)

    def value_of(self, action: Action) -> Callable[[str], Json]:
        """Gives the values of the units of an action."""
        matrix = action if action.is_matrix else matrix_before(action, self.recipe)
        if matrix is None or (not action.is_matrix and action.table.each == "directory"):
            return self.directory_value
        cells = self.requests[matrix.name]
        table = matrix.table

        def value(unit: str) -> Json:
            cell, _, trial = unit.partition("/")
            if not cell:
                return {"workload": table.workload, "config": dict(table.config)}
            found = dict(cells[cell].value)
            return {**found, "trial": int(trial)} if trial else found

        return value

    def groups(self, action: Action, units: Sequence[str]) -> list[list[str]]:
        """Units of an action as its jobs have them."""
        return grouped(action.table.group, units, self.value_of(action))

    def _previous(self, action: Action) -> list[Open]:
        return previous_of(action, self.recipe, self._progress)

    def _is_left(self, progress: Trials | Progress, unit: str, state: State) -> bool:
        """Whether a unit is still to be run: so is a failed command, and a trial whose result says nothing."""
        if state is State.COMPLETED:
            return False
        if state is not State.FAILED or isinstance(progress, Progress):
            return True
        cell, _, trial = unit.partition("/")
        return progress.cells[cell][int(trial)] != FAILED


def _sizes(count: int, maximum: int | None) -> Iterator[int]:
    """Sizes of the groups of so many units."""
    while count:
        size = min(count, maximum or count)
        yield size
        count -= size


def _cost(action: Action, sizes: Iterable[int]) -> Cost:
    total = Cost()
    for size, groups in Counter(sizes).items():
        cost = action.table.resources.cost(size)
        total += Cost(cost.cpu_hours * groups, cost.gpu_hours * groups)
    return total
