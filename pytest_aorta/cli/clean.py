"""``pytest-aorta clean``: remove what is known of a workspace; results and products stay."""

from __future__ import annotations

import click

from pytest_aorta.cli.shared import open_recipe
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
    recipe = open_recipe()
    from pytest_aorta.workflow.jobs import read_jobs
    from pytest_aorta.workflow.known import Workspace

    everything = not (completed or directories or submitted)
    completed, directories, submitted = (each or everything for each in (completed, directories, submitted))
    jobs = read_jobs(recipe.index, only_open=True) if submitted else []
    count = sum(not task.is_over for job in jobs for task in job.tasks)
    if count and not force:
        raise RequestError(
            f"{count} submitted job{'s' * (count != 1)} would be forgotten, and could be submitted again; "
            "--force does it nevertheless"
        )
    workspace = Workspace(recipe)
    if completed and not force and workspace.is_growing:
        raise RequestError("actions of this recipe run now; wait for their end, or --force")
    workspace.clean(completed=completed, directories=directories)
    for job in jobs:  # they do nothing when they begin; what those that have ended have printed stays
        (job.folder / "job.json").unlink()
