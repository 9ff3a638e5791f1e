"""What the commands of a recipe are run on: each unit by itself, or the units of a group together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_aorta.trials.conversion import identifier
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.commands import takes_all
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.groups import grouped, included
from pytest_aorta.workflow.values import Json


class Units(Protocol):
    """The units that an action may be run on."""

    @property
    def names(self) -> Sequence[str]:
        """All units, see ``workflow.states``."""

    def value_of(self, unit: str, /) -> Json:
        """The value of a unit, for JSON pointers."""

    def path_of(self, unit: str, /) -> str:
        """The folder of a unit, relative to the workspace."""


@dataclass(frozen=True)
class CommandUnit:
    """One run of a command.

    Attributes:
        action: whose command it is.
        units: that it is run on, in the order of their group; several for ``{directories}``.
    """

    action: Action
    units: tuple[str, ...]

    @property
    def name(self) -> str:
        """``compare[dir0]``; ``compare[dir0+3]`` for a group of four; ``compare[all]`` for a whole matrix."""
        cell, _, trial = self.units[0].rpartition("/")
        first = (f"{identifier(cell)}-{trial}" if cell else identifier(trial)) if self.units[0] else "all"
        more = len(self.units) - 1
        return f"{identifier(self.action.name)}[{first}{f'+{more}' if more else ''}]"


def actions_in_order(recipe: Recipe) -> list[Action]:
    """Each action after those that it follows, else in the order of the file."""
    done: dict[str, None] = {}
    left = list(recipe.by_name)
    while left:
        name = next(name for name in left if done.keys() >= set(recipe.by_name[name][0].table.previous_actions))
        left.remove(name)
        done[name] = None
    return [action for name in done for action in recipe.by_name[name]]


def command_units(recipe: Recipe, action: Action, units: Units) -> Iterator[CommandUnit]:
    """The runs of one command, in the order of their groups.

    Raises:
        RecipeError: a value is missing or cannot be compared, or an action of the same name has a unit as well.
    """
    try:
        names = included(action.table.group, units.names, units.value_of)
        groups = grouped(action.table.group, names, units.value_of)
        for other in recipe.by_name[action.name]:
            if other is action:
                break
            both = set(names) & set(included(other.table.group, units.names, units.value_of))
            if both:
                raise RecipeError(
                    f"action {action.name!r} includes directory {min(both)!r}, and so does the action of the same "
                    f"name in line {other.line}"
                )
    except RecipeError as error:
        raise RecipeError(error.message, recipe.file, action.line) from None
    for group in groups:
        if takes_all(action.table.command or ""):
            yield CommandUnit(action, tuple(group))
        else:
            yield from (CommandUnit(action, (name,)) for name in group)
