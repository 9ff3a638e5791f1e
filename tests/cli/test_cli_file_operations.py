"""``pytest-aorta status`` looks at as many files in a workspace of 10,000 directories and trials as in one of 100."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from support.projects import project
from support.stage import Stage

from pytest_aorta.workspace.index.completions import CommandCompletion, TrialCompletion
from pytest_aorta.workspace.index.journal import Journal

LONG_AGO = time.time() - 1000

RECIPE = """
[[action]]
name = "one"
command = "touch workspace/{directory}/one"
products = ["one"]

[[action]]
name = "matrix"
workload = "gemm"
trials = TRIALS
"""

COUNT = """
import collections, json, os, pathlib, sys  # in 3.10, a class of pathlib takes os.stat over, as a method
counts = collections.Counter()
def count(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.rename", "os.remove"):
        counts[event] += 1
sys.addaudithook(count)
def counted(call):
    def counting(*arguments, **keywords):
        counts[call.__name__] += 1
        return call(*arguments, **keywords)
    return counting
os.stat, os.lstat = counted(os.stat), counted(os.lstat)
from pytest_aorta.cli.main import main
try:
    main(["status", "--short"])
finally:
    print(json.dumps(counts), file=sys.stderr)
"""


def operations(stage: Stage) -> tuple[str, dict[str, int]]:
    """The answer of a status, and how many files it looked at, by the kind of look."""
    result = stage.command(sys.executable, "-c", COUNT)
    found: dict[str, int] = json.loads(result.errlines[-1])
    return str(result.stdout), found


def age(folder: Path) -> None:
    """As if nothing had changed for a while."""
    for path in [folder, folder / "aorta.toml", folder / "workspace", *(folder / ".aorta").rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))


def measured(stage: Stage, count: int) -> list[dict[str, int]]:
    """Operations of a status when nothing has changed, and of one after a trial was added."""
    project(stage.path, RECIPE.replace("TRIALS", str(count)))
    for number in range(count):
        (stage.path / "workspace" / f"dir{number}").mkdir(parents=True, exist_ok=True)
    with Journal(stage.path / ".aorta" / "staged") as journal:
        for number in range(count):
            journal.add(CommandCompletion("one", f"dir{number}", "completed"))
            journal.add(TrialCompletion("matrix", "local-none", number, "ok", "r", {__file__: "0"}))
    for _ in range(3):  # makes files of the index, and compiles modules
        age(stage.path)
        operations(stage)
    first, again = operations(stage)
    assert first.startswith(f"one\t{count}\t0\t0\t")
    with Journal(stage.path / ".aorta" / "staged") as journal:
        journal.add(CommandCompletion("one", "dir0", "failed"))
    second, after = operations(stage)
    assert second.startswith(f"one\t{count - 1}\t1\t0\t")
    return [again, after]


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_number_of_files_that_are_looked_at_does_not_grow(stage: Stage, count: int) -> None:
    few = measured(stage, 100)
    shutil.rmtree(stage.path / ".aorta")
    many = measured(stage, count)
    assert many == few
    again, after = many
    assert again["open"] < after["open"] / 2  # the recipe is not read, nor what is needed to read it imported
    assert not {"os.rename", "os.remove"} & again.keys()
    # From Python 3.13 on, Path.iterdir() is a scan.
    assert again.get("os.scandir", 0) <= (sys.version_info >= (3, 13))
