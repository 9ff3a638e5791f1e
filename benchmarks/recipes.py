"""What it costs to collect a recipe, and to come to its complete items again, against pytest's own parametrized tests.

CPU time, in pairs whose order alternates.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from functools import partial
from typing import Any

from benchmarks.compare import Spread, duration, table
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

#: Trials, directories, and as many parametrized tests.
_MANY = 10_000

#: Directories whose cost per complete item is compared with that of ``_MANY``.
_FEW = 1_000

_MATRIX = f'[[action]]\nname = "matrix"\nworkload = "gemm"\ntrials = {_MANY}\n'

_COMMAND = '[[action]]\nname = "one"\ncommand = "touch workspace/{directory}/one"\nproducts = ["one"]\n'

_FOLLOWER = _COMMAND.replace("one", "two") + 'previous_actions = ["one"]\n'

Parts = dict[str, float]

_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_aorta.plugin.hooks")


class Recipes:
    """The recipes that pytest is given."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        (place.folder / "matrix.aorta.toml").write_text(_MATRIX)
        for count in (_FEW, _MANY):
            for number in range(count):
                directory = place.folder / f"d{count}" / "workspace" / f"dir{number}"
                directory.mkdir(parents=True)
                (directory / "one").touch()
                (directory / "two").touch()
            (place.folder / f"d{count}" / "aorta.toml").write_text(_COMMAND)
            (place.folder / f"d{count}" / "two.aorta.toml").write_text(_COMMAND + _FOLLOWER)
        lines = "".join(f"touch d{_FEW}/workspace/dir{number}/one\n" for number in range(_FEW))
        (place.folder / "touch.sh").write_text(lines)
        many = f"import pytest\n@pytest.mark.parametrize('number', range({_MANY}))\ndef test_many(number): pass\n"
        (place.folder / "test_many.py").write_text(many)

    def collect(self, file: str) -> list[float]:
        """CPU seconds of the collection of a file."""
        return [self._parts("--collect-only", file)["collect"]]

    def run(self, file: str, items: int) -> list[float]:
        """CPU seconds per item of a run in which all is complete already, or passes."""
        return [self._parts(file)["run"] / items]

    def made(self, *command: str) -> list[float]:
        """CPU seconds of a command that touches a file in each of ``_FEW`` directories, with all that it starts."""
        folder = self._place.folder / f"d{_FEW}"
        shutil.rmtree(folder / ".aorta", ignore_errors=True)
        for file in (folder / "workspace").glob("*/one"):
            file.unlink()
        return self._place.cpu(*command)

    def _parts(self, *arguments: str) -> Parts:
        output = self._place.folder / "output.json"
        shutil.rmtree(self._place.folder / "results", ignore_errors=True)
        self._place.run(*_PYTEST, "-p", "session_clock", *arguments, BENCHMARK_OUTPUT=str(output))
        parts: Parts = json.loads(output.read_text())
        return parts


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in CPU seconds."""
    recipes = Recipes(place)
    subjects = {
        "tests": partial(recipes.collect, "test_many.py"),
        "trials": partial(recipes.collect, "matrix.aorta.toml"),
        "directories": partial(recipes.collect, f"d{_MANY}/aorta.toml"),
        "test": partial(recipes.run, "test_many.py", _MANY),
        "few": partial(recipes.run, f"d{_FEW}/two.aorta.toml", 2 * _FEW),
        "many": partial(recipes.run, f"d{_MANY}/two.aorta.toml", 2 * _MANY),
        "bash": partial(recipes.made, "bash", "touch.sh"),
        "commands": partial(recipes.made, *_PYTEST, f"d{_FEW}/aorta.toml"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for subject in subjects.values():
        subject()  # compiles
    for number in range(rounds):
        for name in subjects if number % 2 == 0 else reversed(subjects):
            seconds[name] += quiet(subjects[name])
    _print(seconds)
    return {"seconds": seconds}


def _print(seconds: dict[str, list[float]]) -> None:
    rows: list[tuple[str, ...]] = [("CPU time", "median", "of", "ratio", "min", "max", "expected", "")]
    for title, over, under, most in (
        (f"collecting {_MANY} trials / parametrized tests", "trials", "tests", 1.0),
        (f"collecting {_MANY} directories / parametrized tests", "directories", "tests", 1.0),
        ("a complete item / a test that does nothing", "many", "test", None),
        (f"`touch` in {_FEW} directories: pytest / lines of one bash", "commands", "bash", 3.0),
        (f"a complete item, {2 * _MANY} / {2 * _FEW} of them", "many", "few", 1.2),
    ):
        ratio = Spread.of([a / b for a, b in zip(seconds[over], seconds[under], strict=True)])
        medians = [duration(statistics.median(seconds[name])) for name in (over, under)]
        verdict = "" if most is None else "met" if ratio.median <= most else "MISSED"
        numbers = [f"{value:.2f}" for value in (ratio.median, ratio.least, ratio.most)]
        rows.append((title, *medians, *numbers, "" if most is None else f"<= {most:g}", verdict))
    print("\n".join(table(rows)))
