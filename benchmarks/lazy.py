"""What a trial pays for its own imports: torch in ``run()``, ``torch._dynamo`` for an optimizer in ``setup()``."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.compare import Comparison, Rounds, Subject, duration
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

#: Items of one pytest run. The first ones, which import, do not count.
_TRIALS = 12

#: The most that ``setup()`` may take that makes an optimizer, in seconds.
_EXPECTED = 0.05

COMPARISONS = (
    Comparison("import torch in run() / above", "lazy", "above", at_most=3),
    Comparison("the same, --aorta-preload none", "unaided", "above"),
)


def subjects(place: Workplace) -> dict[str, Subject]:
    """Whose times are compared."""

    def items(file: str, *options: str) -> Callable[[], Sequence[float]]:
        command = (sys.executable, "-p", "pytest_aorta.plugin.hooks", file, f"--aorta-trials={_TRIALS}", *options)
        return lambda: place.items(*command)

    return {
        "above": Subject("a trial of a workload that imports torch above", items("trivial_workload.py")),
        "lazy": Subject("a trial that imports torch in run()", items("lazy_workload.py")),
        "unaided": Subject("the same, --aorta-preload none", items("lazy_workload.py", "--aorta-preload=none")),
    }


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all numbers, in seconds."""
    compared = Rounds(subjects(place), quiet)
    found: dict[str, list[float]] = {"auto": [], "none": []}
    for _ in range(rounds):
        compared.add()
        for how, seconds in found.items():
            seconds.append(statistics.median(quiet(lambda how=how: _setups(place, how))))  # type: ignore[misc]
    medians = {how: statistics.median(seconds) for how, seconds in found.items()}
    met = "met" if medians["auto"] <= _EXPECTED else "MISSED"
    print("\n".join(compared.lines(COMPARISONS)))
    print(
        f"setup() with an optimizer: {duration(medians['auto'])}, at most {duration(_EXPECTED)} expected: {met} "
        f"({duration(medians['none'])} with --aorta-preload none)"
    )
    return {**compared.plain(COMPARISONS), "setup_with_optimizer": found}


def _setups(place: Workplace, how: str) -> list[float]:
    """The durations of ``setup()`` of warm trials."""
    place.items(
        *(sys.executable, "-p", "pytest_aorta.plugin.hooks", "optimizer_workload.py"),
        *(f"--aorta-trials={_TRIALS}", f"--aorta-preload={how}"),
    )
    records = [json.loads(path.read_text()) for path in place.folder.glob("results/**/trial_*.json")]
    return [record["phases_sec"]["setup"] for record in records if record["trial_index"] >= 2]
