"""What a session costs: without trials, collecting many, on recipes; and ``pytest-aorta status``."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Comparison, Subject, duration, table, verdict

#: Trials or directories, and as many parametrized tests.
_MANY = 10_000

_PARAMETRIZED = f"import pytest\n@pytest.mark.parametrize('number', range({_MANY}))\ndef test_many(number): pass\n"

Parts = dict[str, float]


# --- unused: what the plugin costs a suite that does not use it ------------------------------------------------------

_TESTS, _FILES = 2_000, 80

#: Starts in a round, whose median counts.
_STARTS = 7


def unused(bench: Bench) -> dict[str, Any]:
    """CPU time, in pairs whose order alternates: what others do on the machine disturbs it less than wall time.

    Beside it the calls of functions, which are the same in every run.
    """
    for folder, files in (("alone", 1), ("unused", 8), ("given", _FILES)):
        (bench.folder / folder).mkdir()
        for number in range(files):
            tests = range(1 if folder == "alone" else _TESTS // files)
            body = "\n".join(f"def test_{each}():\n    assert {each} == {each}\n" for each in tests)
            (bench.folder / folder / f"test_{folder}_{number}.py").write_text(body)
    (bench.folder / "test_many.py").write_text(_PARAMETRIZED)
    without, given = ("-p", "no:aorta"), [f"given/test_given_{number}.py" for number in range(_FILES)]
    arguments: dict[str, tuple[list[str], list[str]]] = {
        name: ([*words, *without], words)
        for name, words in {"start": ["alone"], "folder": ["unused"], "files": ["--collect-only", *given]}.items()
    }
    workload = ["--collect-only", "--aorta-workload", "gemm", "--aorta-trials", str(_MANY)]
    arguments["many"] = (["--collect-only", "test_many.py"], workload)
    for words in itertools.chain.from_iterable(arguments.values()):
        bench.session(*words)  # compiles
    calls = {name: [bench.session(*words, count=True) for words in pair] for name, pair in arguments.items()}
    seconds: dict[str, list[list[Parts]]] = {name: [] for name in arguments}
    for number, (name, pair) in itertools.product(range(bench.options.rounds), arguments.items()):
        found: list[Parts] = [{}, {}]

        def both(name: str = name, pair: Any = pair, found: list[Parts] = found, turn: int = number) -> list[float]:
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                # A start is short, and disturbed more easily.
                several = [bench.session(*pair[side]) for _ in range(_STARTS if name == "start" else 1)]
                found[side] = {
                    part: statistics.median(each[part] for each in several) for part in ("start", "collect", "run")
                }
            return []

        bench.quietly(both)
        seconds[name].append(found)
    _print_unused(seconds, calls)
    return {"seconds": seconds, "calls": calls}


def _print_unused(seconds: dict[str, list[list[Parts]]], calls: dict[str, list[Parts]]) -> None:
    rows: list[tuple[str, ...]] = [("CPU time", "without", "with", "more", "expected", "", "calls")]
    for name, parts, title, at_most_ms, at_most_share in (
        ("start", ("start",), "start", 5, 0.0),
        ("folder", ("collect",), f"{_TESTS} tests in a folder: collect", 0, 0.01),
        ("folder", ("run",), f"{_TESTS} tests in a folder: run", 0, 0.01),
        ("files", ("start", "collect"), f"{_TESTS} tests in {_FILES} files that are given: start, collect", 5, 0.01),
    ):
        pairs = [[sum(side[part] for part in parts) for side in pair] for pair in seconds[name]]
        before, after = (sum(side[part] for part in parts) for side in calls[name])
        plain = statistics.median(pair[0] for pair in pairs)
        more = statistics.median(pair[1] - pair[0] for pair in pairs)
        expected = [f"{at_most_ms} ms"] * bool(at_most_ms) + [f"{at_most_share:.0%}"] * bool(at_most_share)
        rows.append(
            (
                title,
                duration(plain),
                duration(plain + more),
                f"{duration(more)}, {more / plain:+.1%}",
                f"<= +{' and '.join(expected)}",
                verdict(more <= at_most_ms / 1000 + at_most_share * plain),
                f"{after - before:+.0f} ({(after - before) / before:+.2%})",
            )
        )
    medians = [statistics.median(pair[side]["collect"] for pair in seconds["many"]) for side in (0, 1)]
    ratio = statistics.median(trials["collect"] / tests["collect"] for tests, trials in seconds["many"])
    tests, trials = (side["collect"] for side in calls["many"])
    title = f"{_MANY} parametrized tests, trials: collect"
    rows.append((title, *map(duration, medians), f"{ratio:.2f}", "<= 1", verdict(ratio <= 1), f"{trials / tests:.2f}"))
    print("\n".join(table(rows)))


# --- recipes: collecting one, and complete items again, against parametrized tests -----------------------------------

#: Directories whose cost per complete item is compared with that of ``_MANY``.
_FEW = 1_000

_COMMAND = '[[action]]\nname = "one"\ncommand = "touch workspace/{directory}/one"\nproducts = ["one"]\n'

_FOLLOWER = _COMMAND.replace("one", "two") + 'previous_actions = ["one"]\n'


def recipes(bench: Bench) -> dict[str, Any]:
    """CPU time, in pairs whose order alternates."""
    (bench.folder / "matrix.aorta.toml").write_text(
        f'[[action]]\nname = "matrix"\nworkload = "gemm"\ntrials = {_MANY}\n'
    )
    for count in (_FEW, _MANY):
        project = bench.folder / f"d{count}"
        for number in range(count):
            directory = project / "workspace" / f"dir{number}"
            directory.mkdir(parents=True)
            (directory / "one").touch()
            (directory / "two").touch()
        (project / "aorta.toml").write_text(_COMMAND)
        (project / "two.aorta.toml").write_text(_COMMAND + _FOLLOWER)
    lines = "".join(f"touch d{_FEW}/workspace/dir{number}/one\n" for number in range(_FEW))
    (bench.folder / "touch.sh").write_text(lines)
    (bench.folder / "test_many.py").write_text(_PARAMETRIZED)

    def collect(file: str) -> list[float]:
        return [bench.session("--collect-only", file)["collect"]]

    def run(file: str, items: int) -> list[float]:
        return [bench.session(file)["run"] / items]

    def touch(*command: str) -> list[float]:
        project = bench.folder / f"d{_FEW}"
        shutil.rmtree(project / ".aorta", ignore_errors=True)
        for file in (project / "workspace").glob("*/one"):
            file.unlink()
        return bench.cpu(*command)

    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_aorta.plugin.hooks")
    subjects = {
        "tests": Subject(f"collecting {_MANY} parametrized tests", partial(collect, "test_many.py")),
        "trials": Subject(f"collecting {_MANY} trials", partial(collect, "matrix.aorta.toml")),
        "directories": Subject(f"collecting {_MANY} directories", partial(collect, f"d{_MANY}/aorta.toml")),
        "test": Subject("a test that does nothing", partial(run, "test_many.py", _MANY)),
        "few": Subject(f"a complete item of {2 * _FEW}", partial(run, f"d{_FEW}/two.aorta.toml", 2 * _FEW)),
        "many": Subject(f"a complete item of {2 * _MANY}", partial(run, f"d{_MANY}/two.aorta.toml", 2 * _MANY)),
        "bash": Subject(f"`touch` in {_FEW} directories by one bash", partial(touch, "bash", "touch.sh")),
        "commands": Subject("the same by pytest", partial(touch, *pytest, f"d{_FEW}/aorta.toml")),
    }
    comparisons = (
        Comparison("collecting trials / parametrized tests", "trials", "tests", at_most=1),
        Comparison("collecting directories / parametrized tests", "directories", "tests", at_most=1),
        Comparison("a complete item / a test that does nothing", "many", "test"),
        Comparison("`touch`: pytest / lines of one bash", "commands", "bash", at_most=3),
        Comparison(f"a complete item of {2 * _MANY} / of {2 * _FEW}", "many", "few", at_most=1.2),
    )
    for subject in subjects.values():
        subject.measure()  # compiles
    return bench.compare(subjects, comparisons)


# --- status: a workspace of 100,000 trials, and one of 100,000 directories, against reading their files --------------

_CELLS, _TRIALS, _DIRECTORIES = 500, 200, 100_000

_MATRIX = """
[[action]]
name = "matrix"
workload = "gemm"
trials = {trials}
mitigations = {sets}

[[action]]
name = "compare"
command = "echo {{folder}}"
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


def status(bench: Bench) -> dict[str, Any]:
    _make_trials(bench)
    directories = bench.folder / "directories"
    for number in range(_DIRECTORIES):
        directory = directories / "workspace" / f"dir{number}"
        directory.mkdir(parents=True)
        (directory / "value.json").write_text(json.dumps({"lr": number / _DIRECTORIES, "seed": number}))
    (directories / "aorta.toml").write_text(_COMMANDS)
    words = (sys.executable, "-m", "pytest_aorta", "status")
    time.sleep(2.5)  # what has only just changed is looked at again
    for _ in range(2):
        bench.run(*words)
        time.sleep(2.5)

    def python(title: str, *arguments: str) -> Subject:
        return Subject(title, lambda: bench.wall(sys.executable, *arguments))

    def first() -> list[float]:
        shutil.rmtree(directories / ".aorta", ignore_errors=True)
        return bench.cpu("bash", "-c", f"cd directories && {shlex.join(words)}")

    total = _CELLS * _TRIALS
    subjects = {
        "pydantic": python("python -c 'import pydantic'", "-c", "import pydantic"),
        "pytest": python("python -c 'import pytest'", "-c", "import pytest"),
        "status": Subject(f"pytest-aorta status, {total:,} trials", lambda: bench.wall(*words)),
        "first": Subject(f"its first one, {_DIRECTORIES:,} directories (CPU)", first),
        "values": Subject("all of their values read (CPU)", lambda: bench.cpu(sys.executable, "-c", _VALUES)),
        "read": python("all files of the trials read", "-c", _READ, str(total)),
    }
    comparisons = (
        Comparison("status / import pydantic", "status", "pydantic"),
        Comparison("reading all files / status", "read", "status", at_least=2),
        Comparison("status / import pytest", "status", "pytest"),
        Comparison("first status of directories / reading their values", "first", "values"),
    )
    return bench.compare(subjects, comparisons)


def _make_trials(bench: Bench) -> None:
    """A recipe, its index, and files that are as large as those of real trials; most are links to the first ones."""
    from pytest_aorta.registry import Registry
    from pytest_aorta.trials.loading import file_digest
    from pytest_aorta.workflow.known import Journal, RequestDigests
    from pytest_aorta.workflow.recipe import read_recipe
    from pytest_aorta.workflow.requests import cell_requests

    bench.items("workloads.py::Trivial")
    (real,) = (bench.folder / "results").rglob("trial_0.json")
    text = real.read_text()
    registry = Registry.load()
    names = [name for name in registry.names("mitigations") if name != "none"]
    sets = itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(1, len(names)))
    chosen = [list(names) for names in itertools.islice(sets, _CELLS)]
    (bench.folder / "aorta.toml").write_text(_MATRIX.format(trials=_TRIALS, sets=json.dumps(chosen)))
    recipe = read_recipe(bench.folder / "aorta.toml")
    sources = {__file__: str(file_digest(Path(__file__)))}  # of any file: it has to be looked at
    results = recipe.directories / "matrix" / "gemm"
    written: list[Path] = []
    with closing(Journal(recipe.index)) as journal:
        for cell, request in cell_requests(recipe, registry)["matrix"].items():
            (results / cell).mkdir(parents=True)
            for trial in range(_TRIALS):
                journal.add("matrix", f"{cell}/{trial}", "ok", RequestDigests(digest=request.digest, sources=sources))
                file = results / cell / f"trial_{trial}.json"
                if len(written) < 500:
                    file.write_text(text)
                    written.append(file)
                else:
                    os.link(written[trial], file)
