"""``pytest-aorta show``: directories, cells, trials and nodes, one line each; what collectors have found."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import (
    COLORS,
    action_option,
    asked_cluster,
    chosen_states,
    chosen_units,
    cluster_option,
    columns,
    is_chosen,
    names_argument,
    open_project,
    open_recipe,
    registry_option,
    state_options,
    typed_conditions,
    units_where,
    where_option,
)
from pytest_aorta.common.texts import one_line, printable
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.common.conditions import TypedCondition
    from pytest_aorta.workflow.clusters import Configuration
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Action
    from pytest_aorta.workflow.states import State


@click.group("show")
def show() -> None:
    """Directories, cells or trials of a recipe, with their states and values; clusters; what was collected."""


@dataclass(frozen=True)
class _Row:
    """A directory, a cell or a trial, with the ``state`` that ``action`` has on it.

    ``counts`` are a cell's trials in each state; ``group`` is the number of the job that it is, or would be, part of.
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


@dataclass(frozen=True)
class _Query:
    project: Project
    only: set[str] | None
    action: str | None
    pointers: Sequence[str]
    where: Sequence[TypedCondition]
    flags: dict[str, bool]
    groups: int | None = None

    def states_of(self, actions: Sequence[Action]) -> Iterator[tuple[Action, dict[str, State]]]:
        """Of each action, the units that are asked for, with their states."""
        met = units_where(self.project, actions, self.only, self.where)
        for action in actions:
            yield action, self.project.states(action, self.only if met is None else met[action.name])

    def matrices(self) -> list[Action]:
        assert self.action is not None
        found = [each for each in self.project.actions(self.action) if each.is_matrix]
        if not found:
            there_is = "the recipe has" if self.action == "*" else f"{self.action!r} matches"
            raise RequestError(f"{there_is} no action with a workload; for commands: show directories")
        return found

    def elements(self, value_of: Callable[[str], Any], name: str) -> dict[str, Any]:
        if not self.pointers:
            return {}
        from pytest_aorta.common.conditions import element

        value = value_of(name)
        return {pointer: element(value, pointer, name) for pointer in self.pointers}


def _listing(what: str, pattern: str | None) -> Callable[[Callable[[_Query], Iterator[_Row]]], Callable[..., None]]:
    shown = "cells with trials" if what == "cells" else what

    def add(rows_of: Callable[[_Query], Iterator[_Row]]) -> Callable[..., None]:
        @show.command(what)
        @names_argument("[NAME | -]...")
        @action_option("Of these actions; * and ? are wildcards.", pattern)
        @state_options(f"Only {shown} with the state {{}}; several of these flags add up.")
        @click.option(
            "--value",
            "pointers",
            multiple=True,
            metavar="POINTER",
            help="Show an element of the values, such as /config/lr; repeat for several.",
        )
        @click.option("--short", is_flag=True, help="Names only, one a line.")
        @click.option("--json", "as_json", is_flag=True, help="One JSON object.")
        @click.option("--no-header", is_flag=True, help="A table without its heading.")
        @click.option("-n", "--n-groups", type=click.IntRange(1), metavar="N", help="Show the first N groups only.")
        @click.option("--no-separate-groups", is_flag=True, help="No empty lines between groups.")
        @where_option
        @cluster_option
        @registry_option
        @functools.wraps(rows_of)
        def command(
            names: tuple[str, ...],
            action: str | None,
            pointers: tuple[str, ...],
            where: tuple[str, ...],
            short: bool,
            as_json: bool,
            no_header: bool,
            n_groups: int | None,
            no_separate_groups: bool,
            files: tuple[str, ...],
            **flags: bool,
        ) -> None:
            _check_pointers(pointers)
            project = open_project(files)
            only = chosen_units(names, project)
            query = _Query(project, only, action, pointers, typed_conditions(where), flags, n_groups)
            rows = list(rows_of(query))
            project.save()
            if as_json:
                click.echo(json.dumps({what: [row.plain() for row in rows]}, indent=1))
            elif short:
                for name in dict.fromkeys(row.name for row in rows):
                    click.echo(one_line(name))
            elif not rows:
                click.echo(f"There are no such {what}.")
            else:
                _write_table(what, rows, not no_header, is_separated=not no_separate_groups)

        return command

    return add


def _check_pointers(pointers: Sequence[str]) -> None:
    from pytest_aorta.common.conditions import check_pointer

    for pointer in pointers:
        try:
            check_pointer(pointer)
        except ValueError as error:
            raise RequestError(f"--value {error}") from None


@_listing("directories", None)
def directories(query: _Query) -> Iterator[_Row]:
    """Directories of the workspace; with --action, those that an action is for, group by group.

    With names, only these (-: names from stdin).
    """
    if query.action is None and any(query.flags.values()):
        raise RequestError("states are those of an action: add --action PATTERN")
    if query.action is None:
        return _plain_directories(query)
    commands = [each for each in query.project.actions(query.action) if not each.is_matrix]
    if not commands:
        raise RequestError(f"{query.action!r} matches no action with a command; for workloads: show cells, show trials")
    return _units(query, commands)


@_listing("trials", "*")
def trials(query: _Query) -> Iterator[_Row]:
    """Trials of the actions with a workload; with names of cells or trials, only these (-: names from stdin)."""
    return _units(query, query.matrices())


@_listing("cells", "*")
def cells(query: _Query) -> Iterator[_Row]:
    """Cells of the actions with a workload, with the number of trials in each state."""
    states = chosen_states(query.flags)
    for action, units in query.states_of(query.matrices()):
        counts: dict[str, Counter[str]] = {}
        for unit, state in units.items():
            counts.setdefault(unit.rpartition("/")[0], Counter())[state.value] += 1
        value_of = query.project.value_of(action)
        for cell, found in counts.items():
            if any(count and is_chosen(state, states, action) for state, count in found.items()):
                of_all = {state: found[state] for state in COLORS}
                yield _Row(cell, action.name, counts=of_all, values=query.elements(value_of, cell))


def _plain_directories(query: _Query) -> Iterator[_Row]:
    project = query.project
    names = [name for name in project.directories if query.only is None or name in query.only]
    if query.where:
        from pytest_aorta.common.conditions import selected

        names = selected(names, project.workspace.value_of, query.where, "--where")
    for name in names:
        yield _Row(name, values=query.elements(project.workspace.value_of, name))


def _units(query: _Query, actions: Sequence[Action]) -> Iterator[_Row]:
    project, states = query.project, chosen_states(query.flags)
    number = 0
    for action, found in query.states_of(actions):
        jobs = project.submitted.get(action.name, {})
        value_of = project.value_of(action)
        shown = [unit for unit, state in found.items() if is_chosen(state.value, states, action)]
        for group in [shown] if action.is_matrix else project.groups(action, shown):
            number += 1
            if query.groups is not None and number > query.groups:
                return
            for unit in group:
                values = query.elements(value_of, unit)
                yield _Row(unit, action.name, found[unit].value, job=jobs.get(unit), values=values, group=number)


_HEADINGS = {"directories": "Directory", "cells": "Cell", "trials": "Trial"}


def _write_table(what: str, rows: Sequence[_Row], has_heading: bool, *, is_separated: bool) -> None:
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
    if has_heading:
        click.echo(click.style(lines[0], underline=True))
    for row, before, line in zip(rows, [rows[0], *rows], lines[1:], strict=False):
        if is_separated and row.group != before.group:
            click.echo()
        click.echo(line if row.state is None else click.style(line, fg=COLORS[row.state]))


@show.command("collected")
@click.argument("path", type=click.Path(path_type=Path), default="results", metavar="[DIR | FILE]")
def collected(path: Path) -> None:
    """What collectors have found in a results directory (default: results), or in the trial of a file, and where."""
    from pytest_aorta.triage.starts import all_lines

    for line in all_lines(path):
        click.echo(printable(line))


@click.command("cluster")
@click.argument("name", required=False)
@cluster_option
@click.option("--all", "everything", is_flag=True, help="All clusters, in the order in which they are tried.")
@click.option("--short", is_flag=True, help="Names only, one a line.")
def show_cluster(name: str | None, everything: bool, short: bool) -> None:
    """The cluster that this host is part of, or that of this name, as clusters.toml has it."""
    import tomlkit

    configuration = _configuration()
    found = configuration.clusters if everything else (configuration.cluster(name or asked_cluster()),)
    for cluster in found:
        plain = cluster.model_dump(exclude_defaults=True, exclude_none=True, mode="json")
        click.echo(cluster.name if short else tomlkit.dumps({"cluster": [plain]}))


@click.command("nodes")
@click.argument("results", type=click.Path(path_type=Path), required=False, metavar="[DIR]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show_nodes(results: Path | None, as_json: bool) -> None:
    """Nodes beside each other: which fail more often, or are slower, and how sure that is; and a list to drain.

    Of the trials in a results directory, by default those of the recipe's action with each = "node".
    """
    from pytest_aorta.triage.reading import read_triage
    from pytest_aorta.triage.where import NODE_LEVEL, node_sentences, trials_needed

    if results is None:
        recipe = open_recipe()
        sweeps = [each.name for each in recipe.actions if each.nodes is not None]
        if len(sweeps) != 1:
            raise RequestError(
                f"{recipe.file} has {len(sweeps)} actions with each = 'node'; name the results directory"
            )
        results = recipe.directories / sweeps[0]
    nodes = read_triage(results)[0].nodes()
    if not nodes:
        raise RequestError(f"the trials in {results} ran on one node, or do not say where")
    if as_json:
        named = [node.name for node in nodes if node.reasons]
        click.echo(json.dumps({"nodes": [vars(node) for node in nodes], "drain": named, "level": NODE_LEVEL}, indent=1))
        return
    rows = [["Node", "Trials", "Not passed", "Step time"]]
    for node in nodes:
        time = "" if node.ratio is None else f"{node.ratio - 1:+.0%}"
        rows.append([node.name, f"{node.trials:,}", f"{node.bad:,}", time])
    lines = [*columns(rows, right=(1, 2, 3)), "", *map(one_line, node_sentences(nodes))]
    if not any(node.reasons for node in nodes):
        lines.append("No node stands out.")
    fewest, needed = min(node.trials for node in nodes), trials_needed(len(nodes))
    if fewest < needed:
        lines.append(
            f"A node that always fails stands out of {len(nodes)} from {needed} trials on; there are {fewest}."
        )
    click.echo("\n".join(lines))


@click.command("launchers")
@click.argument("cluster", required=False)
@cluster_option
@click.option("--all", "everything", is_flag=True, help="For all clusters.")
@click.option("--short", is_flag=True, help="Names only, one a line.")
def show_launchers(cluster: str | None, everything: bool, short: bool) -> None:
    """What commands begin with on this cluster, or that of this name, as launchers.toml has it."""
    import tomlkit

    configuration = _configuration()
    where = configuration.cluster(cluster or asked_cluster()).name
    for name, by_cluster in sorted(configuration.launchers.items()):
        chosen = {where: configuration.launchers_on(where)[name]} if not everything else by_cluster
        if short:
            click.echo(name)
            continue
        plain = {each: launcher.model_dump(exclude_none=True) for each, launcher in chosen.items()}
        click.echo(tomlkit.dumps({name: plain}))


def _configuration() -> Configuration:
    from pytest_aorta.workflow.clusters import Configuration
    from pytest_aorta.workflow.finding import find_recipe

    try:
        root = find_recipe(Path.cwd()).parent
    except RequestError:
        root = Path.cwd()
    return Configuration.of_project(root)
