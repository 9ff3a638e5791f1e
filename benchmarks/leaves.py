"""What the processes below a worker cost: their start, their number, their memory, with torch and without."""

from __future__ import annotations

import functools
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.compare import Comparison, Rounds, Subject, table
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

#: By their names in ``subjects/leaf_start.py``.
_TITLES = {
    "sub": "8 SUB workers",
    "devices": "8 slots with a device each",
    "tree": "7 leaves: 2 workers with 1 device and 2 SUB workers each, and 1 SUB worker above",
}

COMPARISONS = (
    Comparison("device slots / SUB workers", "devices", "sub", at_most=2),
    Comparison("device slots / SUB workers, torch", "devices torch", "sub torch", at_most=2),
)


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in seconds and bytes."""
    starts = Starts(place)
    taken = Rounds(starts.subjects(), quiet)
    for _ in range(rounds):
        taken.add()
    print("-- init() of a worker", *taken.lines(COMPARISONS), "", *starts.lines(), sep="\n")
    return {**taken.plain(COMPARISONS), "memory": starts.medians()}


class Starts:
    """Measurements of starts, each in a process of its own."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._found: dict[str, list[dict[str, float]]] = {
            f"{kind}{torch}": [] for torch in ("", " torch") for kind in _TITLES
        }

    def subjects(self) -> dict[str, Subject]:
        """Whose times are compared."""
        return {name: Subject(_title(name), functools.partial(self._start, name)) for name in self._found}

    def _start(self, name: str) -> Sequence[float]:
        folders = [self._place.folder / folder for folder in ("leaves", "leases")]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        environ = {"BENCHMARK_LEAVES": str(folders[0]), "PYTEST_AORTA_LEASES_DIR": str(folders[1])}
        found: dict[str, float] = json.loads(self._place.run(sys.executable, "leaf_start.py", *name.split(), **environ))
        self._found[name].append(found)
        return [found["start"]]

    def medians(self) -> dict[str, dict[str, float]]:
        """Of all rounds."""
        return {
            name: {key: statistics.median(each[key] for each in found) for key in found[0]}
            for name, found in self._found.items()
        }

    def lines(self) -> list[str]:
        """A table of what lives once all are ready."""
        heads = (
            "memory in MiB",
            "leaves",
            "processes",
            "PSS per leaf",
            "RSS per leaf",
            "PSS of a leaf",
            "RSS of a leaf",
        )
        rows: list[tuple[str, ...]] = [heads]
        for name, each in self.medians().items():
            leaves = each["leaves"]
            sizes = (each["pss"] / leaves, each["rss"] / leaves, each["leaf_pss"], each["leaf_rss"])
            mib = (f"{size / 2**20:.1f}" for size in sizes)
            rows.append((_title(name), f"{leaves:.0f}", f"{each['processes']:.0f}", *mib))
        return [*table(rows), "(per leaf: of all processes below the worker, zygotes included)"]


def _title(name: str) -> str:
    kind, _, torch = name.partition(" ")
    return f"{_TITLES[kind]}{', torch' if torch else ''}"
