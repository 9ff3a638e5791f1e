"""``pytest-aorta convert``: a sweep recipe of AORTA's as a recipe."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_aorta.common.texts import one_line
from pytest_aorta.settings import RequestError


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
    """Write a sweep recipe of AORTA's (YAML) as a recipe, which pytest runs.

    One with mode: probe is about a COMMAND. What has no counterpart is said in the recipe and on stderr; a key that is
    not known is an error. Nothing is overwritten.
    """
    import os

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
    for note in notes:
        click.echo(f"warning: not converted: {one_line(note)}", err=True)
