"""``pytest-aorta status``: how far each action of a recipe is, and what is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.project import open_project, registry_option
from pytest_aorta.cli.selections import COLORS, chosen_states, chosen_units, state_options
from pytest_aorta.cli.tables import columns
from pytest_aorta.common.terminal_text import one_line

if TYPE_CHECKING:
    from pytest_aorta.workflow.overview import ActionSummary


@click.command("status")
@click.argument("names", nargs=-1, metavar="[DIRECTORY | CELL | -]...")
@click.option("-a", "--action", default="*", metavar="PATTERN", help="Actions to show; * and ? are wildcards.")
@click.option("--all", "show_all", is_flag=True, help="Also actions that have no directory and no trial.")
@state_options("Only actions with {} ones; several of these flags add up.")
@click.option("--short", is_flag=True, help="One line for each action, fields separated by tabs, no heading.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
def status(
    names: tuple[str, ...],
    action: str,
    show_all: bool,
    short: bool,
    as_json: bool,
    files: tuple[str, ...],
    **flags: bool,
) -> None:
    """How far each action of a recipe is, and what is left to run.

    The recipe is that of the working directory, or the nearest one above. What counts are directories, or trials of an
    action with a workload; where names are given, only these (-: names from stdin). Products of commands are not looked
    for again: see pytest-aorta scan.
    """
    project = open_project(files)
    only = chosen_units(names, project.overview)
    states = chosen_states(flags)
    summaries = [project.overview.summary(each, only) for each in project.actions(action)]
    shown = [each for each in summaries if show_all or any(_counts(each)[state] for state in states)]
    project.save()
    if as_json:
        click.echo(json.dumps({"actions": [_plain(each) for each in shown]}, indent=1))
    elif short:
        for each in shown:
            click.echo("\t".join(map(str, _fields(each))))
    else:
        _echo_table(shown, len(summaries))


def _counts(summary: ActionSummary) -> dict[str, int]:
    return {state.value: count for state, count in summary.counts.items()}


def _plain(summary: ActionSummary) -> dict[str, Any]:
    remaining = {"cpu_hours": summary.remaining.cpu_hours, "gpu_hours": summary.remaining.gpu_hours}
    return {"name": summary.action.name, **_counts(summary), "remaining": remaining}


def _fields(summary: ActionSummary) -> list[object]:
    """Name, the states in their order, CPU hours, GPU hours."""
    hours = [f"{each:.2f}" for each in (summary.remaining.cpu_hours, summary.remaining.gpu_hours)]
    return [one_line(summary.action.name), *_counts(summary).values(), *hours]


def _echo_table(shown: Sequence[ActionSummary], of: int) -> None:
    if not shown:
        click.echo("The recipe has no actions." if not of else "No action has any of these; --all shows all actions.")
        return
    headings = ["Action", *(state.capitalize() for state in COLORS), "Remaining cost"]
    rows = [
        [each.action.name, *(f"{count:,}" for count in _counts(each).values()), str(each.remaining)] for each in shown
    ]
    lines = columns([headings, *rows], right=range(1, len(headings)))
    click.echo(click.style(lines[0], underline=True))
    for line in lines[1:]:
        click.echo(line)
