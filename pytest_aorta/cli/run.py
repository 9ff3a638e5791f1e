"""Commands that start pytest or prepare its runs: run, ci-matrix, convert."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from pytest_aorta.cli.shared import (
    action_option,
    chosen_units,
    columns,
    names_argument,
    names_from_stdin,
    open_project,
    open_recipe,
    recipe_option,
    registry_option,
    warn_of,
    where_option,
)
from pytest_aorta.common.conditions import TypedCondition
from pytest_aorta.common.texts import utc_now
from pytest_aorta.settings import BY_NAME, RequestError


class StopsAtDashes(click.Command):
    """A command that leaves the words after ``--`` in ``ctx.obj``: options of pytest, or a command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.obj = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


def run_pytest(arguments: list[str], settings: Mapping[str, str | None]) -> int:
    """Its exit status."""
    import pytest

    words = [f"{BY_NAME[name].hidden}={text}" for name, text in settings.items() if text is not None]
    try:
        return int(pytest.main([*words, *arguments]))
    except KeyboardInterrupt:  # before its session, or after it
        return int(pytest.ExitCode.INTERRUPTED)


@click.command(
    "run", cls=StopsAtDashes, options_metavar="[OPTIONS]", epilog="Options of pytest follow --: run -- -x -s"
)
@names_argument("[DIRECTORY | CELL | TRIAL | -]...")
@action_option("Of these actions; * and ? are wildcards.")
@click.option("--new", is_flag=True, help="Run completed trials again; earlier results move to the history.")
@recipe_option
@where_option
@registry_option
@click.pass_obj
def run(
    arguments: list[str] | None,
    names: tuple[str, ...],
    action: str,
    new: bool,
    recipe: Path | None,
    where: tuple[TypedCondition, ...],
    files: tuple[str, ...],
) -> None:
    """With names, runs only these directories, or all trials of these cells (-: names from stdin), also within a group.
    Skips actions that wait for previous ones.
    """
    checked = open_recipe(recipe)
    from pytest_aorta.workflow.project import Project

    project = Project(checked, files, fresh=True)
    project.actions(action)  # refuses what matches none
    warn_of(project.problems)
    only = chosen_units(names_from_stdin(names), project)
    words = [str(checked.file), "-rs", *(f"--aorta-where={each.text}" for each in where)]
    words += [f"--aorta-registry-file={Path(file).absolute()}" for file in files]
    units = None if only is None else "\n".join(sorted(only))
    settings = {"actions": action, "units": units, "since": utc_now() if new else None}
    raise click.exceptions.Exit(run_pytest([*words, *(arguments or ())], settings))


@click.command("ci-matrix")
@click.argument("arguments", nargs=-1, metavar="[-- PYTEST_ARGUMENT...]", type=click.UNPROCESSED)
@click.option(
    "--jobs",
    "count",
    type=click.IntRange(1),
    required=True,
    metavar="N",
    help="Number of jobs; at most one per item.",
)
@click.option("--github", "form", flag_value="github", help="One line for strategy.matrix of GitHub Actions.")
@click.option("--json", "form", flag_value="json", help="One JSON object.")
@registry_option
def ci_matrix(arguments: tuple[str, ...], count: int, form: str | None, files: tuple[str, ...]) -> None:
    """Each job has the arguments of its pytest, with --aorta-shard. Uses the recipe of the working directory, or the
    nearest one above. Collects nothing, so that it counts items of recipes only.
    """
    items: Counter[int] | None = None
    if not arguments:
        from pytest_aorta.workflow.project import planned_items
        from pytest_aorta.workflow.shards import joined, shards_of

        project = open_project(files)
        names, keys = zip(*planned_items(project), strict=True)
        project.workspace.save()
        count = min(count, len(joined(keys)))
        items = Counter(shards_of(names, keys, count))
        arguments = (os.path.relpath(project.recipe.file),)
    jobs = [
        {
            "name": f"shard {number} of {count}",
            "folder": f"shard-{number}",
            "shard": f"{number}/{count}",
            "arguments": shlex.join([*arguments, "--aorta-shard", f"{number}/{count}"]),
            "items": None if items is None else items[number - 1],
        }
        for number in range(1, count + 1)
    ]
    if form is not None:
        click.echo(json.dumps({"jobs": jobs}, indent=1) if form == "json" else json.dumps({"include": jobs}))
        return
    rows = [("Shard", "Items", "Command")]
    for job in jobs:
        own = "" if job["items"] is None else f"{job['items']:,}"
        rows.append((str(job["shard"]), own, f"pytest {job['arguments']}"))
    click.echo("\n".join(columns(rows, right=(1,))))


@click.command("convert")
@click.argument("sweep", type=click.Path(path_type=Path), metavar="FILE")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="aorta.toml",
    show_default=True,
    metavar="FILE",
    help="The recipe; - for stdout.",
)
def convert(sweep: Path, command: tuple[str, ...], output: Path) -> None:
    """A sweep with mode: probe needs a COMMAND. Notes in the recipe and on stderr name the parts without a counterpart.
    An unknown key is an error. Overwrites nothing.
    """
    from pytest_aorta.workflow.recipe import parse_recipe
    from pytest_aorta.workflow.sweeps import converted, read_sweep
    from pytest_aorta.workspace.atomic import staged_text

    if str(output) != "-" and not (output.name == "aorta.toml" or output.name.endswith(".aorta.toml")):
        raise RequestError(f"-o {output}: pytest would not collect it; expected aorta.toml or NAME.aorta.toml")
    try:
        text, notes = converted(read_sweep(sweep), sweep, command)
    except RequestError as error:
        raise error if str(sweep) in str(error) else RequestError(f"{sweep}: {error}") from None
    parse_recipe(text, output)
    if str(output) == "-":
        click.echo(text, nl=False)
    else:
        try:
            with staged_text(output, text) as temporary:
                os.link(temporary, output)
        except FileExistsError:
            raise RequestError(f"{output} is there already; -o FILE names another one") from None
        except OSError as error:
            raise RequestError(f"{output} cannot be written: {error.strerror}") from None
        click.echo(f"recipe: {output}; pytest {output}")
    warn_of([f"not converted: {note}" for note in notes])
