"""``pytest-aorta run``: pytest on the directories, cells and trials of a recipe that are named, and on no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pytest_aorta.cli.shared import (
    action_option,
    chosen_units,
    names_argument,
    open_recipe,
    registry_files,
    registry_option,
    where_option,
)


class _BeforePytest(click.Command):
    """What follows ``--`` is for pytest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.obj = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


@click.command(
    "run", cls=_BeforePytest, options_metavar="[OPTIONS]", epilog="Options of pytest follow --: run -- -x -s"
)
@names_argument("[DIRECTORY | CELL | TRIAL | -]...")
@action_option("Of these actions; * and ? are wildcards.")
@click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Another recipe than aorta.toml.")
@where_option
@registry_option
@click.pass_context
def run(
    ctx: click.Context,
    names: tuple[str, ...],
    action: str,
    recipe: Path | None,
    where: tuple[str, ...],
    files: tuple[str, ...],
) -> None:
    """Run what is left of a recipe here, with pytest.

    With names, exactly these directories, or all trials of these cells (-: names from stdin): of a group, only those
    that are named. What waits for previous actions is skipped.
    """
    checked = open_recipe(recipe)
    from pytest_aorta.workflow.project import Project

    project = Project(checked, registry_files(files), fresh=True)
    project.actions(action)  # refuses what matches none
    only = chosen_units(names, project)
    texts: dict[str, Any] = {"actions": action, "units": None if only is None else "\n".join(sorted(only))}
    import pytest

    from pytest_aorta.plugin.options import CommandSettings

    arguments = [str(checked.file), "-rs", *(f"--aorta-where={each}" for each in where)]
    arguments += [f"--aorta-registry-file={Path(file).absolute()}" for file in files]
    ctx.exit(int(pytest.main([*arguments, *(ctx.obj or ())], plugins=[CommandSettings(**texts)])))
