"""What the plugin costs a suite that does not use it, and what it costs to collect many trials.

CPU time, in pairs whose order alternates: what others do on the machine disturbs it less than wall time. Beside it the
calls of functions, which are the same in every run. The plugin is loaded as its users have it, by its entry point, and
left out with ``-p no:aorta``: then both look for entry points once. No other plugin is loaded.
"""

from __future__ import annotations

import json
import statistics
import sys
from importlib.metadata import entry_points
from typing import Any

from benchmarks.compare import Spread, duration, table
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

_TESTS, _FILES = 2_000, 80

#: Starts in a round, whose median counts.
_STARTS = 7

#: Trials, and as many parametrized tests.
_MANY = 10_000

#: What leaves the plugin out.
_WITHOUT = ("-p", "no:aorta")

#: The most that is expected: seconds at the start, and parts of the time without the plugin.
_START, _SHARE, _COLLECT = 0.005, 0.01, 1.0

Parts = dict[str, float]


class Suites:
    """The files that pytest is given."""

    def __init__(self, place: Workplace) -> None:
        folder = place.folder / "unused"
        folder.mkdir()
        body = "\n".join(f"def test_{number}():\n    assert {number} == {number}\n" for number in range(_TESTS // 8))
        for number in range(8):
            (folder / f"test_tests_{number}.py").write_text(body)
        alone = place.folder / "alone"
        alone.mkdir()
        (alone / "test_alone.py").write_text("def test_alone(): pass\n")
        small = "\n".join(f"def test_{number}():\n    assert {number} == {number}\n" for number in range(25))
        given = place.folder / "given"
        given.mkdir()
        for number in range(_FILES):
            (given / f"test_given_{number}.py").write_text(small)
        many = f"import pytest\n@pytest.mark.parametrize('number', range({_MANY}))\ndef test_many(number): pass\n"
        (place.folder / "test_many.py").write_text(many)
        self._place = place

    def start(self, *options: str, **environ: str) -> Parts:
        """One test, several times: a start is short, and disturbed more easily."""
        found = [self._parts("alone", *options, **environ) for _ in range(1 if environ else _STARTS)]
        return {part: statistics.median(parts[part] for parts in found) for part in found[0]}

    def folder(self, *options: str, **environ: str) -> Parts:
        """2,000 tests in a folder."""
        return self._parts("unused", *options, **environ)

    def files(self, *options: str, **environ: str) -> Parts:
        """As many in files that are given."""
        given = [f"given/test_given_{number}.py" for number in range(_FILES)]
        return self._parts("--collect-only", *given, *options, **environ)

    def trials(self, **environ: str) -> Parts:
        """10,000 trials."""
        options = ("--aorta-workload", "gemm", "--aorta-trials", str(_MANY))
        return self._parts("--collect-only", *options, **environ)

    def parametrized(self, **environ: str) -> Parts:
        """10,000 parametrized tests."""
        return self._parts("--collect-only", "test_many.py", **environ)

    def _parts(self, *arguments: str, **environ: str) -> Parts:
        output = self._place.folder / "output.json"
        others = (f"-pno:{found.name}" for found in entry_points(group="pytest11") if found.name != "aorta")
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others, "-p", "session_clock")
        settings = {"BENCHMARK_OUTPUT": str(output), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", **environ}
        self._place.run(*command, *arguments, **settings)
        parts: Parts = json.loads(output.read_text())
        return parts


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in CPU seconds and in calls."""
    suites = Suites(place)
    subjects = {
        "start": (lambda **environ: suites.start(*_WITHOUT, **environ), suites.start),
        "folder": (lambda **environ: suites.folder(*_WITHOUT, **environ), suites.folder),
        "files": (lambda **environ: suites.files(*_WITHOUT, **environ), suites.files),
        "many": (suites.parametrized, suites.trials),
    }
    for subject in (side for pair in subjects.values() for side in pair):
        subject()  # compiles
    calls = {name: [subject(BENCHMARK_COUNT="1") for subject in pair] for name, pair in subjects.items()}
    seconds: dict[str, list[list[Parts]]] = {name: [] for name in subjects}
    for number in range(rounds):
        for name, pair in subjects.items():
            order = (0, 1) if number % 2 == 0 else (1, 0)
            found: dict[int, Parts] = {}

            def both(order: tuple[int, int] = order, pair: Any = pair, found: dict[int, Parts] = found) -> list[float]:
                found.update({side: pair[side]() for side in order})
                return []

            quiet(both)
            seconds[name].append([found[0], found[1]])
    _print(seconds, calls)
    return {"seconds": seconds, "calls": calls}


def _print(seconds: dict[str, list[list[Parts]]], calls: dict[str, list[Parts]]) -> None:
    rows: list[tuple[str, ...]] = [("CPU time", "without", "with", "more", "expected", "", "calls")]
    shown = {
        "start": ("start", "start"),
        "folder: collect": (f"{_TESTS} tests in a folder: collect", "collect"),
        "folder: run": (f"{_TESTS} tests in a folder: run", "run"),
        "files: collect": (f"{_TESTS} tests in {_FILES} files that are given: start and collect", "all"),
    }
    for key, (title, part) in shown.items():
        pairs = seconds[key.partition(":")[0]]
        without = Spread.of([_time(parts, part) for parts, _ in pairs])
        more = Spread.of([_time(with_it, part) - _time(parts, part) for parts, with_it in pairs])
        before, after = (_time(parts, part) for parts in calls[key.partition(":")[0]])
        bound = (part in ("start", "all")) * _START + (part != "start") * _SHARE * without.median
        expected = {"start": duration(_START), "all": f"{duration(_START)} and {_SHARE:.0%}"}
        rows.append(
            (
                title,
                duration(without.median),
                duration(without.median + more.median),
                f"{more.median * 1e3:+.2f} ms" if part == "start" else f"{more.median / without.median:+.1%}",
                f"<= +{expected.get(part, f'{_SHARE:.0%}')}",
                "met" if more.median <= bound else "MISSED",
                f"{after - before:+.0f} ({(after - before) / before:+.2%})",
            )
        )
    ratio = Spread.of([trials["collect"] / tests["collect"] for tests, trials in seconds["many"]])
    tests, trials = (sides["collect"] for sides in calls["many"])
    medians = [statistics.median(pair[side]["collect"] for pair in seconds["many"]) for side in (0, 1)]
    rows.append(
        (
            f"{_MANY} parametrized tests, trials: collect",
            *map(duration, medians),
            f"{ratio.median:.2f}",
            f"<= {_COLLECT:g}",
            "met" if ratio.median <= _COLLECT else "MISSED",
            f"{trials / tests:.2f}",
        )
    )
    print("\n".join(table(rows)))


def _time(parts: Parts, part: str) -> float:
    """Of a part of a session; of ``all``, until the first test runs."""
    return parts["start"] + parts["collect"] if part == "all" else parts[part]
