"""``pytest-aorta scan``: make the index of a workspace from what is on disk."""

from __future__ import annotations

import sys

import click

from pytest_aorta.cli.shared import (
    action_option,
    asked_cluster,
    chosen_units,
    cluster_option,
    names_argument,
    open_recipe,
    registry_files,
    registry_option,
    warn_of,
)
from pytest_aorta.settings import RequestError


@click.command("scan")
@names_argument("[DIRECTORY | CELL | -]...")
@action_option("Actions to look for; * and ? are wildcards.")
@click.option("--prune", is_flag=True, help="Also forget what is completed by the index, and is not on disk.")
@click.option("--accept", is_flag=True, help="Products of stale commands are as good as those of the present ones.")
@click.option("--no-progress", is_flag=True, envvar="ROW_NO_PROGRESS", help="No progress bar, on a terminal either.")
@cluster_option
@registry_option
def scan(
    names: tuple[str, ...], action: str, prune: bool, accept: bool, no_progress: bool, files: tuple[str, ...]
) -> None:
    """Look on disk for products of commands, trial files and values of directories, and note what is found.

    pytest notes all of that when it happens. A scan is for what has changed otherwise: results that were copied, a
    removed index, edited value files. With names, only these directories or cells (-: names from stdin). Nothing but
    the index changes.
    """
    recipe = open_recipe()
    from pytest_aorta.workflow.project import Project, Scan

    project = Project(recipe, registry_files(files))
    project.synchronize_jobs(asked_cluster())
    warn_of(project.problems)
    only = chosen_units(names, project)
    search = Scan(project, project.actions(action), only, accepts=accept)
    values = len(project.directories if only is None else only) if recipe.workspace.value_file is not None else 0
    hidden = no_progress or not sys.stderr.isatty()
    length = search.expected + values  # of trials: those of the recipe, whether they are there or not
    steps = max(1, length // 200)
    with click.progressbar(
        length=length, label="Scanning", file=sys.stderr, hidden=hidden, show_pos=True, update_min_steps=steps
    ) as bar:
        project.workspace.refresh_values(lambda: bar.update(1), only)
        search.run(lambda: bar.update(1))
        bar.update(max(0, length - bar.pos))
    try:
        changed, removed = project.workspace.record(
            search.found, lambda name, unit: prune and search.is_gone(name, unit)
        )
    except OSError as error:
        raise RequestError(f"the index cannot be written: {error.strerror}: {recipe.index}") from None
    warn_of(search.unreadable)
    click.echo(f"index: {changed:,} new or changed{f', {removed:,} removed' if prune else ''}")
