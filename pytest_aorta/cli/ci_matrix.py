"""``pytest-aorta ci-matrix``: a list of jobs for CI, each of which runs one shard."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import columns, open_project, registry_option
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from collections.abc import Hashable

#: The job that those of GitLab extend, and the variable with their arguments.
_TEMPLATE, _VARIABLE = ".aorta-shard", "AORTA_ARGUMENTS"


@dataclass(frozen=True)
class Job:
    """One shard.

    Attributes:
        shard: ``2/4``.
        arguments: of pytest, quoted for a shell.
        items: how many it has; ``None`` where that is not known.
        expected_sec: what its trials are expected to take, one after the other; ``None`` likewise.
    """

    shard: str
    arguments: str
    items: int | None
    expected_sec: float | None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        name = f"shard {self.shard.replace('/', ' of ')}"
        folder = f"shard-{self.shard.partition('/')[0]}"
        return {"name": name, "folder": folder, **vars(self)}


@click.command("ci-matrix")
@click.argument("arguments", nargs=-1, metavar="[-- PYTEST_ARGUMENT...]", type=click.UNPROCESSED)
@click.option(
    "--jobs", type=click.IntRange(1), required=True, metavar="N", help="How many jobs; fewer items, fewer jobs."
)
@click.option(
    "--results",
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
@click.option("--github", is_flag=True, help="One line for strategy.matrix of GitHub Actions.")
@click.option("--gitlab", is_flag=True, help=f"A child pipeline of GitLab CI, whose jobs extend {_TEMPLATE}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
def ci_matrix(
    arguments: tuple[str, ...],
    jobs: int,
    results: tuple[Path, ...],
    file: Path | None,
    github: bool,
    gitlab: bool,
    as_json: bool,
    files: tuple[str, ...],
) -> None:
    """A list of jobs that together run all trials of a recipe, or of pytest with the given arguments.

    Each has the arguments of its pytest, with --aorta-shard. The recipe is that of the working directory, or the
    nearest one above. Nothing is collected: how many items there are is known for a recipe only.
    """
    if github + gitlab + as_json > 1:
        raise RequestError("--github, --gitlab and --json: use one of them")
    for folder in results:
        if not folder.is_dir():
            raise RequestError(f"--results {folder}: there is no such folder")
    if arguments:
        known, items = _seconds(results), _recorded(results)
    else:
        known, items, recipe = _of_recipe(results, files)
    if file is not None:
        known = _update(file, known)
    found = _jobs(arguments or (recipe,), jobs, items, known, file, is_plan=not arguments)
    if as_json:
        content = {"jobs": [job.plain() for job in found], "durations": str(file) if file is not None else None}
        click.echo(json.dumps(content, indent=1))
    elif github:
        click.echo(json.dumps({"include": [job.plain() for job in found]}))
    elif gitlab:
        click.echo(json.dumps({f"aorta {job.shard}": _gitlab(job) for job in found}, indent=1))
    else:
        _echo_table(found)
    if known and file is None:
        click.echo(
            f"the durations of {len(known)} cells are known; with --durations FILE, the jobs are balanced by them",
            err=True,
        )


def _gitlab(job: Job) -> dict[str, Any]:
    plain = job.plain()
    return {"extends": _TEMPLATE, "variables": {_VARIABLE: job.arguments, "AORTA_FOLDER": plain["folder"]}}


def _echo_table(jobs: Sequence[Job]) -> None:
    rows = [
        (
            job.shard,
            "" if job.items is None else f"{job.items:,}",
            "" if job.expected_sec is None else f"{job.expected_sec:,.0f} s",
            f"pytest {job.arguments}",
        )
        for job in jobs
    ]
    for line in columns([("Shard", "Items", "Expected", "Command"), *rows], right=(1, 2)):
        click.echo(line)


#: Items with their keys, in order.
_Items = Sequence[tuple[str, "Sequence[Hashable]"]]


def _of_recipe(results: Sequence[Path], files: Sequence[str]) -> tuple[dict[str, float], _Items, str]:
    from pytest_aorta.trials.conversion import identifier
    from pytest_aorta.workflow.project import planned_items

    project = open_project(files)
    recipe = project.recipe
    known: dict[str, float] = {}
    for action in recipe.actions:
        if action.is_matrix:
            folders = [each / action.name for each in results] if results else [recipe.directories / action.name]
            known |= _seconds([each for each in folders if each.is_dir()], identifier(action.name))
    items = list(planned_items(project))
    project.save()
    return known, items, os.path.relpath(recipe.file)


def _trials(results: Sequence[Path]) -> Iterator[tuple[str, str, float | None]]:
    from pytest_aorta.triage.reading import Results

    for folder in results:
        for trial in Results(folder):
            record = trial.record
            if not record.get("test") and isinstance(record.get("cell"), str):
                yield record["workload"], record["cell"], record.get("wall_clock_sec")


def _seconds(results: Sequence[Path], name: str | None = None) -> dict[str, float]:
    from pytest_aorta.trials.conversion import identifier

    found: dict[str, list[float]] = {}
    for workload, cell, seconds in _trials(results):
        if seconds is not None and seconds >= 0:
            found.setdefault(f"{name or identifier(workload)}[{cell}]", []).append(seconds)
    return {cell: sum(each) / len(each) for cell, each in found.items()}


def _recorded(results: Sequence[Path]) -> _Items:
    from pytest_aorta.trials.conversion import identifier

    counts: dict[str, int] = {}
    for workload, cell, _ in _trials(results):
        counts[f"{identifier(workload)}[{cell}"] = counts.get(f"{identifier(workload)}[{cell}", 0) + 1
    return [(f"{cell}-{index}]", ()) for cell, count in counts.items() for index in range(count)]


def _update(file: Path, known: dict[str, float]) -> dict[str, float]:
    from pytest_aorta.workflow.shards import read_durations, write_durations

    everything = {**(read_durations(file).seconds if file.exists() else {}), **known}
    try:
        write_durations(file, everything)
    except OSError as error:
        raise RequestError(f"--durations {file}: {error.strerror}") from None
    return everything


def _jobs(
    arguments: Sequence[str], count: int, items: _Items, known: dict[str, float], file: Path | None, *, is_plan: bool
) -> list[Job]:
    from pytest_aorta.workflow.shards import Durations, joined, read_durations, shards_of

    names, keys = [name for name, _ in items], [keys for _, keys in items]
    if is_plan:
        count = min(count, len(joined(keys)))
    shards = shards_of(names, keys, count, read_durations(file) if file is not None else Durations())
    expected = Durations(known)
    jobs = []
    for number in range(count):
        own = [name for name, shard in zip(names, shards, strict=True) if shard == number]
        seconds = sum(map(expected.of, own)) / 1000 if known else None
        shard = f"{number + 1}/{count}"
        given = shard if file is None else f"{shard}:{file}"
        text = shlex.join([*arguments, "--aorta-shard", given])
        jobs.append(Job(shard, text, len(own) if is_plan else None, seconds))
    return jobs
