"""What the commands of a recipe are run on: each directory by itself, or the directories of a group together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_aorta.trials.names import identifier
from pytest_aorta.workflow.actions import Action, Recipe
from pytest_aorta.workflow.commands import takes_all
from pytest_aorta.workflow.directories import Directories
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.groups import grouped, included


@dataclass(frozen=True)
class CommandUnit:
    """One run of a command.

    Attributes:
        action: whose command it is.
        directories: that it is run on, in the order of their group; several for ``{directories}``.
    """

    action: Action
    directories: tuple[str, ...]

    @property
    def name(self) -> str:
        """``compare[dir0]``; ``compare[dir0+3]`` for a group of four."""
        more = len(self.directories) - 1
        return f"{identifier(self.action.name)}[{identifier(self.directories[0])}{f'+{more}' if more else ''}]"


def actions_in_order(recipe: Recipe) -> list[Action]:
    """Each action after those that it follows, else in the order of the file."""
    done: dict[str, None] = {}
    left = list(recipe.by_name)
    while left:
        name = next(name for name in left if done.keys() >= set(recipe.by_name[name][0].table.previous_actions))
        left.remove(name)
        done[name] = None
    return [action for name in done for action in recipe.by_name[name]]


def command_units(recipe: Recipe, action: Action, directories: Directories) -> Iterator[CommandUnit]:
    """The runs of one command on directories of the workspace, in the order of their groups.

    Raises:
        RecipeError: a value is missing or cannot be compared, or an action of the same name has a directory as well.
    """
    names = included(action.table.group, directories.names, directories.value_of)
    for other in recipe.by_name[action.name]:
        if other is action:
            break
        both = set(names) & set(included(other.table.group, directories.names, directories.value_of))
        if both:
            raise RecipeError(
                f"action {action.name!r} includes directory {min(both)!r}, and so does the action of the same name in "
                f"line {other.line}",
                recipe.file,
                action.line,
            )
    try:
        groups = grouped(action.table.group, names, directories.value_of)
    except RecipeError as error:
        raise RecipeError(error.message, recipe.file, action.line) from None
    for group in groups:
        if takes_all(action.table.command or ""):
            yield CommandUnit(action, tuple(group))
        else:
            yield from (CommandUnit(action, (name,)) for name in group)
