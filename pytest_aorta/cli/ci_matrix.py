"""``pytest-aorta ci-matrix``: a list of jobs for CI, each of which runs one shard."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import columns, open_project, registry_option
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from collections.abc import Hashable


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
@click.option(
    "--results",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Earlier results, or an earlier workspace, that say how long trials take; repeat (default: of the recipe).",
)
@click.option(
    "--durations",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What is known of durations: brought up to date here, and read by the jobs, which all have to have it.",
)
@click.option("--github", "form", flag_value="github", help="One line for strategy.matrix of GitHub Actions.")
@click.option("--json", "form", flag_value="json", help="One JSON object.")
@registry_option
def ci_matrix(
    arguments: tuple[str, ...],
    count: int,
    folders: tuple[Path, ...],
    file: Path | None,
    form: str | None,
    files: tuple[str, ...],
) -> None:
    """A list of jobs that together run all trials of a recipe, or of pytest with the given arguments.

    Each has the arguments of its pytest, with --aorta-shard. The recipe is that of the working directory, or the
    nearest one above. Nothing is collected: how many items there are is known for a recipe only.
    """
    from pytest_aorta.workflow.shards import joined, read_durations, write_durations

    for folder in folders:
        if not folder.is_dir():
            raise RequestError(f"--results {folder}: there is no such folder")
    if arguments:
        seconds = _seconds(folders)
        items: _Items = [(f"{cell[:-1]}-{i}]", ()) for cell, found in seconds.items() for i in range(len(found))]
    else:
        seconds, items, recipe = _of_recipe(folders, files)
        count = min(count, len(joined([keys for _, keys in items])))
    known = {cell: sum(found) / len(found) for cell, found in seconds.items()}
    if file is not None:
        known = {**(read_durations(file).seconds if file.exists() else {}), **known}
        try:
            write_durations(file, known)
        except OSError as error:
            raise RequestError(f"--durations {file}: {error.strerror}") from None
    jobs = list(_jobs(arguments or (recipe,), count, items, known, file, is_plan=not arguments))
    _echo(jobs, form, file)
    if known and file is None:
        click.echo(
            f"the durations of {len(known)} cells are known; with --durations FILE, the jobs are balanced by them",
            err=True,
        )


#: Items with their keys, in order.
_Items = Sequence[tuple[str, "Sequence[Hashable]"]]

#: What trials of each cell have taken.
_Seconds = dict[str, list[float]]


def _of_recipe(results: Sequence[Path], files: Sequence[str]) -> tuple[_Seconds, _Items, str]:
    from pytest_aorta.common.texts import identifier
    from pytest_aorta.workflow.project import planned_items

    project = open_project(files)
    recipe = project.recipe
    found: _Seconds = {}
    for action in recipe.actions:
        folders = [each / action.name for each in results or (recipe.directories,)] if action.is_matrix else []
        found |= _seconds([each for each in folders if each.is_dir()], identifier(action.name))
    items = list(planned_items(project))
    project.save()
    return found, items, os.path.relpath(recipe.file)


def _seconds(results: Sequence[Path], name: str | None = None) -> _Seconds:
    """By the name of the cell's items without their index: ``gemm[local-none]``."""
    from pytest_aorta.common.texts import identifier
    from pytest_aorta.triage.reading import Results

    found: _Seconds = {}
    for folder in results:
        for trial in Results(folder):
            record, seconds = trial.record, trial.facts.wall_sec
            if not record.get("test") and isinstance(record.get("cell"), str) and seconds is not None:
                found.setdefault(f"{name or identifier(record['workload'])}[{record['cell']}]", []).append(seconds)
    return found


def _jobs(
    arguments: Sequence[str], count: int, items: _Items, known: dict[str, float], file: Path | None, *, is_plan: bool
) -> Iterator[dict[str, Any]]:
    """As JSON has them; the number of items is known of a plan only, and times where any is known."""
    from pytest_aorta.workflow.shards import Durations, read_durations, shards_of

    names = [name for name, _ in items]
    shards = shards_of(names, [keys for _, keys in items], count, Durations() if file is None else read_durations(file))
    expected = Durations(known)
    for number in range(count):
        own = [name for name, shard in zip(names, shards, strict=True) if shard == number]
        shard = f"{number + 1}/{count}"
        yield {
            "name": f"shard {number + 1} of {count}",
            "folder": f"shard-{number + 1}",
            "shard": shard,
            "arguments": shlex.join([*arguments, "--aorta-shard", shard if file is None else f"{shard}:{file}"]),
            "items": len(own) if is_plan else None,
            "expected_sec": sum(map(expected.of, own)) / 1000 if known else None,
        }


def _echo(jobs: Sequence[dict[str, Any]], form: str | None, file: Path | None) -> None:
    if form == "json":
        click.echo(json.dumps({"jobs": jobs, "durations": str(file) if file is not None else None}, indent=1))
    elif form == "github":
        click.echo(json.dumps({"include": jobs}))
    else:
        rows = [("Shard", "Items", "Expected", "Command")]
        for job in jobs:
            items, seconds = job["items"], job["expected_sec"]
            rows.append(
                (
                    job["shard"],
                    "" if items is None else f"{items:,}",
                    "" if seconds is None else f"{seconds:,.0f} s",
                    f"pytest {job['arguments']}",
                )
            )
        for line in columns(rows, right=(1, 2)):
            click.echo(line)
