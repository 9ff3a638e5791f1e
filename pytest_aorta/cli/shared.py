"""Shared by commands: options, the project of the working directory, choice of units, tables."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.cells import cell_len

from pytest_aorta.common.conditions import TypedCondition, parse_condition, selected
from pytest_aorta.common.texts import one_line
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.workflow.project import Project, State
    from pytest_aorta.workflow.recipe import Action, Recipe

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _WrongUse(click.UsageError):
    exit_code = 4


class AnswersByStatus(click.Command):
    """A command whose exit status 1 is an answer: wrong use ends with 4, as that of pytest does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _WrongUse(error.format_message(), ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RequestError as error:
            click.echo(f"Error: {error}", err=True)
            raise click.exceptions.Exit(4) from None


def names_argument(metavar: str) -> Callable[[_Command], _Command]:
    """The argument ``names``: directories, cells and trials."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from pytest_aorta.workflow.project import Project

        try:
            project = Project(open_recipe())
            names = [*project.directories, *(cell for cells in project.requests.values() for cell in cells)]
        except RequestError:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return click.argument("names", nargs=-1, metavar=metavar, shell_complete=complete)


def action_option(text: str, default: str | None = "*") -> Callable[[_Command], _Command]:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [name for name in open_recipe().by_name if name.startswith(incomplete)]
        except RequestError:
            return []

    return click.option("-a", "--action", default=default, metavar="PATTERN", help=text, shell_complete=complete)


def cluster_option(
    text: str = "Ask only the scheduler of this cluster; none: ask no scheduler.",
) -> Callable[[_Command], _Command]:
    return click.option("--cluster", metavar="NAME", envvar=["PYTEST_AORTA_CLUSTER", "ROW_CLUSTER"], help=text)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")

recipe_option = click.option(
    "--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Another recipe than aorta.toml."
)

#: Passes ``files``.
registry_option = click.option(
    "--registry-file",
    "files",
    multiple=True,
    metavar="FILE",
    callback=lambda context, parameter, files: (
        files or tuple(filter(None, os.environ.get("PYTEST_AORTA_REGISTRY_FILE", "").split(";")))
    ),
    help="Registry file with more names, as pytest's --aorta-registry-file; repeatable (or "
    "$PYTEST_AORTA_REGISTRY_FILE).",
)


def _conditions(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[TypedCondition, ...]:
    conditions = []
    for text in texts:
        try:
            conditions.append(parse_condition(text))
        except ValueError as error:
            raise RequestError(f"--where: {text!r} is not valid; expected {error}") from None
    return tuple(conditions)


#: Passes ``where``: conditions.
where_option = click.option(
    "--where",
    multiple=True,
    callback=_conditions,
    metavar="CONDITION",
    help="Only units that meet it, such as '/config/lr<0.1' or /environment==local; repeatable.",
)

#: The states, in the order of columns, and their colors.
COLORS: dict[State, str] = {
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


def is_chosen(state: State, flags: Mapping[str, bool], action: Action) -> bool:
    """Whether flags select a unit in this state; ``--eligible`` selects all that the next submission would send."""
    again = state == "stale" or (state == "failed" and not action.is_matrix)
    return not any(flags.values()) or flags[state] or (flags["eligible"] and again)


def open_recipe(file: Path | None = None) -> Recipe:
    """The recipe in a file, by default in the working directory or the nearest one above; raises ``RecipeError``."""
    from pytest_aorta.workflow.finding import find_recipe
    from pytest_aorta.workflow.recipe import read_recipe

    return read_recipe(find_recipe(Path.cwd()) if file is None else file.absolute())


def open_project(
    files: Sequence[str], cluster: str | None = None, *, rebuilds: bool = True, only: Sequence[str] = ()
) -> Project:
    """The project of the working directory. Prints warnings about what may be out of date.

    ``rebuilds``: rebuild a damaged index. ``only``: see ``Project``.
    """
    from pytest_aorta.workflow.project import Project

    project = Project(open_recipe(), files, only=only)
    project.synchronize_jobs(cluster)
    if rebuilds:
        project.rebuild()
    warn_of(project.problems)
    return project


def project_options(*, rebuilds: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of ``open_project``, and pass its result as ``project``."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def opened(cluster: str | None, files: tuple[str, ...], **given: Any) -> None:
            if "names" in given:
                given["names"] = tuple(names_from_stdin(given["names"]))
            only = given.get("names", ())
            command(project=open_project(files, cluster, rebuilds=rebuilds, only=only), **given)

        return cluster_option()(registry_option(opened))

    return add


def warn_of(problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"warning: {one_line(problem)}", err=True)


def names_from_stdin(names: Sequence[str]) -> list[str]:
    """Names, with the lines of stdin in the place of ``-``."""
    lines = [line.rstrip("\n") for line in sys.stdin] if "-" in names else []
    return [each for name in names for each in (lines if name == "-" else [name])]


def chosen_units(names: Sequence[str], project: Project) -> set[str] | None:
    """The named units and those within them; ``None`` without names. Warns of names that do not exist."""
    if not names:
        return None
    units = {name.rstrip("/") for name in names}
    known = {*project.directories, *(cell for cells in project.requests.values() for cell in cells)}
    for name in sorted(units):
        if name not in known and name.rpartition("/")[0] not in known:
            click.echo(f"warning: {one_line(name)!r} not found in workspace", err=True)
    return units


def units_where(
    project: Project, actions: Sequence[Action], only: set[str] | None, conditions: Sequence[TypedCondition]
) -> Mapping[str, set[str] | None]:
    """For each action, the units among ``only`` that meet all conditions."""
    if not conditions:
        return {action.name: only for action in actions}
    from pytest_aorta.workflow.project import is_within

    units = [(action, unit) for action in actions for unit in project.units(action) if is_within(unit, only)]
    chosen: dict[str, set[str]] = {action.name: set() for action in actions}
    for action, unit in selected(units, lambda each: project.value_of(each[0])(each[1]), conditions, "--where"):
        chosen[action.name].add(unit)
    return {**chosen}


def columns(
    rows: Sequence[Sequence[str]], right: Sequence[int] = (), colors: Mapping[int, str] | None = None
) -> list[str]:
    """Lines with aligned columns, two spaces apart, without columns that are empty in all rows.

    rich's Table wraps lines and takes seconds for ten thousand trials. ``right``: columns to align to the right.
    ``colors``: by column, for cells below the heading that are not 0.
    """
    shown = [[one_line(text) for text in row] for row in rows]
    kept = [index for index, column in enumerate(zip(*shown, strict=True)) if any(column)]
    widths = {index: max(cell_len(row[index]) for row in shown) for index in kept}

    def cell(row: Sequence[str], index: int) -> str:
        padding = " " * (widths[index] - cell_len(row[index]))
        text = padding + row[index] if index in right else row[index] + padding
        color = (colors or {}).get(index)
        return text if color is None or row is shown[0] or row[index] == "0" else click.style(text, fg=color)

    return ["  ".join(cell(row, index) for index in kept).rstrip() for row in shown]


def echo_table(lines: Sequence[str], *, has_heading: bool = True) -> None:
    if has_heading:
        click.echo(click.style(lines[0], underline=True))
    for line in lines[1:]:
        click.echo(line)
