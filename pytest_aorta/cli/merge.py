"""``pytest-aorta merge``: results of shards or hosts, or whole workspaces, into one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import click

from pytest_aorta.cli.shared import json_option, registry_option
from pytest_aorta.common.texts import counted, one_line
from pytest_aorta.settings import RequestError
from pytest_aorta.triage import matrix
from pytest_aorta.workflow.finding import FILE_NAMES, RecipeError, find_recipe
from pytest_aorta.workflow.project import Project, Scan
from pytest_aorta.workflow.recipe import read_recipe
from pytest_aorta.workspace.merge import Merge
from pytest_aorta.workspace.trial_store import stamp


@click.command("merge")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE...")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
@registry_option
def merge(sources: tuple[Path, ...], destination: Path, dry_run: bool, as_json: bool, files: tuple[str, ...]) -> None:
    """A folder with a recipe stands for its workspace. Trials, artifacts, history and the products of commands are
    hard-linked or copied. Equal files become one; where two files of one trial, or of one name, differ, nothing is
    merged. A merge that was killed can be repeated. The matrix, and the index of a recipe at DESTINATION, are brought
    up to date.
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
        plan = Merge(roots, target)
        if plan.differences:
            first, second = (one_line(str(path)) for path in plan.differences[0])
            others = len(plan.differences) - 1
            more = f" (and {counted(others, 'other pair')})" if others else ""
            raise RequestError(f"{first} and {second} differ{more}; nothing was merged")
        if not dry_run:
            plan.carry_out(stamp())
            for results in sorted(plan.results):
                parts = [root / results for root in roots if (root / results).is_dir()]
                matrix.write_merged_matrix(target / results, parts)
            _update_index(target, files)
    others_added = len(plan.additions) - plan.trials
    if as_json:
        counts = {"trials": plan.trials, "files": others_added, "identical": plan.identical}
        click.echo(json.dumps({"destination": str(target), "dry_run": dry_run, **counts}, indent=1))
        return
    words = "would be merged" if dry_run else "merged"
    what = f"{counted(plan.trials, 'trial')} and {counted(others_added, 'other file')} {words}"
    more = f"; {plan.identical:,} there already" if plan.identical else ""
    click.echo(f"{what} into {one_line(str(target))}{more}")


def _root(folder: Path, *, must_exist: bool) -> Path:
    """The folder itself, or the workspace of the recipe in it."""
    if must_exist and not folder.is_dir():
        raise RequestError(f"{folder}: there is no such folder; expected a results directory, or a workspace")
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is no folder")
    file = next((file for name in FILE_NAMES if (file := folder.absolute() / name).is_file()), None)
    root = folder if file is None else read_recipe(file).directories
    if must_exist and not root.is_dir():
        raise RequestError(f"{folder}: its recipe has the workspace {root}, which does not exist")
    return root


@contextlib.contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(f"{error.filename}: {error.strerror or error}; what was merged so far stays") from None


def _update_index(target: Path, files: tuple[str, ...]) -> None:
    """Bring the index of a recipe, whose workspace the destination is, up to date."""
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
        search.run()
    except RequestError as error:  # names of a registry file, for instance
        click.echo(f"warning: the index is as it was ({one_line(str(error))}); run pytest-aorta scan", err=True)
        return
    project.workspace.record(search.found)
