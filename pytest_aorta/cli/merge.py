"""``pytest-aorta merge``: results of shards or hosts, or whole workspaces, into one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pytest_aorta.cli.shared import json_option, registry_option, warn_of
from pytest_aorta.common.texts import counted, one_line
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import matrix
from pytest_aorta.workflow.finding import FILE_NAMES, RecipeError, find_recipe
from pytest_aorta.workflow.known import Workspace
from pytest_aorta.workflow.project import Project, Scan
from pytest_aorta.workflow.recipe import read_recipe
from pytest_aorta.workspace.merge import Merge
from pytest_aorta.workspace.trial_store import stamp

#: Conflicts that are shown, without ``--json``.
_MOST_CONFLICTS = 20


@click.command("merge")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE...")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
@registry_option
def merge(
    sources: tuple[Path, ...],
    destination: Path,
    dry_run: bool,
    as_json: bool,
    files: tuple[str, ...],
) -> None:
    """For a folder with a recipe, its workspace is meant. Trials, artifacts, history and the products of commands are
    hard-linked or copied; nothing is overwritten. Where files of the same trial, or of the same name, differ, they are
    listed, nothing is changed, and the exit status is 1. A merge that was killed can be repeated. The matrix, and the
    index of a recipe at DESTINATION, are brought up to date.
    """
    roots = [_root(source, must_exist=True) for source in sources]
    target = _root(destination, must_exist=False)
    for given, root in zip(sources, roots, strict=True):
        start, end = root.resolve(), target.resolve()
        if start == end:
            raise RequestError(f"{given} is the destination, {destination}")
        if start in end.parents or end in start.parents:
            raise RequestError(f"{given} and the destination, {destination}, lie in each other")
    with _file_errors():
        found = Merge(roots, target)
        if not dry_run and not found.conflicts:
            found.carry_out(stamp())
            for results in sorted(found.results):
                merged = [root / results for root in roots if (root / results).is_dir()]
                matrix.write_merged_matrix(target / results, merged)
    if not dry_run and not found.conflicts:
        _update_index(target, sources, files)
    others = len(found.additions) - found.records
    if as_json:
        plain = {
            "destination": str(target),
            "dry_run": dry_run,
            "trials": found.records,
            "files": others,
            "identical": found.identical,
            "left_out": [str(path) for path in found.left_out],
            "conflicts": [{name: str(path) for name, path in each._asdict().items()} for each in found.conflicts],
        }
        click.echo(json.dumps(plain, indent=1))
    else:
        warn_of([f"left out, as it is of no finished trial: {path}" for path in found.left_out])
        for each in found.conflicts[:_MOST_CONFLICTS]:
            click.echo(f"conflict: {one_line(str(each.first))} and {one_line(str(each.second))} differ", err=True)
        if (left := len(found.conflicts) - _MOST_CONFLICTS) > 0:
            click.echo(f"and {left} more (--json)", err=True)
        if found.conflicts:
            click.echo(f"{counted(len(found.conflicts), 'conflict')}: nothing was changed", err=True)
        else:
            words = "would be merged" if dry_run else "merged"
            what = f"{counted(found.records, 'trial')} and {counted(others, 'other file')} {words}"
            more = [f"{found.identical:,} there already"] if found.identical else []
            click.echo("; ".join([f"{what} into {one_line(str(target))}", *more]))
    if found.conflicts:
        raise click.exceptions.Exit(1)


def _root(folder: Path, *, must_exist: bool) -> Path:
    """The folder itself, or the workspace of the recipe in it."""
    if must_exist and not folder.is_dir():
        raise RequestError(f"{folder}: there is no such folder; expected a results directory, or a workspace")
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is no folder")
    file = _recipe_in(folder)
    if file is None:
        return folder
    root = read_recipe(file).directories
    if must_exist and not root.is_dir():
        raise RequestError(f"{folder}: its recipe has the workspace {root}, which does not exist")
    return root


def _recipe_in(folder: Path) -> Path | None:
    return next((file for name in FILE_NAMES if (file := folder.absolute() / name).is_file()), None)


@contextlib.contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(f"{error.filename}: {error.strerror or error}; what was merged so far stays") from None


def _update_index(target: Path, sources: Sequence[Path], files: Sequence[str]) -> None:
    """Bring the index of a recipe at the destination up to date, with the failed commands of the sources' indices."""
    try:
        recipe = read_recipe(find_recipe(target))
    except RecipeError:
        return
    if recipe.directories.resolve() != target.resolve():
        return
    project = Project(recipe, files)
    project.synchronize_jobs()
    try:
        search = Scan(project, recipe.actions)
        for file in filter(None, map(_recipe_in, sources)):
            for action, units in Workspace.from_cache(read_recipe(file)).known.completed.items():
                failed = {unit: each for unit, each in units.items() if each is not None and each[0] == "failed"}
                search.found.completed.setdefault(action, {}).update(failed)
        search.run()
    except RequestError as error:  # names of a registry file, for instance
        click.echo(f"warning: the index is as it was ({one_line(str(error))}); run pytest-aorta scan", err=True)
        return
    with _file_errors():
        project.workspace.record(search.found)
