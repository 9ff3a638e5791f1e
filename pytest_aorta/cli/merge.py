"""``pytest-aorta merge``: results of shards or hosts, or whole workspaces, into one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_aorta.cli.shared import registry_files, registry_option
from pytest_aorta.common.texts import one_line
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from pytest_aorta.workspace.merge import Conflict, MergePlan

#: Conflicts that are shown, without ``--json``.
_MOST = 20

#: Exit status where files contradict each other.
_CONFLICT = 1


@click.command("merge")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE...")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--newer", is_flag=True, help="Of two records of one trial, take the one that was started later.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@registry_option
def merge(
    sources: tuple[Path, ...],
    destination: Path,
    newer: bool,
    dry_run: bool,
    as_json: bool,
    files: tuple[str, ...],
) -> None:
    """Merge results directories, or workspaces of recipes, into DESTINATION, which is made where there is none.

    For a folder with a recipe, its workspace is meant. Trials, artifacts, history and the products of commands are
    hard-linked or copied; nothing is overwritten. Where files of the same trial, or of the same name, differ, they are
    listed, nothing is changed, and the exit status is 1. A merge that was killed can be repeated. The matrix, and the
    index of a recipe at DESTINATION, are brought up to date.
    """
    from pytest_aorta.workspace.history import stamp
    from pytest_aorta.workspace.merge import Found, carry_out, look, plan_merge

    roots = [_root(source, must_exist=True) for source in sources]
    target = _root(destination, must_exist=False)
    _check(list(zip(sources, roots, strict=True)), destination, target)
    with _file_errors():
        there = look(target) if target.is_dir() else Found(target)
        plan = plan_merge([look(root) for root in roots], there, newer=newer)
        if not dry_run and not plan.conflicts:
            carry_out(plan, target, stamp())
            _write_matrices(plan, target, roots)
    if not dry_run and not plan.conflicts:
        _update_index(target, sources, files)
    if as_json:
        click.echo(json.dumps(_plain(plan, target, dry_run), indent=1))
    else:
        _echo(plan, target, dry_run)
    if plan.conflicts:
        raise click.exceptions.Exit(_CONFLICT)


def _root(folder: Path, *, must_exist: bool) -> Path:
    from pytest_aorta.workflow.finding import FILE_NAMES
    from pytest_aorta.workflow.recipe import read_recipe

    if must_exist and not folder.is_dir():
        raise RequestError(f"{folder}: there is no such folder; expected a results directory, or a workspace")
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is no folder")
    for name in FILE_NAMES:
        if (folder / name).is_file():
            root = read_recipe(folder.absolute() / name).directories
            if must_exist and not root.is_dir():
                raise RequestError(f"{folder}: its recipe has the workspace {root}, which does not exist")
            return root
    return folder


def _check(sources: Sequence[tuple[Path, Path]], destination: Path, target: Path) -> None:
    end = target.resolve()
    for given, root in sources:
        start = root.resolve()
        if start == end:
            raise RequestError(f"{given} is the destination, {destination}")
        if start in end.parents or end in start.parents:
            raise RequestError(f"{given} and the destination, {destination}, lie in each other")


@contextlib.contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(f"{error.filename}: {error.strerror or error}; what was merged so far stays") from None


def _write_matrices(plan: MergePlan, target: Path, roots: Sequence[Path]) -> None:
    from pytest_aorta.triage.matrix import write_merged_matrix

    for results in sorted(plan.results):
        write_merged_matrix(target / results, [root / results for root in roots if (root / results).is_dir()])


def _update_index(target: Path, sources: Sequence[Path], files: Sequence[str]) -> None:
    """Bring the index of a recipe at the destination up to date, with the failed commands of the sources' indices."""
    from pytest_aorta.workflow.finding import FILE_NAMES, RecipeError, find_recipe
    from pytest_aorta.workflow.recipe import read_recipe

    try:
        recipe = read_recipe(find_recipe(target))
    except RecipeError:
        return
    if recipe.directories.resolve() != target.resolve():
        return
    from pytest_aorta.workflow.known import Workspace
    from pytest_aorta.workflow.project import Project, Scan

    project = Project(recipe, registry_files(files))
    project.synchronize_jobs()
    search = Scan(project, recipe.actions)
    for source in sources:
        file = next((source / name for name in FILE_NAMES if (source / name).is_file()), None)
        if file is None:
            continue  # a results directory
        for action, units in Workspace.from_cache(read_recipe(file.absolute())).known.completed.items():
            failed = {unit: each for unit, each in units.items() if each is not None and each[0] == "failed"}
            search.found.completed.setdefault(action, {}).update(failed)
    try:
        search.run()
    except RequestError as error:  # names of a registry file, for instance
        click.echo(f"warning: the index is as it was ({one_line(str(error))}); run pytest-aorta scan", err=True)
        return
    with _file_errors():
        project.workspace.record(search.found)


def _plain(plan: MergePlan, target: Path, dry_run: bool) -> dict[str, Any]:
    return {
        "destination": str(target),
        "dry_run": dry_run,
        "trials": plan.records,
        "files": len(plan.additions) - plan.records,
        "identical": plan.identical,
        "older": plan.older,
        "replaced": [str(path) for _, path in plan.replaced],
        "left_out": [str(path) for path in plan.left_out],
        "conflicts": [
            {"path": str(each.path), "first": str(each.first), "second": str(each.second)} for each in plan.conflicts
        ],
    }


def _echo(plan: MergePlan, target: Path, dry_run: bool) -> None:
    conflicts = plan.conflicts
    for path in plan.left_out:
        click.echo(f"warning: left out, as it is of no finished trial: {one_line(str(path))}", err=True)
    for each in conflicts[:_MOST]:
        click.echo(f"conflict: {one_line(str(each.first))} and {one_line(str(each.second))} differ", err=True)
    if len(conflicts) > _MOST:
        click.echo(f"and {len(conflicts) - _MOST} more (--json)", err=True)
    if conflicts:
        hint = "; --newer takes the later one of two records" if any(map(_is_record, conflicts)) else ""
        click.echo(f"{_counted(len(conflicts), 'conflict')}: nothing was changed{hint}", err=True)
        return
    parts = [_counted(plan.records, "trial"), f"{_counted(len(plan.additions) - plan.records, 'other file')}"]
    more = [f"{plan.identical:,} there already"] if plan.identical else []
    more += [f"{len(plan.replaced):,} replaced, the older ones are in the history"] if plan.replaced else []
    more += [f"{plan.older:,} older left out"] if plan.older else []
    words = "would be merged" if dry_run else "merged"
    click.echo(f"{' and '.join(parts)} {words} into {one_line(str(target))}{''.join(f'; {each}' for each in more)}")


def _is_record(conflict: Conflict) -> bool:
    from pytest_aorta.workspace.merge import is_trial_file

    return is_trial_file(conflict.path.name)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
