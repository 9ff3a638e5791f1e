"""Projects with a recipe and a workspace, and the command ``pytest-aorta`` in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner, Result

from pytest_aorta.cli.main import main

#: Directories have values, in this file.
VALUES = """
[workspace]
value_file = "v.json"
"""

#: A command on each directory.
ONE = """
[[action]]
name = "one"
command = "touch workspace/{directory}/one"
products = ["one"]
"""

#: A command on each directory, after ``ONE``.
TWO = """
[[action]]
name = "two"
command = "touch workspace/{directory}/two"
products = ["two"]
previous_actions = ["one"]
"""

#: Three commands on directories with values: one, then two, and three for none of them.
COMMANDS = (
    VALUES
    + ONE
    + TWO
    + """\
resources = {gpus_per_process = 2, walltime = {per_submission = "03:00:00"}}
group = {maximum_size = 4}

[[action]]
name = "three"
command = "touch workspace/{directory}/three"
products = ["three"]
[[action.group.include]]
condition = ["/v", "<", 0]
"""
)

#: Two cells of three trials, and a command on each cell, and on each trial.
MATRIX = """
[[action]]
name = "matrix"
workload = "tiny"
trials = 3
mitigations = ["none", "tf32_off,omp_1"]
steps = 2
seed = 5
config = {width = "8"}
extra_env = {SOME_TOKEN = "hidden", PLAIN = "1"}

[[action]]
name = "compare"
command = "touch {folder}/compared"
products = ["compared"]
each = "cell"
previous_actions = ["matrix"]

[[action]]
name = "shrink"
command = "touch {folder}/small"
products = ["small"]
each = "trial"
previous_actions = ["matrix"]
"""


def project(folder: Path, recipe: str, directories: int = 0) -> Path:
    """A folder with a recipe, and directories ``dir0``, ``dir1``, ... with the values ``{"v": 0, "half": 0}``, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "aorta.toml").write_text(recipe)
    for number in range(directories):
        directory = folder / "workspace" / f"dir{number}"
        directory.mkdir(parents=True)
        (directory / "v.json").write_text(json.dumps({"v": number, "half": number // 2}))
    return folder


def complete(folder: Path, action: str, count: int) -> None:
    for number in range(count):
        (folder / "workspace" / f"dir{number}" / action).touch()


def command(*arguments: str | os.PathLike[str], stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments], input=stdin)


def short_status(*arguments: str) -> dict[str, list[int]]:
    result = command("status", "--short", *arguments)
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    return {name: [int(count) for count in counts[:6]] for name, *counts in rows}
