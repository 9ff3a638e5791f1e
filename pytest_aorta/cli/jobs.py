"""``pytest-aorta jobs`` and ``cancel``: what the scheduler has of a recipe, and has had."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_aorta.cli.project import look_at_jobs, open_recipe, registry_option
from pytest_aorta.cli.tables import columns
from pytest_aorta.common.terminal_text import one_line
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.clusters.jobs import Job

_COLORS = {"RUNNING": "blue", "COMPLETED": "green"}


@dataclass(frozen=True)
class _Row:
    """A job, or a task of an array."""

    id: str
    cluster: str
    action: str
    state: str
    reason: str
    units: int
    over: bool
    name: str
    output: str


@click.command("jobs")
@click.option("-a", "--action", default="*", metavar="PATTERN", help="Of these actions; * and ? are wildcards.")
@click.option("--all", "show_all", is_flag=True, help="Also those that have ended.")
@click.option("--short", is_flag=True, help="Their numbers only, one a line, as scancel and squeue take them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
def jobs(action: str, show_all: bool, short: bool, as_json: bool, files: tuple[str, ...]) -> None:
    """The jobs of a recipe that a scheduler has, and with --all those that have ended, with its reason.

    A job that has ended in any other way than COMPLETED, and has not been looked at since, is shown once without --all.
    """
    recipe = open_recipe()
    before = {job.folder for job in _open_jobs(recipe.index)}
    known = look_at_jobs(recipe, files, everything=True)
    rows = [
        row
        for job in known
        if show_all or job.is_open or job.folder in before
        for row in _rows(job)
        if fnmatchcase(row.action, action) and (show_all or not row.over or row.state != "COMPLETED")
    ]
    if as_json:
        click.echo(json.dumps({"jobs": [asdict(row) for row in rows]}, indent=1))
    elif short:
        for row in rows:
            if show_all or not row.over:
                click.echo(row.id)
    elif not rows:
        click.echo("There are no jobs." if show_all else "There are no jobs; --all shows those that have ended.")
    else:
        _write_table(rows)


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("-a", "--action", default=None, metavar="PATTERN", help="All of these actions; * and ? are wildcards.")
@click.option("--all", "everything", is_flag=True, help="All of this recipe.")
@registry_option
def cancel(ids: tuple[str, ...], action: str | None, everything: bool, files: tuple[str, ...]) -> None:
    """Cancel jobs of this recipe, by their numbers as pytest-aorta jobs shows them, or of some actions.

    The number of an array stands for all of its tasks. Trials that run are ended in order, as far as SLURM gives them
    the time.
    """
    from pytest_aorta.clusters import slurm

    if bool(ids) + bool(action) + everything != 1:
        raise RequestError("cancel: which jobs? Give their numbers, --action PATTERN, or --all")
    known = look_at_jobs(open_recipe(), files)
    rows = [(job, row) for job in known for row in _rows(job) if not row.over and job.states.number is not None]
    chosen = [
        (job, row)
        for job, row in rows
        if everything or row.id in ids or job.states.number in ids or (action and fnmatchcase(row.action, action))
    ]
    found = {row.id for _, row in chosen} | {job.states.number for job, _ in chosen}
    if unknown := [number for number in ids if number not in found]:
        raise RequestError(f"cancel: {unknown[0]!r} is no job of this recipe that has not ended; see pytest-aorta jobs")
    if not chosen:
        click.echo("There are no such jobs.")
        return
    slurm.scancel([row.id for _, row in chosen])
    click.echo(f"{len(chosen)} job{'s' * (len(chosen) != 1)} cancelled.")


@click.command("job-ended", hidden=True)
@click.argument("folder", type=Path)
@click.argument("task", type=int)
def job_ended(folder: Path, task: int) -> None:
    """Note what the commands of a job have made: the last thing that a job does."""
    from pytest_aorta.clusters.jobs import read_job
    from pytest_aorta.ended_jobs import EndedJobs
    from pytest_aorta.workflow.reading import read_recipe

    job = read_job(folder)
    if job is None:
        return
    EndedJobs(read_recipe(Path(job.plan.recipe))).note_commands(job, task)


def _open_jobs(index: Path) -> Sequence[Job]:
    from pytest_aorta.clusters.jobs import read_jobs

    return read_jobs(index, only_open=True)


def _rows(job: Job) -> Iterator[_Row]:
    for number, task in enumerate(job.plan.tasks):
        state = job.state(number)
        yield _Row(
            id=job.identity(number),
            cluster=job.plan.cluster,
            action=job.plan.action,
            state=state.state,
            reason=state.reason,
            units=len(task.units),
            over=state.over,
            name=job.plan.name,
            output=str(job.outputs[number]),
        )


def _write_table(rows: Sequence[_Row]) -> None:
    headings = ["ID", "Action", "State", "Reason", "Units", "Name"]
    table = [[f"{row.cluster}/{row.id}", row.action, row.state, row.reason, str(row.units), row.name] for row in rows]
    lines = columns([headings, *[[one_line(text) for text in row] for row in table]], right=[4])
    click.echo(click.style(lines[0], underline=True))
    for row, line in zip(rows, lines[1:], strict=True):
        click.echo(click.style(line, fg=_COLORS.get(row.state, "red" if row.over else "yellow")))
