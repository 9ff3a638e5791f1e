"""Subjects, each in processes of its own, measured alternately; medians, and the ratios between them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import psutil

#: Durations in seconds of one or more equal units.
Measure = Callable[[], Sequence[float]]

#: Seconds that are looked at before a measurement, and for which a quiet moment is waited for.
_LOOK, _PATIENCE = 2.0, 1800.0

#: Disturbed measurements after which one is taken as it is.
_ATTEMPTS = 10

#: First items of a pytest run that do not count: they start what later ones find started.
_COLD = 3


@dataclass(frozen=True)
class Subject:
    """Something that takes time."""

    title: str
    measure: Measure


@dataclass(frozen=True)
class Comparison:
    """A ratio of two subjects, given by their keys, and what is expected of it."""

    title: str
    over: str
    under: str
    at_most: float | None = None
    at_least: float | None = None


class Bench:
    """A folder with all subjects, outside of this project's pytest configuration, and how to measure there."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        shutil.copytree(
            Path(__file__).with_name("subjects"),
            folder,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (folder / "pytest.ini").write_text("[pytest]\n")
        # Whatever else is installed for pytest, or set for its runs, would be measured as well.
        settings = ("PYTEST_", "AORTA_")
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        self._environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile the plugin anew
        self._environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        self._environ["PYTHONPATH"] = str(folder)
        self._patience = _PATIENCE

    def run(self, *command: str, **environ: str) -> str:
        """The stdout of a command in the folder; ends the benchmark where it fails."""
        shutil.rmtree(self.folder / "results", ignore_errors=True)
        done = subprocess.run(
            command, cwd=self.folder, env={**self._environ, **environ}, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def python(self, *arguments: str, **environ: str) -> Any:
        """What a script prints as JSON."""
        return json.loads(self.run(sys.executable, *arguments, **environ))

    def wall(self, *command: str, **environ: str) -> list[float]:
        """Wall time of one run."""
        start = time.perf_counter()
        self.run(*command, **environ)
        return [time.perf_counter() - start]

    def cpu(self, *command: str) -> list[float]:
        """Processor time of one run, with all that it starts and waits for."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.run(*command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return [after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime]

    def items(
        self, *arguments: str, plugin: str = "pytest_aorta.plugin.hooks", python: str = sys.executable
    ) -> list[float]:
        """Run pytest; the wall time from item to item, without the first ones."""
        items: list[float] = self._pytest(python, "-p", plugin, *arguments)["items"]
        return items[_COLD:]

    def session(self, *arguments: str, count: bool = False) -> dict[str, float]:
        """Run pytest with the plugin as its users have it; CPU seconds, or calls of functions, by part of the session.

        The plugin is loaded by its entry point, so ``-p no:aorta`` leaves it out at the same price of looking for
        entry points.
        """
        others = (f"-pno:{found.name}" for found in entry_points(group="pytest11") if found.name != "aorta")
        environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", **({"BENCHMARK_COUNT": "1"} if count else {})}
        parts: dict[str, float] = self._pytest(sys.executable, "-p", "no:cacheprovider", *others, *arguments, **environ)
        return parts

    def _pytest(self, python: str, *arguments: str, **environ: str) -> Any:
        output = self.folder / "output.json"
        self.run(python, "-m", "pytest", "-q", "-p", "clock", *arguments, BENCHMARK_OUTPUT=str(output), **environ)
        return json.loads(output.read_text())

    def quietly(self, measure: Measure) -> Sequence[float]:
        """Measure; with ``--quiet``, wait for a quiet machine before, and repeat what others have disturbed."""
        limit = self.options.quiet
        if limit is None:
            return measure()
        for _ in range(_ATTEMPTS):
            while self._patience > 0:
                load = BackgroundLoad()
                time.sleep(_LOOK)
                if load.share() <= limit:
                    break
                self._patience -= _LOOK
            load = BackgroundLoad()
            values = measure()
            if load.share() <= limit:
                return values
        print(f"(not one of {_ATTEMPTS} measurements was undisturbed: the last one counts)")
        return values

    def rounds(self, subjects: Mapping[str, Measure]) -> dict[str, list[float]]:
        """The medians of each round; every other round is in reverse, so that a drift of the host cancels out."""
        seconds: dict[str, list[float]] = {key: [] for key in subjects}
        for number in range(self.options.rounds):
            for key in list(subjects)[:: 1 if number % 2 == 0 else -1]:
                seconds[key].append(statistics.median(self.quietly(subjects[key])))
        return seconds

    def compare(self, subjects: Mapping[str, Subject], comparisons: Sequence[Comparison]) -> dict[str, Any]:
        """Measure the subjects in rounds and print the ratios within each round; all numbers, for JSON."""
        seconds = self.rounds({key: subject.measure for key, subject in subjects.items()})
        report: dict[str, Any] = {"subjects": {}, "ratios": []}
        rows: list[tuple[str, ...]] = [("what", "median", "min", "max")]
        for key, subject in subjects.items():
            spread = _spread(seconds[key])
            rows.append((subject.title, *map(duration, spread.values())))
            report["subjects"][key] = {"title": subject.title, "seconds": seconds[key], **spread}
        ratios: list[tuple[str, ...]] = [("ratio", "median", "min", "max", "expected", "")]
        for each in comparisons:
            spread = _spread([a / b for a, b in zip(seconds[each.over], seconds[each.under], strict=True)])
            most, least = each.at_most, each.at_least
            expected = f"<= {most:g}" if most is not None else f">= {least:g}" if least is not None else ""
            met = (most is None or spread["median"] <= most) and (least is None or spread["median"] >= least)
            numbers = (f"{value:.2f}" for value in spread.values())
            ratios.append((each.title, *numbers, expected, verdict(met) if expected else ""))
            report["ratios"].append({**vars(each), "expected": expected, "met": met, **spread})
        print("\n".join([*table(rows), "", *table(ratios)]))
        return report


class BackgroundLoad:
    """Processor time that other processes use meanwhile; ratios suffer from it."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._others = _others()

    def share(self) -> float:
        """Part of all cores since the start that processes other than this one and its descendants used."""
        used = _others() - self._others
        return max(0.0, used / (time.monotonic() - self._start) / (os.cpu_count() or 1))


def _others() -> float:
    """Seconds that the cores have worked, stolen time included, but for this process and descendants that ended."""
    times, own = psutil.cpu_times(), os.times()
    busy: float = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return busy - (own.user + own.system + own.children_user + own.children_system)


def facts() -> dict[str, str]:
    """What the numbers depend on: the machine and the versions."""
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "cpu": next(models, platform.machine()).rpartition(": ")[2],
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pytest", "pytest-aorta")},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.1f} us"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
