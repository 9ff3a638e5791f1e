"""``pytest-aorta jobs`` and ``cancel``: what the scheduler has of a recipe, and has had."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import (
    action_option,
    asked_cluster,
    cluster_option,
    columns,
    open_recipe,
    registry_files,
    registry_option,
    warn_of,
)
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.workflow.jobs import Job
    from pytest_aorta.workflow.project import Project

_COLORS = {"RUNNING": "blue", "COMPLETED": "green"}


@click.command("jobs")
@action_option("Of these actions; * and ? are wildcards.")
@click.option("--all", "show_all", is_flag=True, help="Also those that have ended.")
@click.option("--short", is_flag=True, help="Their numbers only, one a line, as scancel and squeue take them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@cluster_option
@registry_option
def jobs(action: str, show_all: bool, short: bool, as_json: bool, files: tuple[str, ...]) -> None:
    """The jobs of a recipe that a scheduler has, and with --all those that have ended, with its reason.

    A job that has ended in any other way than COMPLETED, and has not been looked at since, is shown once without --all.
    """
    project = _project(files)
    from pytest_aorta.workflow.jobs import read_jobs

    known = read_jobs(project.recipe.index) if show_all else project.jobs
    rows = [
        row
        for job in known
        for row in _rows(job)
        if fnmatchcase(job.action, action) and (show_all or not row["over"] or row["state"] != "COMPLETED")
    ]
    if as_json:
        click.echo(json.dumps({"jobs": rows}, indent=1))
    elif short:
        for row in rows:
            if show_all or not row["over"]:
                click.echo(row["id"])
    elif not rows:
        click.echo("There are no jobs." if show_all else "There are no jobs; --all shows those that have ended.")
    else:
        _write_table(rows)


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@action_option("All of these actions; * and ? are wildcards.", None)
@click.option("--all", "everything", is_flag=True, help="All of this recipe.")
@cluster_option
@registry_option
def cancel(ids: tuple[str, ...], action: str | None, everything: bool, files: tuple[str, ...]) -> None:
    """Cancel jobs of this recipe, by their numbers as pytest-aorta jobs shows them, or of some actions.

    The number of an array stands for all of its tasks. Trials that run are ended in order, as far as SLURM gives them
    the time.
    """
    if bool(ids) + bool(action) + everything != 1:
        raise RequestError("cancel: which jobs? Give their numbers, --action PATTERN, or --all")
    project = _project(files)
    from pytest_aorta.workflow.slurm import scancel

    rows = [(job, row) for job in project.jobs for row in _rows(job) if not row["over"] and job.number is not None]
    chosen = [
        (job, row["id"])
        for job, row in rows
        if everything or row["id"] in ids or job.number in ids or (action and fnmatchcase(job.action, action))
    ]
    found = {number for job, task in chosen for number in (job.number, task)}
    if unknown := [number for number in ids if number not in found]:
        raise RequestError(f"cancel: {unknown[0]!r} is no job of this recipe that has not ended; see pytest-aorta jobs")
    if not chosen:
        click.echo("There are no such jobs.")
        return
    scancel([number for _, number in chosen])
    click.echo(f"{len(chosen)} job{'s' * (len(chosen) != 1)} cancelled.")


@click.command("job-ended", hidden=True)
@click.argument("folder", type=Path)
@click.argument("task", type=int)
def job_ended(folder: Path, task: int) -> None:
    """Note what the commands of a job have made: the last thing that a job does."""
    from pytest_aorta.workflow.jobs import read_job
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import read_recipe
    from pytest_aorta.workflow.slurm import TaskState

    job = read_job(folder)
    if job is not None:
        Project(read_recipe(Path(job.recipe))).settle(job, task, TaskState(state="COMPLETED"))


def _project(files: Sequence[str]) -> Project:
    recipe = open_recipe()
    from pytest_aorta.workflow.project import Project

    project = Project(recipe, registry_files(files))
    project.synchronize_jobs(asked_cluster())
    warn_of(project.problems)
    return project


def _rows(job: Job) -> Iterator[dict[str, Any]]:
    for number, task in enumerate(job.tasks):
        state = job.state(number)
        yield {
            "id": job.identity(number),
            "cluster": job.cluster,
            "action": job.action,
            "state": state.state,
            "reason": state.reason,
            "units": len(task.units),
            "over": state.over,
            "name": job.name,
            "output": str(job.folder / f"output-{number}.txt"),
        }


def _write_table(rows: Sequence[dict[str, Any]]) -> None:
    headings = ["ID", "Action", "State", "Reason", "Units", "Name"]
    table = [
        [f"{row['cluster']}/{row['id']}", *(str(row[name]) for name in ("action", "state", "reason", "units", "name"))]
        for row in rows
    ]
    lines = columns([headings, *table], right=[4])
    click.echo(click.style(lines[0], underline=True))
    for row, line in zip(rows, lines[1:], strict=True):
        click.echo(click.style(line, fg=_COLORS.get(row["state"], "red" if row["over"] else "yellow")))
