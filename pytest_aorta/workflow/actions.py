"""The actions of a recipe with all of their keys, and whether they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.recipe import ActionTable, WorkspaceTable


@dataclass(frozen=True)
class Action:
    """An action: what its table says, completed from others, and where it stands.

    Attributes:
        name: of the action; several may share one, for different directories.
        table: its keys.
        line: of its header in the recipe, counted from 1.
    """

    name: str
    table: ActionTable
    line: int

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix of trials, and not a command."""
        return self.table.workload is not None


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        file: it was read from, absolute.
        workspace: where its directories are.
        actions: in the order of the file.
    """

    file: Path
    workspace: WorkspaceTable
    actions: tuple[Action, ...]

    @property
    def root(self) -> Path:
        """The folder of the recipe, in which commands run."""
        return self.file.parent

    @property
    def directories(self) -> Path:
        """The workspace: the folder of the directories that commands work on, and of the results of trials."""
        return self.root / self.workspace.path

    @property
    def index(self) -> Path:
        """The folder of what is known of the workspace, beside the recipe."""
        return self.root / ".aorta"

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Action, ...]]:
        """Name to the actions that share it, in the order of the file."""
        found: dict[str, tuple[Action, ...]] = {}
        for action in self.actions:
            found[action.name] = (*found.get(action.name, ()), action)
        return found


def check_actions(recipe: Recipe) -> None:
    """Refuse actions that do not fit together.

    Raises:
        RecipeError: a previous action that does not exist, a circle, or actions of one name that differ in what has
            to be the same.
    """
    for action in recipe.actions:
        _check_previous(recipe, action)
        _check_namesakes(recipe, action)
    _check_circles(recipe)


def _check_previous(recipe: Recipe, action: Action) -> None:
    for name in action.table.previous_actions:
        if name not in recipe.by_name:
            known = ", ".join(recipe.by_name)
            raise _error(
                recipe, action, f"previous action {name!r} of {action.name!r} does not exist; there are {known}"
            )


def _check_namesakes(recipe: Recipe, action: Action) -> None:
    first = recipe.by_name[action.name][0]
    for key in ("previous_actions", "products", "each"):
        if getattr(action.table, key) != getattr(first.table, key):
            raise _error(
                recipe,
                action,
                f"{key} of {action.name!r} differs from that of the action of the same name in line {first.line}",
            )
    if action is not first and (action.is_matrix or first.is_matrix):
        raise _error(
            recipe,
            action,
            f"{action.name!r} is the name of an action with a workload (line {first.line}), which cannot be shared",
        )


def _check_circles(recipe: Recipe) -> None:
    graph = {name: set(same[0].table.previous_actions) for name, same in recipe.by_name.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: Sequence[str] = error.args[1]
        raise _error(
            recipe, recipe.by_name[circle[0]][0], f"actions wait for each other: {' -> '.join(reversed(circle))}"
        ) from None


def _error(recipe: Recipe, action: Action, message: str) -> RecipeError:
    return RecipeError(message, recipe.file, action.line)
