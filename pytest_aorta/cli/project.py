"""The recipe around the working directory, and what is known of its workspace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pytest_aorta.clusters.jobs import Job
    from pytest_aorta.workflow.actions import Action, Recipe
    from pytest_aorta.workflow.cell_requests import Requests
    from pytest_aorta.workflow.overview import Overview
    from pytest_aorta.workspace.index.directories import Directories
    from pytest_aorta.workspace.index.source_changes import SourceChanges

#: Where pytest looks for registry files that the command line does not name.
REGISTRY_VARIABLE = "PYTEST_AORTA_REGISTRY_FILE"

_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def registry_option(command: _Command) -> _Command:
    """The option ``--registry-file``, as ``files``."""
    return click.option(
        "--registry-file",
        "files",
        multiple=True,
        metavar="FILE",
        help=f"Registry file with more names, as pytest's --aorta-registry-file; repeat for several (or "
        f"${REGISTRY_VARIABLE}).",
    )(command)


@dataclass(frozen=True)
class Project:
    """A recipe and what is known of its workspace.

    Attributes:
        recipe: of the working directory.
        overview: of its actions.
        directories: of its workspace.
        sources: whether source files have changed.
        imported: whether a plugin was imported to know what the recipe asks for, which may give something else the
            next time although no file is another one.
        jobs: that had not ended before the scheduler was asked.
    """

    recipe: Recipe
    overview: Overview
    directories: Directories
    sources: SourceChanges
    imported: bool
    jobs: Sequence[Job] = ()

    def running(self, action: Action) -> set[str]:
        """The units of an action whose jobs run now."""
        return {
            unit
            for job in self.jobs
            if job.plan.action == action.name
            for number, task in enumerate(job.plan.tasks)
            if job.state(number).state == "RUNNING"
            for unit in task.units
        }

    def save(self) -> None:
        """Keep what was looked up, for the next command."""
        self.directories.save()
        self.sources.save()

    def actions(self, pattern: str) -> list[Action]:
        """The actions whose names match, in the order of the file.

        Raises:
            RequestError: there is none.
        """
        from fnmatch import fnmatchcase

        from pytest_aorta.settings import RequestError

        found = [action for action in self.recipe.actions if fnmatchcase(action.name, pattern)]
        if not found and self.recipe.actions:
            raise RequestError(f"no action matches {pattern!r}; there are {', '.join(self.recipe.by_name)}")
        return found


def open_recipe() -> Recipe:
    """The recipe of the working directory, or the nearest one above.

    Raises:
        RecipeError: there is none, or it is not valid.
    """
    from pytest_aorta.workflow.finding import find_recipe

    with _no_plugins_of_pydantic():
        from pytest_aorta.workflow.reading import read_recipe

    return read_recipe(find_recipe(Path.cwd()))


@contextlib.contextmanager
def _no_plugins_of_pydantic() -> Iterator[None]:
    """Models that are made meanwhile do not search all installed packages for plugins of pydantic."""
    before = os.environ.setdefault(_PLUGINS, "__all__")
    try:
        yield
    finally:
        if before == "__all__":
            del os.environ[_PLUGINS]


def open_project(files: Sequence[str] = (), *, rebuild: bool = True) -> Project:
    """The project of the working directory.

    Args:
        files: registry files.
        rebuild: whether an index that is damaged is made again from what is on disk.

    Raises:
        RequestError: there is none, its recipe is not valid, or asks for what is not registered.
    """
    return project_of(open_recipe(), files, rebuild=rebuild)  # the recipe first: it imports the models


def project_of(recipe: Recipe, files: Sequence[str] = (), *, rebuild: bool = True) -> Project:
    """The project of a recipe; see ``open_project``.

    Raises:
        RequestError: it asks for what is not registered.
    """
    from pytest_aorta.cli.rebuilding import rebuilt, warn_of_damage
    from pytest_aorta.workflow.directories import directories_of
    from pytest_aorta.workflow.overview import Overview
    from pytest_aorta.workspace.index.cache import read_index
    from pytest_aorta.workspace.index.decided import read_decided
    from pytest_aorta.workspace.index.source_changes import SourceChanges
    from pytest_aorta.workspace.index.submitted import read_submitted

    jobs = look_at_jobs(recipe, files)  # before the index is read: what has ended by then is in it
    directories = directories_of(recipe, cached=True)
    sources = SourceChanges(recipe.index)
    requests, imported = requests_of(recipe, files)
    index = read_index(recipe.index)
    if index.damaged:
        warn_of_damage(recipe, index)
        index = rebuilt(recipe, requests, directories.names, index) if rebuild else index
    overview = Overview(
        recipe,
        index,
        requests,
        directories.names,
        directories.value_of,
        sources.have_changed,
        read_submitted(recipe.index),
        read_decided(recipe.index),
    )
    return Project(recipe, overview, directories, sources, imported, jobs)


def look_at_jobs(recipe: Recipe, files: Sequence[str], *, everything: bool = False) -> Sequence[Job]:
    """Ask the scheduler for the jobs of a recipe that have not ended; what it says is kept in the index.

    Args:
        recipe: whose jobs.
        files: registry files.
        everything: whether to give all jobs, and not only those that had not ended before.
    """
    if not (recipe.index / "jobs").exists():
        return ()
    from pytest_aorta.clusters.jobs import read_jobs
    from pytest_aorta.clusters.reconciliation import reconcile
    from pytest_aorta.common.terminal_text import one_line
    from pytest_aorta.ended_jobs import EndedJobs

    ended = EndedJobs(recipe, tuple(map(Path, registry_files(files))))
    known = reconcile(recipe.index, recipe.root, ended.settle)
    for problem in known.problems:
        click.echo(f"warning: {one_line(problem)}", err=True)
    return read_jobs(recipe.index) if everything else known.jobs


def registry_files(files: Sequence[str]) -> tuple[str, ...]:
    """The registry files of the command line, or else those of the variable."""
    return tuple(files) or tuple(filter(None, os.environ.get(REGISTRY_VARIABLE, "").split(";")))


def requests_of(recipe: Recipe, files: Sequence[str]) -> tuple[Requests, bool]:
    """What is asked of the cells of a recipe, and whether a plugin was imported for that; ``files``: registry files."""
    matrices = [action.table for action in recipe.actions if action.is_matrix]
    if not matrices:
        return {}, False
    from pytest_aorta.cli.remembered import remember_requests, remembered_requests

    known = remembered_requests(recipe.file, registry_files(files))
    if known is not None:
        return known, False
    from pytest_aorta.recipe_plans import cell_requests, mitigation_set
    from pytest_aorta.registry import Registry
    from pytest_aorta.registry.types import BUILTIN_SOURCE

    registry = Registry.load([Path(file) for file in registry_files(files)])
    requests = cell_requests(recipe, registry)
    environments = {name for table in matrices for name in table.environments}
    mitigations = {name for table in matrices for names in table.mitigations for name in mitigation_set(names)}
    sources = {registry.environment(name).source_package for name in environments}
    sources |= {registry.mitigation(name).source_package for name in mitigations}
    imported = any(source != BUILTIN_SOURCE and not source.startswith("sidecar:") for source in sources)
    if not imported:
        remember_requests(recipe.file, registry_files(files), requests)
    return requests, imported
