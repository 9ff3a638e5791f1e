"""What the plugin costs a suite that does not use it, and what it costs to collect many trials.

CPU time, in pairs whose order alternates: what others do on the machine disturbs it less than wall time. Beside it the
calls of functions, which are the same in every run.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from benchmarks.compare import Spread, duration, table
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

_TESTS, _FILES = 2_000, 80

#: Trials, and as many parametrized tests.
_MANY = 10_000

_OURS = ("-p", "pytest_aorta.plugin.hooks")

#: The most that is expected: seconds at the start, and parts of the time without the plugin.
_START, _SHARE, _COLLECT = 0.005, 0.01, 1.0

_PARTS = ("start", "collect", "run")

Parts = dict[str, float]


class Suites:
    """The files that pytest is given."""

    def __init__(self, place: Workplace) -> None:
        folder = place.folder / "unused"
        folder.mkdir()
        body = "\n".join(f"def test_{number}():\n    assert {number} == {number}\n" for number in range(_TESTS // 8))
        for number in range(8):
            (folder / f"test_tests_{number}.py").write_text(body)
        small = "\n".join(f"def test_{number}():\n    assert {number} == {number}\n" for number in range(25))
        given = place.folder / "given"
        given.mkdir()
        for number in range(_FILES):
            (given / f"test_given_{number}.py").write_text(small)
        many = f"import pytest\n@pytest.mark.parametrize('number', range({_MANY}))\ndef test_many(number): pass\n"
        (place.folder / "test_many.py").write_text(many)
        self._place = place

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
        return self._parts("--collect-only", *_OURS, *options, **environ)

    def parametrized(self, **environ: str) -> Parts:
        """10,000 parametrized tests."""
        return self._parts("--collect-only", "test_many.py", *_OURS, **environ)

    def _parts(self, *arguments: str, **environ: str) -> Parts:
        output = self._place.folder / "output.json"
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "session_clock", *arguments)
        self._place.run(*command, BENCHMARK_OUTPUT=str(output), **environ)
        parts: Parts = json.loads(output.read_text())
        return parts


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in CPU seconds and in calls."""
    suites = Suites(place)
    subjects = {
        "folder": (suites.folder, lambda **environ: suites.folder(*_OURS, **environ)),
        "files": (suites.files, lambda **environ: suites.files(*_OURS, **environ)),
        "many": (suites.parametrized, suites.trials),
    }
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
    titles = {"folder": f"{_TESTS} tests", "files": f"{_FILES} files given"}
    for name, title in titles.items():
        for part in _PARTS if name == "folder" else ("collect",):
            without, more = _spreads(seconds[name], part)
            before, after = (sides[part] for sides in calls[name])
            bound = _START if part == "start" else _SHARE * without.median
            shown = f"+{duration(_START)}" if part == "start" else f"+{_SHARE:.0%}"
            share = f"{more.median / without.median:+.1%}"
            rows.append(
                (
                    f"{title}: {part}",
                    duration(without.median),
                    duration(without.median + more.median),
                    f"{more.median * 1e3:+.2f} ms" if part == "start" else share,
                    f"<= {shown}",
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


def _spreads(pairs: list[list[Parts]], part: str) -> tuple[Spread, Spread]:
    """Without the plugin, and what it adds, within each pair."""
    return (
        Spread.of([without[part] for without, _ in pairs]),
        Spread.of([with_it[part] - without[part] for without, with_it in pairs]),
    )
