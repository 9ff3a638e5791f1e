"""``pytest-aorta ci-matrix``: a list of jobs for CI, each of which runs one shard."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter

import click

from pytest_aorta.cli.shared import columns, open_project, registry_option


@click.command("ci-matrix")
@click.argument("arguments", nargs=-1, metavar="[-- PYTEST_ARGUMENT...]", type=click.UNPROCESSED)
@click.option(
    "--jobs",
    "count",
    type=click.IntRange(1),
    required=True,
    metavar="N",
    help="How many jobs; fewer items, fewer jobs.",
)
@click.option("--github", "form", flag_value="github", help="One line for strategy.matrix of GitHub Actions.")
@click.option("--json", "form", flag_value="json", help="One JSON object.")
@registry_option
def ci_matrix(arguments: tuple[str, ...], count: int, form: str | None, files: tuple[str, ...]) -> None:
    """A list of jobs that together run all trials of a recipe, or of pytest with the given arguments.

    Each has the arguments of its pytest, with --aorta-shard. The recipe is that of the working directory, or the
    nearest one above. Nothing is collected: how many items there are is known for a recipe only.
    """
    from pytest_aorta.workflow.project import planned_items
    from pytest_aorta.workflow.shards import joined, shards_of

    items = Counter[int]()
    if not arguments:
        project = open_project(files)
        names, keys = zip(*planned_items(project), strict=True)
        project.save()
        count = min(count, len(joined(keys)))
        items = Counter(shards_of(names, keys, count))
    jobs = [
        {
            "name": f"shard {number + 1} of {count}",
            "folder": f"shard-{number + 1}",
            "shard": f"{number + 1}/{count}",
            "arguments": shlex.join(
                [*(arguments or (os.path.relpath(project.recipe.file),)), "--aorta-shard", f"{number + 1}/{count}"]
            ),
            "items": None if arguments else items[number],
        }
        for number in range(count)
    ]
    if form is not None:
        click.echo(json.dumps({"jobs": jobs}, indent=1) if form == "json" else json.dumps({"include": jobs}))
        return
    rows = [("Shard", "Items", "Command")]
    for job in jobs:
        own = "" if job["items"] is None else f"{job['items']:,}"
        rows.append((str(job["shard"]), own, f"pytest {job['arguments']}"))
    for line in columns(rows, right=(1,)):
        click.echo(line)
