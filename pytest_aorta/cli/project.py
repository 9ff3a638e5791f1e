"""The recipe around the working directory, and its project, for commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pytest_aorta.common.texts import one_line

if TYPE_CHECKING:
    from pytest_aorta.workflow.project import Project
    from pytest_aorta.workflow.recipe import Recipe

#: Where pytest looks for registry files that the command line does not name.
REGISTRY_VARIABLE = "PYTEST_AORTA_REGISTRY_FILE"

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


def registry_files(files: Sequence[str]) -> tuple[str, ...]:
    """The registry files of the command line, or else those of the variable."""
    return tuple(files) or tuple(filter(None, os.environ.get(REGISTRY_VARIABLE, "").split(";")))


def open_recipe(file: Path | None = None) -> Recipe:
    """The recipe in a file, or that of the working directory or the nearest one above; raises ``RecipeError``."""
    from pytest_aorta.workflow.finding import find_recipe

    file = find_recipe(Path.cwd()) if file is None else file.absolute()  # before the models are imported
    from pytest_aorta.workflow.recipe import read_recipe

    return read_recipe(file)


def open_project(files: Sequence[str] = ()) -> Project:
    """The project of the working directory; what may be out of date in it is warned of."""
    recipe = open_recipe()
    from pytest_aorta.workflow.project import Project

    project = Project.opened(recipe, registry_files(files))
    warn_of(project.problems)
    return project


def warn_of(problems: Sequence[str]) -> None:
    """Each is a line on stderr."""
    for problem in problems:
        click.echo(f"warning: {one_line(problem)}", err=True)
