"""Options that choose what of a recipe is shown: states, and names of directories."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pytest_aorta.common.terminal_text import one_line
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import TypedCondition
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Action

#: The states, in the order of columns, and their colors.
COLORS = {
    "completed": "green",
    "failed": "red",
    "stale": "magenta",
    "submitted": "yellow",
    "eligible": "blue",
    "waiting": "cyan",
}

_Command = TypeVar("_Command", bound=Callable[..., Any])


def state_options(what: str) -> Callable[[_Command], _Command]:
    """A flag for each state; ``what``: for the help, with the state's name in braces."""

    def add(command: _Command) -> _Command:
        for name in reversed(COLORS):
            command = click.option(f"--{name}", is_flag=True, help=what.format(name))(command)
        return command

    return add


def chosen_states(flags: dict[str, bool]) -> list[str]:
    """The states whose flags are set; all where none is."""
    return [name for name in COLORS if flags[name]] or list(COLORS)


def chosen_units(names: tuple[str, ...], project: Project) -> set[str] | None:
    """The units with these names, or in them; ``-`` stands for the lines of stdin. ``None`` where no name is given.

    A name that nothing has is warned of.
    """
    if not names:
        return None
    found: set[str] = set()
    for name in names:
        found.update(line.rstrip("\n") for line in sys.stdin) if name == "-" else found.add(name.rstrip("/"))
    known = set(project.directories)
    for request in project.requests.values():
        known.update(request)
    for name in sorted(found):
        if name not in known and name.rpartition("/")[0] not in known:
            click.echo(f"warning: {one_line(name)!r} not found in the workspace", err=True)
    return found


def where_option(command: _Command) -> _Command:
    """The option ``--where``, as ``where``."""
    return click.option(
        "--where",
        multiple=True,
        metavar="CONDITION",
        help="Only what meets it, such as '/config/lr<0.1' or /environment==local; repeat for several.",
    )(command)


def typed_conditions(texts: Sequence[str]) -> list[TypedCondition]:
    """The conditions of ``--where``.

    Raises:
        RequestError: one of them is none.
    """
    if not texts:
        return []
    from pytest_aorta.common.conditions import parse_condition

    found = []
    for text in texts:
        try:
            found.append(parse_condition(text))
        except ValueError as error:
            raise RequestError(f"--where: {text!r} is not valid; expected {error}") from None
    return found


def units_where(
    project: Project, actions: Sequence[Action], only: set[str] | None, conditions: Sequence[TypedCondition]
) -> dict[str, set[str]] | None:
    """By action, the units that meet all conditions, among those with the names ``only``; ``None`` without conditions.

    Raises:
        RequestError: no unit of any action has an element that a condition is about.
    """
    if not conditions:
        return None
    from pytest_aorta.common.conditions import selected
    from pytest_aorta.workflow.states import containing

    units = [
        (action, unit)
        for action in actions
        for unit in project.units(action)
        if only is None or any(outer in only for outer in containing(unit))
    ]
    found: dict[str, set[str]] = {action.name: set() for action in actions}
    for action, unit in selected(units, lambda each: project.value_of(each[0])(each[1]), conditions, "--where"):
        found[action.name].add(unit)
    return found
