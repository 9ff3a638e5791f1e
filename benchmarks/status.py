"""What ``pytest-aorta status`` takes on a workspace of 100,000 trials, against reading their files."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.compare import Comparison, Rounds, Subject
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

_CELLS, _TRIALS = 500, 200

#: Files that are written; the other trials are links to these, which are read no slower than files of their own.
_FILES = 500

_STATUS = (sys.executable, "-m", "pytest_aorta", "status")

COMPARISONS = (
    Comparison("status / import pydantic", "status", "pydantic"),
    Comparison("reading all files / status", "read", "status", at_least=2),
    Comparison("status / import pytest", "status", "pytest"),
    Comparison("first status of directories / reading their values", "first", "values"),
)

#: Directories of another recipe, each with a value that a condition reads.
_DIRECTORIES = 100_000

_COMMANDS = """
[workspace]
value_file = "value.json"

[[action]]
name = "one"
command = "touch {directory}/one"
products = ["one"]

[[action]]
name = "two"
command = "touch {directory}/two"
products = ["two"]
previous_actions = ["one"]
group.include = [{condition = ["/lr", "<", 0.5]}]
"""

_VALUES = """
import json, os
for entry in os.scandir("directories/workspace"):
    with open(entry.path + "/value.json", "rb") as file:
        json.loads(file.read())["lr"]
"""

_MATRIX = """
[[action]]
name = "matrix"
workload = "gemm"
trials = {trials}
mitigations = {sets}

[[action]]
name = "compare"
command = "echo {{cell_folder}}"
each = "cell"
products = ["compared.txt"]
previous_actions = ["matrix"]
"""

_READ = """
import json, sys
from collections import Counter
from pathlib import Path
statuses = Counter()
for path in Path("workspace").rglob("trial_*.json"):
    with open(path, "rb") as file:
        statuses[json.loads(file.read())["exit_status"]] += 1
assert statuses.total() == int(sys.argv[1]), statuses
"""


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in seconds."""
    _make(place.folder, _real_record(place))
    for number in range(_DIRECTORIES):
        directory = place.folder / "directories" / "workspace" / f"dir{number}"
        directory.mkdir(parents=True)
        (directory / "value.json").write_text(json.dumps({"lr": number / _DIRECTORIES, "seed": number}))
    (place.folder / "directories" / "aorta.toml").write_text(_COMMANDS)
    time.sleep(2.5)  # what has only just changed is looked at again
    for _ in range(2):
        place.run(*_STATUS)
        time.sleep(2.5)
    compared = Rounds(_subjects(place), quiet)
    for _ in range(rounds):
        compared.add()
    print("\n".join(compared.lines(COMPARISONS)))
    return compared.plain(COMPARISONS)


def _subjects(place: Workplace) -> dict[str, Subject]:
    def process(title: str, *arguments: str) -> Subject:
        return Subject(title, lambda: place.wall(sys.executable, *arguments))

    def first() -> list[float]:
        shutil.rmtree(place.folder / "directories" / ".aorta", ignore_errors=True)
        return place.cpu("bash", "-c", f"cd directories && {shlex.join(_STATUS)}")

    total = str(_CELLS * _TRIALS)
    return {
        "pydantic": process("python -c 'import pydantic'", "-c", "import pydantic"),
        "pytest": process("python -c 'import pytest'", "-c", "import pytest"),
        "status": Subject(f"pytest-aorta status, {_CELLS * _TRIALS:,} trials", lambda: place.wall(*_STATUS)),
        "first": Subject(f"its first one, {_DIRECTORIES:,} directories (CPU)", first),
        "values": Subject("all of their values read (CPU)", lambda: place.cpu(sys.executable, "-c", _VALUES)),
        "read": process("all of their files read", "-c", _READ, total),
    }


def _make(project: Path, record: dict[str, Any]) -> None:
    """A recipe, its index, and files that are as large as those of real trials."""
    from pytest_aorta.registry import Registry
    from pytest_aorta.trials.loading import file_digest
    from pytest_aorta.workflow.known import Journal, Request
    from pytest_aorta.workflow.recipe import read_recipe
    from pytest_aorta.workflow.requests import cell_requests

    registry = Registry.load()
    names = [name for name in registry.names("mitigations") if name != "none"]
    sets = itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(1, len(names)))
    chosen = [list(names) for names in itertools.islice(sets, _CELLS)]
    (project / "aorta.toml").write_text(_MATRIX.format(trials=_TRIALS, sets=json.dumps(chosen)))
    recipe = read_recipe(project / "aorta.toml")
    sources = {__file__: str(file_digest(Path(__file__)))}  # of any file: it has to be looked at
    results = recipe.directories / "matrix" / "gemm"
    with Journal(recipe.index) as journal:
        for cell, request in cell_requests(recipe, registry)["matrix"].items():
            (results / cell).mkdir(parents=True)
            for trial in range(_TRIALS):
                journal.add("matrix", f"{cell}/{trial}", "ok", Request(digest=request.digest, sources=sources))
    files = [results / cell / f"trial_{trial}.json" for cell in os.listdir(results) for trial in range(_TRIALS)]
    for number, file in enumerate(files):
        if number < _FILES:
            file.write_text(json.dumps(record, indent=1))
        else:
            os.link(files[number % _FILES], file)


def _real_record(place: Workplace) -> dict[str, Any]:
    """That of a trial that does nothing."""
    place.run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "pytest_aorta.plugin.hooks"),
        *("trivial_workload.py", "--aorta-results-dir=one"),
    )
    (file,) = (place.folder / "one").rglob("trial_0.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found
