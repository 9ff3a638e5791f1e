"""What several commands share: the recipe around the working directory, choices of what is shown, columns of text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.cells import cell_len

from pytest_aorta.common.texts import one_line
from pytest_aorta.settings import RequestError, share
from pytest_aorta.triage import SPEED_MARGIN, Margin, margin

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import TypedCondition
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Action, Recipe


#: Where pytest looks for registry files that the command line does not name.
_REGISTRY_VARIABLE = "PYTEST_AORTA_REGISTRY_FILE"

_Read = TypeVar("_Read")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def names_argument(metavar: str) -> Callable[[_Command], _Command]:
    """The argument ``names``: directories, cells and trials."""
    return click.argument("names", nargs=-1, metavar=metavar, shell_complete=_complete_names)


def action_option(text: str, default: str | None = "*") -> Callable[[_Command], _Command]:
    """The option ``--action``."""
    return click.option(
        "-a", "--action", default=default, metavar="PATTERN", help=text, shell_complete=_complete_actions
    )


def _complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from pytest_aorta.workflow.project import Project

    try:
        project = Project(open_recipe())
        names = [*project.directories, *(cell for cells in project.requests.values() for cell in cells)]
    except RequestError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _complete_actions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    try:
        return [name for name in open_recipe().by_name if name.startswith(incomplete)]
    except RequestError:
        return []


#: In the context's ``meta``: the cluster whose scheduler is asked.
_CLUSTER = "pytest_aorta.cluster"


def cluster_option(command: _Command) -> _Command:
    """The option ``--cluster``: see ``asked_cluster``."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        context.meta[_CLUSTER] = value

    return click.option(
        "--cluster",
        "asked_cluster",
        metavar="NAME",
        expose_value=False,
        callback=keep,
        envvar=["PYTEST_AORTA_CLUSTER", "ROW_CLUSTER"],
        help="Ask the scheduler of this cluster only; of none: no scheduler.",
    )(command)


def asked_cluster() -> str | None:
    """What ``--cluster`` of the running command says."""
    found: str | None = click.get_current_context().meta.get(_CLUSTER)
    return found


def set_color(context: click.Context, parameter: click.Parameter, value: str) -> None:
    context.color = {"auto": None, "always": True, "never": False}[value]


def registry_option(command: _Command) -> _Command:
    """The option ``--registry-file``, as ``files``."""
    return click.option(
        "--registry-file",
        "files",
        multiple=True,
        metavar="FILE",
        help=f"Registry file with more names, as pytest's --aorta-registry-file; repeat for several (or "
        f"${_REGISTRY_VARIABLE}).",
    )(command)


def registry_files(files: Sequence[str]) -> tuple[str, ...]:
    """The registry files of the command line, or else those of the variable."""
    return tuple(files) or tuple(filter(None, os.environ.get(_REGISTRY_VARIABLE, "").split(";")))


def open_recipe(file: Path | None = None) -> Recipe:
    """The recipe in a file, or that of the working directory or the nearest one above; raises ``RecipeError``."""
    from pytest_aorta.workflow.finding import find_recipe

    file = find_recipe(Path.cwd()) if file is None else file.absolute()  # before the models are imported
    from pytest_aorta.workflow.recipe import read_recipe

    return read_recipe(file)


def open_project(files: Sequence[str] = ()) -> Project:
    """The project of the working directory; what may be out of date in it is warned of."""
    recipe = open_recipe()
    from pytest_aorta.workflow.project import Project

    project = Project.opened(recipe, registry_files(files), asked_cluster())
    warn_of(project.problems)
    return project


def warn_of(problems: Sequence[str]) -> None:
    """Each is a line on stderr."""
    for problem in problems:
        click.echo(f"warning: {one_line(problem)}", err=True)


#: The states, in the order of columns, and their colors.
COLORS = {
    "completed": "green",
    "failed": "red",
    "stale": "magenta",
    "submitted": "yellow",
    "eligible": "blue",
    "waiting": "cyan",
}


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


def names_from_stdin(names: Sequence[str]) -> list[str]:
    """Names, with the lines of stdin in the place of ``-``."""
    lines = [line.rstrip("\n") for line in sys.stdin] if "-" in names else []
    return [each for name in names for each in (lines if name == "-" else [name])]


def is_chosen(state: str, states: Sequence[str], action: Action) -> bool:
    """Whether flags of states show a unit; ``--eligible`` shows all that the next submission would send."""
    again = state == "stale" or (state == "failed" and not action.is_matrix)
    return state in states or ("eligible" in states and again)


def chosen_units(names: tuple[str, ...], project: Project) -> set[str] | None:
    """The units with these names, or in them; ``-`` stands for the lines of stdin. ``None`` where no name is given.

    A name that nothing has is warned of.
    """
    if not names:
        return None
    found = {name.rstrip("/") for name in names_from_stdin(names)}
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


def speed_margin_option(command: _Command) -> _Command:
    """The option ``--speed-margin``, as ``speed_margin``: a share, or ``None``."""
    what = f"Changes of the step times that are none, such as 5% or 0.05 (default {SPEED_MARGIN:.0%})."
    return click.option(
        "--speed-margin", callback=lambda _ctx, _parameter, value: _read(share, value), metavar="P", help=what
    )(command)


def typed_conditions(texts: Sequence[str]) -> list[TypedCondition]:
    """The conditions of ``--where``."""
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
    """By action, the units among ``only`` that meet all conditions; ``None`` without conditions."""
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


def columns(
    rows: Sequence[Sequence[str]], right: Sequence[int] = (), colors: Mapping[int, str] | None = None
) -> list[str]:
    """Lines with aligned columns, two spaces between them; columns that are empty in all rows are left out.

    Not rich's Table, which wraps lines and takes seconds for ten thousand trials. Texts are made printable, and are one
    line each. ``right``: columns that are aligned to the right. ``colors``: of
    columns below the first row, where they are not 0.
    """
    shown = [[one_line(text) for text in row] for row in rows]
    kept = [index for index, column in enumerate(zip(*shown, strict=True)) if any(column)]
    widths = {index: max(cell_len(row[index]) for row in shown) for index in kept}

    def padded(text: str, index: int) -> str:
        padding = " " * (widths[index] - cell_len(text))
        return padding + text if index in right else text + padding

    def cell(row: Sequence[str], index: int) -> str:
        color = (colors or {}).get(index)
        text = padded(row[index], index)
        return text if color is None or row is shown[0] or row[index] == "0" else click.style(text, fg=color)

    return ["  ".join(cell(row, index) for index in kept).rstrip() for row in shown]


def read_margin(context: click.Context, parameter: click.Parameter, value: str | None) -> Margin | None:
    """What ``--margin`` says."""
    return _read(margin, value)


def _read(reader: Callable[[str], _Read], value: str | None) -> _Read | None:
    """What an option says, by the reader of its setting.

    Raises:
        click.BadParameter: naming what would be valid.
    """
    try:
        return None if value is None else reader(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: expected {error}") from None
