"""``pytest-aorta status``: how far each action of a recipe is, and what is left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import (
    COLORS,
    action_option,
    chosen_states,
    chosen_units,
    cluster_option,
    columns,
    is_chosen,
    names_argument,
    open_project,
    registry_option,
    state_options,
    typed_conditions,
    units_where,
    where_option,
)
from pytest_aorta.common.texts import one_line

if TYPE_CHECKING:
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Action

#: Key of a row for the cost as a text, which is not shown as JSON.
_COST = "cost"

#: Key of a row for those of the submitted units whose jobs run.
_RUNNING = "running"


@click.command("status")
@names_argument("[DIRECTORY | CELL | -]...")
@action_option("Actions to show; * and ? are wildcards.")
@click.option("--all", "show_all", is_flag=True, help="Also actions that have no directory and no trial.")
@state_options("Only actions with {} ones; several of these flags add up.")
@where_option
@click.option("--short", is_flag=True, help="One line for each action, fields separated by tabs, no heading.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--no-header", is_flag=True, help="A table without its heading.")
@cluster_option
@registry_option
def status(
    names: tuple[str, ...],
    action: str,
    show_all: bool,
    where: tuple[str, ...],
    short: bool,
    as_json: bool,
    no_header: bool,
    files: tuple[str, ...],
    **flags: bool,
) -> None:
    """How far each action of a recipe is, and what is left to run.

    The recipe is that of the working directory, or the nearest one above. What counts are directories, or trials of an
    action with a workload; where names are given, only these (-: names from stdin). Products of commands are not looked
    for again: see pytest-aorta scan.
    """
    project = open_project(files)
    actions, only = project.actions(action), chosen_units(names, project)
    met = units_where(project, actions, only, typed_conditions(where))
    rows = [_row(project, each, only if met is None else met[each.name]) for each in actions]
    project.save()
    states = chosen_states(flags)
    shown = [
        row
        for each, row in zip(actions, rows, strict=True)
        if show_all or any(row[state] and is_chosen(state, states, each) for state in COLORS)
    ]
    if as_json:
        plain = [{key: value for key, value in row.items() if key != _COST} for row in shown]
        click.echo(json.dumps({"actions": plain}, indent=1))
    elif short:
        for row in shown:
            hours = [f"{row['remaining'][unit]:.2f}" for unit in ("cpu_hours", "gpu_hours")]
            click.echo("\t".join([one_line(row["name"]), *(str(row[state]) for state in COLORS), *hours]))
    else:
        _echo_table(shown, len(rows), not no_header)


def _row(project: Project, action: Action, only: set[str] | None) -> dict[str, Any]:
    summary = project.summary(action, only)
    running = project.running(action)
    if running:
        states = project.states(action, only)
        running = {unit for unit in running if states.get(unit) == "submitted"}
    return {
        "name": action.name,
        **{state.value: count for state, count in summary.counts.items()},
        "remaining": {"cpu_hours": summary.remaining.cpu_hours, "gpu_hours": summary.remaining.gpu_hours},
        _COST: str(summary.remaining),
        _RUNNING: len(running),
    }


def _echo_table(shown: list[dict[str, Any]], of: int, has_heading: bool) -> None:
    if not shown:
        click.echo("No action has any of these; --all shows all actions." if of else "The recipe has no actions.")
        return
    headings = ["Action", *map(str.capitalize, COLORS), "Remaining cost"]
    texts = [[row["name"], *(_count(row, state) for state in COLORS), row[_COST]] for row in shown]
    lines = columns([headings, *texts], right=range(1, len(headings)), colors=dict(enumerate(COLORS.values(), 1)))
    if has_heading:
        click.echo(click.style(lines[0], underline=True))
    for line in lines[1:]:
        click.echo(line)


def _count(row: dict[str, Any], state: str) -> str:
    running = row.get(_RUNNING, 0) if state == "submitted" else 0
    return f"{row[state]:,} ({running:,} run)" if running else f"{row[state]:,}"
