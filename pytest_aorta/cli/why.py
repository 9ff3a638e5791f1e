"""``pytest-aorta why``: what an action waits for, or how it has failed, on directories and trials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pytest_aorta.cli.shared import (
    COLORS,
    action_option,
    chosen_units,
    cluster_option,
    names_argument,
    open_project,
    registry_option,
)
from pytest_aorta.common.texts import one_line, printable

if TYPE_CHECKING:
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Action

#: Lines of the output of a failed command.
_LINES = 10


@click.command("why")
@names_argument("DIRECTORY | CELL | TRIAL...")
@action_option("Of these actions; * and ? are wildcards.")
@cluster_option
@registry_option
def why(names: tuple[str, ...], action: str, files: tuple[str, ...]) -> None:
    """Why actions are in their states on directories, cells or trials (-: names from stdin).

    What an action waits for there, what the scheduler says of its job, and how a failed command has ended.
    """
    project = open_project(files)
    only = chosen_units(names, project)
    for each in project.actions(action):
        states = project.states(each, only)
        for unit, state in states.items():
            heading = click.style(state.value, fg=COLORS[state.value])
            click.echo(f"{one_line(f'{each.name} on {unit}' if unit else each.name)}: {heading}")
            for line in _reasons(project, each, unit, state.value):
                click.echo(f"  {printable(line)}")
        for unit in sorted((only or set()) & set(project.units(each)) - states.keys()):
            left_out = project.progress[each.name].get(unit, "not_needed") == "not_needed"
            what = "its cell is decided" if each.is_matrix and left_out else f"{each.name} does not include it"
            click.echo(f"{one_line(f'{each.name} on {unit}')}: not run, because {what}")
    project.save()


def _reasons(project: Project, action: Action, unit: str, state: str) -> Iterator[str]:
    if state == "waiting":
        yield from project.waits_for(action, unit)
    elif state == "submitted":
        yield from _of_the_job(project, action, unit)
    elif state == "stale":
        if action.is_matrix:
            yield "its record is of another request or other code; it is run again"
        else:
            yield "the command or the value has changed since it was completed; it is run again"
            yield f"to keep it: pytest-aorta scan --accept -a {action.name} {unit}"
    elif action.is_matrix:
        yield from _of_the_record(project, action, unit)
    elif state == "failed":
        yield from _of_the_output(project, action, unit)
        yield "the next run and the next submission try it again"
    elif state == "eligible":
        yield "nothing keeps it from being run"


def _of_the_job(project: Project, action: Action, unit: str) -> Iterator[str]:
    for job in project.jobs:
        for number, task in enumerate(job.tasks):
            if job.action == action.name and unit in task.units and not task.is_over:
                yield f"job {job.cluster}/{job.identity(number)}: {job.state(number)}"


def _of_the_record(project: Project, action: Action, unit: str) -> Iterator[str]:
    folder = project.folder(action, unit)
    for file in (folder.with_suffix(".json"), folder.parent.parent / f"{folder.name}.json"):
        try:
            record = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        failure = record.get("failure") or {}
        message = str(failure.get("message") or "").strip().splitlines()
        yield f"{record.get('exit_status')}{f': {message[0]}' if message else ''}"
        yield f"its record: {file.relative_to(project.recipe.root)}"
        return
    yield "nothing keeps it from being run"


def _of_the_output(project: Project, action: Action, unit: str) -> Iterator[str]:
    text = project.workspace.known.outputs.get(action.name, {}).get(unit, "")
    for line in text.splitlines()[-_LINES:]:
        yield f"| {line}"
    if text:
        return
    from pytest_aorta.workflow.jobs import read_jobs

    for job in reversed(read_jobs(project.recipe.index)):
        for number, task in enumerate(job.tasks):
            if job.action == action.name and unit in task.units:
                yield f"job {job.cluster}/{job.identity(number)}: {job.state(number)}"
                file = job.folder / f"output-{number}.txt"
                lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
                yield from (f"| {line}" for line in lines[-_LINES:])
                return
