"""``pytest-aorta clean``: remove what is known of a workspace; results and products stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pytest_aorta.cli.project import open_recipe
from pytest_aorta.settings import RequestError


@click.command("clean")
@click.option("--completed", is_flag=True, help="What is completed; pytest-aorta scan finds it again.")
@click.option("--directories", is_flag=True, help="The list of directories, and their values.")
@click.option("--submitted", is_flag=True, help="The jobs that a scheduler has.")
@click.option("--force", is_flag=True, help="Although jobs are submitted, or actions run now.")
def clean(completed: bool, directories: bool, submitted: bool, force: bool) -> None:
    """Remove parts of the index of the workspace, all without an option. Results and products stay.

    What it forgets of failed commands and of jobs cannot be found again.
    """
    from pytest_aorta.workspace.atomic import locked
    from pytest_aorta.workspace.index.submitted import read_submitted

    index = open_recipe().index
    everything = not (completed or directories or submitted)
    jobs = {job for units in read_submitted(index).values() for job in units.values()}
    if jobs and (submitted or everything) and not force:
        raise RequestError(
            f"{len(jobs)} submitted job{'s' * (len(jobs) != 1)} would be forgotten, and could be submitted again; "
            "--force does it nevertheless"
        )
    if (completed or everything) and not force and _is_growing(index):
        raise RequestError("actions of this recipe run now; wait for their end, or --force")
    with locked(index):
        for file in _files(index, completed or everything, directories or everything, submitted or everything):
            file.unlink(missing_ok=True)
        if submitted or everything:
            _forget_jobs(index)


def _forget_jobs(index: Path) -> None:
    """Jobs that have not ended do nothing when they begin; what those that have ended have printed stays."""
    from pytest_aorta.clusters.jobs import read_jobs

    for job in read_jobs(index, only_open=True):
        (job.folder / "plan.json").unlink()


def _is_growing(index: Path) -> bool:
    from pytest_aorta.workspace.index.journal import has_ended, journals

    return not all(has_ended(path) for path in journals(index / "staged"))


def _files(index: Path, completed: bool, directories: bool, submitted: bool) -> Iterator[Path]:
    from pytest_aorta.workspace.index.journal import journals

    if completed:
        yield from journals(index / "staged")
        yield from (index / "index.json", index / "sources.json")
    if directories:
        yield from (index / "directories.json", index / "values.json")
    if submitted:
        yield index / "submitted.json"
