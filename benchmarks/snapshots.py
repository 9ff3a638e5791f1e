"""What a trial pays for the snapshots of its environment, at its start and at its end."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.compare import duration, table
from benchmarks.processes import Workplace

#: Children of one measurement.
_FORKS = 50

#: The most processor time that both snapshots of a warm trial may take, in seconds.
_EXPECTED = 0.005


def measure(place: Workplace, rounds: int) -> dict[str, Any]:
    """Measure and print; medians and the highest of 20 by name, in seconds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        # This file is in a repository: a workload in one is what costs more.
        said = place.run(sys.executable, "snapshot_clock.py", str(_FORKS), str(Path(__file__).resolve()))
        for name, seconds in json.loads(said).items():
            found.setdefault(name, []).extend(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    highest = {name: _of_twenty(seconds) for name, seconds in found.items()}
    print("\n".join(table([(name, duration(medians[name]), duration(highest[name])) for name in sorted(found)])))
    print(f"both snapshots of a trial: {duration(medians['warm: both'])}, at most {duration(_EXPECTED)} expected")
    return {"median": medians, "highest of 20": highest}


def _of_twenty(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
