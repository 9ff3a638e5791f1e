"""``pytest-aorta show``: directories, cells and trials of a recipe, one line each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.project import Project, open_project, registry_option
from pytest_aorta.cli.selections import (
    COLORS,
    chosen_states,
    chosen_units,
    state_options,
    typed_conditions,
    units_where,
    where_option,
)
from pytest_aorta.cli.tables import columns
from pytest_aorta.common.request_error import RequestError
from pytest_aorta.common.terminal_text import one_line

if TYPE_CHECKING:
    from pytest_aorta.workflow.actions import Action


@click.group("show")
def show() -> None:
    """Directories, cells or trials of a recipe, with their states and values."""


@dataclass(frozen=True)
class _Row:
    """One line.

    Attributes:
        name: of a directory, a cell, or a trial.
        action: for which it has its state; ``None`` for a directory by itself.
        state: of the action on it.
        counts: of a cell, trials in each state.
        job: that it is part of.
        values: the elements that were asked for.
        group: number of the job that it is, or would be, part of.
    """

    name: str
    action: str | None = None
    state: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    job: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    group: int = 0

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        own = {"state": self.state, "job": self.job} if not self.counts else dict(self.counts)
        return {"name": self.name, "action": self.action, **own, "values": self.values}


def _listing(what: str, pattern: str | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The arguments that all listings have; ``pattern`` of the actions without ``--action``."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command = where_option(registry_option(command))
        command = click.option("--json", "as_json", is_flag=True, help="One JSON object.")(command)
        command = click.option("--short", is_flag=True, help="Names only, one a line.")(command)
        command = click.option(
            "--value",
            "pointers",
            multiple=True,
            metavar="POINTER",
            help="Show an element of the values, such as /config/lr; repeat for several.",
        )(command)
        command = state_options(f"Only {what} with the state {{}}; several of these flags add up.")(command)
        command = click.option(
            "-a", "--action", default=pattern, metavar="PATTERN", help="Of these actions; * and ? are wildcards."
        )(command)
        return click.argument("names", nargs=-1, metavar="[NAME | -]...")(command)

    return add


@show.command("directories")
@_listing("directories", None)
def directories(
    names: tuple[str, ...],
    action: str | None,
    pointers: tuple[str, ...],
    where: tuple[str, ...],
    short: bool,
    as_json: bool,
    files: tuple[str, ...],
    **flags: bool,
) -> None:
    """Directories of the workspace; with --action, those that an action is for, group by group.

    With names, only these (-: names from stdin).
    """
    project, only = _open(names, pointers, files)
    if action is None and any(flags.values()):
        raise RequestError("states are those of an action: add --action PATTERN")
    if action is None:
        rows = _plain_directories(project, only, pointers, where)
    else:
        commands = [each for each in project.actions(action) if not each.is_matrix]
        if not commands:
            raise RequestError(f"{action!r} matches no action with a command; for workloads: show cells, show trials")
        rows = _units(project, commands, _only_of(project, commands, only, where), pointers, chosen_states(flags))
    _write("directories", project, rows, short, as_json)


@show.command("trials")
@_listing("trials", "*")
def trials(
    names: tuple[str, ...],
    action: str,
    pointers: tuple[str, ...],
    where: tuple[str, ...],
    short: bool,
    as_json: bool,
    files: tuple[str, ...],
    **flags: bool,
) -> None:
    """Trials of the actions with a workload; with names of cells or trials, only these (-: names from stdin)."""
    project, only = _open(names, pointers, files)
    matrices = _matrices(project, action)
    rows = _units(project, matrices, _only_of(project, matrices, only, where), pointers, chosen_states(flags))
    _write("trials", project, rows, short, as_json)


@show.command("cells")
@_listing("cells with trials", "*")
def cells(
    names: tuple[str, ...],
    action: str,
    pointers: tuple[str, ...],
    where: tuple[str, ...],
    short: bool,
    as_json: bool,
    files: tuple[str, ...],
    **flags: bool,
) -> None:
    """Cells of the actions with a workload, with the number of trials in each state."""
    project, only = _open(names, pointers, files)
    matrices = _matrices(project, action)
    rows = _cells(project, matrices, _only_of(project, matrices, only, where), pointers, chosen_states(flags))
    _write("cells", project, rows, short, as_json)


def _open(names: tuple[str, ...], pointers: tuple[str, ...], files: tuple[str, ...]) -> tuple[Project, set[str] | None]:
    from pytest_aorta.workflow.values import check_pointer

    for pointer in pointers:
        try:
            check_pointer(pointer)
        except ValueError as error:
            raise RequestError(f"--value {error}") from None
    project = open_project(files)
    return project, chosen_units(names, project.overview)


#: Gives of an action the names of those of its units that are shown, or of what contains them; ``None`` for all.
_OnlyOf = Callable[["Action"], "set[str] | None"]


def _only_of(project: Project, actions: Sequence[Action], only: set[str] | None, where: Sequence[str]) -> _OnlyOf:
    met = units_where(project.overview, actions, only, typed_conditions(where))
    return lambda action: only if met is None else met[action.name]


def _matrices(project: Project, pattern: str) -> list[Action]:
    found = [each for each in project.actions(pattern) if each.is_matrix]
    if not found:
        raise RequestError(f"{pattern!r} matches no action with a workload; for commands: show directories")
    return found


def _plain_directories(
    project: Project, only: set[str] | None, pointers: Sequence[str], where: Sequence[str]
) -> Iterator[_Row]:
    value_of = project.overview.directory_value
    names = [name for name in project.overview.directories if only is None or name in only]
    if conditions := typed_conditions(where):
        from pytest_aorta.workflow.conditions import selected

        names = selected(names, value_of, conditions, "--where")
    for name in names:
        yield _Row(name, values=_elements(value_of, name, pointers))


def _units(
    project: Project, actions: Sequence[Action], only_of: _OnlyOf, pointers: Sequence[str], states: Sequence[str]
) -> Iterator[_Row]:
    number = 0
    for action in actions:
        found = project.overview.states(action, only_of(action))
        jobs = project.overview.submitted.get(action.name, {})
        value_of = project.overview.value_of(action)
        shown = [unit for unit, state in found.items() if state.value in states]
        for group in [shown] if action.is_matrix else project.overview.groups(action, shown):
            number += 1
            for unit in group:
                values = _elements(value_of, unit, pointers)
                yield _Row(unit, action.name, found[unit].value, job=jobs.get(unit), values=values, group=number)


def _cells(
    project: Project, actions: Sequence[Action], only_of: _OnlyOf, pointers: Sequence[str], states: Sequence[str]
) -> Iterator[_Row]:
    for action in actions:
        counts: dict[str, Counter[str]] = {}
        for unit, state in project.overview.states(action, only_of(action)).items():
            counts.setdefault(unit.rpartition("/")[0], Counter())[state.value] += 1
        value_of = project.overview.value_of(action)
        for cell, found in counts.items():
            if any(found[state] for state in states):
                of_all = {state: found[state] for state in COLORS}
                yield _Row(cell, action.name, counts=of_all, values=_elements(value_of, cell, pointers))


def _elements(value_of: Callable[[str], Any], name: str, pointers: Sequence[str]) -> dict[str, Any]:
    if not pointers:
        return {}
    from pytest_aorta.workflow.values import element

    value = value_of(name)
    return {pointer: element(value, pointer, name) for pointer in pointers}


def _write(what: str, project: Project, rows: Iterator[_Row], short: bool, as_json: bool) -> None:
    found = list(rows)
    project.save()
    if as_json:
        click.echo(json.dumps({what: [row.plain() for row in found]}, indent=1))
    elif short:
        for name in dict.fromkeys(row.name for row in found):
            click.echo(one_line(name))
    elif not found:
        click.echo(f"There are no such {what}.")
    else:
        _write_table(what, found)


_HEADINGS = {"directories": "Directory", "cells": "Cell", "trials": "Trial"}


def _write_table(what: str, rows: Sequence[_Row]) -> None:
    several = len({row.action for row in rows}) > 1
    pointers = list(rows[0].values)
    counted = bool(rows[0].counts)
    states = [*COLORS] if counted else ["state"]
    headings = ["Action" if several else "", _HEADINGS[what], *map(str.capitalize, states)]
    has_jobs = any(row.job for row in rows)
    headings += ["Job" if has_jobs else "", *(pointer or '""' for pointer in pointers)]
    table = [headings]
    for row in rows:
        own = [f"{count:,}" for count in row.counts.values()] if counted else [row.state or ""]
        values = [json.dumps(value) for value in row.values.values()]
        table.append([(row.action or "") if several else "", row.name, *own, row.job or "", *values])
    if rows[0].action is None:
        headings[2] = ""
    right = range(2, 2 + len(states)) if counted else ()
    lines = columns(table, right=right)
    click.echo(click.style(lines[0], underline=True))
    for row, before, line in zip(rows, [rows[0], *rows], lines[1:], strict=False):
        if row.group != before.group:
            click.echo()
        click.echo(line if row.state is None else click.style(line, fg=COLORS[row.state]))
