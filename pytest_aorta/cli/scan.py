"""``pytest-aorta scan``: make the index of a workspace from what is on disk."""

from __future__ import annotations

import sys

import click

from pytest_aorta.cli.shared import chosen_units, open_recipe, registry_files, registry_option, warn_of
from pytest_aorta.settings import RequestError


@click.command("scan")
@click.argument("names", nargs=-1, metavar="[DIRECTORY | CELL | -]...")
@click.option("-a", "--action", default="*", metavar="PATTERN", help="Actions to look for; * and ? are wildcards.")
@click.option("--prune", is_flag=True, help="Also forget what is completed by the index, and is not on disk.")
@click.option("--no-progress", is_flag=True, help="No progress bar, on a terminal either.")
@registry_option
def scan(names: tuple[str, ...], action: str, prune: bool, no_progress: bool, files: tuple[str, ...]) -> None:
    """Look on disk for products of commands, trial files and values of directories, and note what is found.

    pytest notes all of that when it happens. A scan is for what has changed otherwise: results that were copied, a
    removed index, edited value files. With names, only these directories or cells (-: names from stdin). Nothing but
    the index changes.
    """
    recipe = open_recipe()
    from pytest_aorta.workflow.project import Project, Scan

    project = Project(recipe, registry_files(files))
    project.synchronize_jobs()
    warn_of(project.problems)
    only = chosen_units(names, project)
    search = Scan(project, project.actions(action), only)
    values = len(project.directories) if recipe.workspace.value_file is not None else 0
    hidden = no_progress or not sys.stderr.isatty()
    length = search.expected + values  # of trials: those of the recipe, whether they are there or not
    steps = max(1, length // 200)
    with click.progressbar(
        length=length, label="Scanning", file=sys.stderr, hidden=hidden, show_pos=True, update_min_steps=steps
    ) as bar:
        project.workspace.refresh_values(lambda: bar.update(1))
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
