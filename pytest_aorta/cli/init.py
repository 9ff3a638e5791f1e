"""``pytest-aorta init``: a folder with a recipe to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_aorta.settings import RequestError

_TEXT = """\
# Run it: pytest aorta.toml
# What is done, and what is left: pytest-aorta status

[workspace]
path = {path}
{value_file}  # of each directory, for conditions, sort keys and {{/json/pointers}} in commands

# Trials of a command; their results are in {workspace}/example/. This one fails sometimes: write your own in its place.
[[action]]
name = "example"
command = "python3 -c 'import random; exit(random.random() < 0.3)'"
trials = 5  # in each cell; a cell for each of the mitigations, see pytest-aorta list mitigations
mitigations = ["none", "OMP_NUM_THREADS=1"]
# timeout = "5m"
# fail_on = "loss nan"

# A command on each directory of {workspace}/; it is completed when its products are there.
# [[action]]
# name = "one"
# command = "echo hello > {{workspace_path}}/{{directory}}/one.txt"
# products = ["one.txt"]
"""


@click.command("init")
@click.option("-w", "--workspace", default="workspace", metavar="NAME", help="Folder of the directories, in DIR.")
@click.option("--signac", is_flag=True, help="Values are those of signac: signac_statepoint.json.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def init(workspace: str, signac: bool, folder: Path) -> None:
    """Make DIR, if it is not there, with a recipe (aorta.toml) and a workspace."""
    import json
    import os

    from pytest_aorta.workflow.finding import RecipeError, find_recipe
    from pytest_aorta.workspace.atomic import staged_text

    if signac and workspace != "workspace":
        raise RequestError("--signac and --workspace: use one of them; the workspace of signac is called workspace")
    if Path(workspace).is_absolute() or ".." in Path(workspace).parts or not workspace.strip():
        raise RequestError(f"--workspace {workspace!r}: expected the name of a folder in DIR")
    try:
        found = find_recipe(folder)
    except RecipeError:
        found = None
    if found is not None:
        raise RequestError(f"{found} is there already; a recipe is for all folders below its own")
    if (folder / ".aorta").exists():
        raise RequestError(f"{folder / '.aorta'} is there already, the index of another recipe; remove it first")
    file = folder / "aorta.toml"
    value_file = 'value_file = "signac_statepoint.json"' if signac else '# value_file = "value.json"'
    shown = json.dumps(workspace, ensure_ascii=False)
    try:
        (folder / workspace).mkdir(parents=True, exist_ok=True)
        with staged_text(file, _TEXT.format(workspace=workspace, path=shown, value_file=value_file)) as temporary:
            os.link(temporary, file)  # never over one that has come in the meantime
    except OSError as error:
        raise RequestError(f"{file} cannot be made: {error.strerror}") from None
    click.echo(f"recipe: {file}")
