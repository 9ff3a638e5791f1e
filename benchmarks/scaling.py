"""What a task costs in graphs of 1,000 to 1,000,000 tasks, with all workers and with one out of service."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from benchmarks.compare import duration, table
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

#: Tasks of one run, and of one that has only independent tasks besides.
SIZES = (1_000, 10_000, 100_000)
VERY_MANY = 1_000_000

#: By their names in ``subjects/scaling_graphs.py``.
PATTERNS = ("independent", "chain", "fans", "rows", "columns", "tiles")

#: The largest growth from the first size to the last one that is expected, of the processor time per task.
AT_MOST = 1.3


def measure(place: Workplace, rounds: int, quiet: Quiet) -> dict[str, Any]:
    """Measure and print; all medians, in seconds and bytes.

    Processor time is what others on the machine disturb least, and that of the process that submits is what would grow.
    """
    report: dict[str, Any] = {}
    rows = [("processor time per task", *(f"{size:,}" for size in SIZES), "growth", "clock", "peak memory")]
    print("\n".join(table(rows)), flush=True)
    for lost in (0, 1):
        for pattern in PATTERNS:
            costs = [_cost(place, pattern, size, lost, rounds, quiet) for size in SIZES]
            growth = costs[-1]["processor"] / costs[0]["processor"]
            verdict = "met" if growth <= AT_MOST else "MISSED"
            name = f"{pattern}, one of three workers lost" if lost else pattern
            report[name] = {"costs": dict(zip(SIZES, costs, strict=True)), "growth": growth}
            rows.append(
                (
                    name,
                    *(duration(cost["processor"]) for cost in costs),
                    f"{growth:.2f} ({verdict})",
                    duration(costs[-1]["clock"]),
                    f"{costs[-1]['peak'] / 2**20:.0f} MiB",
                )
            )
            print("  ".join(rows[-1]), flush=True)  # it takes minutes
    print("", *table(rows), sep="\n")
    most = _cost(place, "independent", VERY_MANY, 0, 1, quiet)
    growth = most["processor"] / report["independent"]["costs"][SIZES[0]]["processor"]
    report[f"{VERY_MANY}"] = {"costs": most, "growth": growth}
    verdict = "met" if growth <= AT_MOST else "MISSED"
    times = f"{duration(most['processor'])} of the processor, {duration(most['clock'])} of the clock"
    told = f"{VERY_MANY:,} independent tasks: each {times}"
    print(f"{told}, {most['peak'] / VERY_MANY:.0f} bytes; growth {growth:.2f} ({verdict})")
    print(f"growth from {SIZES[0]:,} to {SIZES[-1]:,}: at most {AT_MOST} expected")
    return report


def _cost(place: Workplace, pattern: str, size: int, lost: int, rounds: int, quiet: Quiet) -> dict[str, float]:
    """Medians of all rounds."""
    found: list[dict[str, float]] = []

    def once() -> list[float]:
        said = place.run(sys.executable, "scaling_graphs.py", pattern, str(size), str(lost))
        found.append(json.loads(said))
        return [found[-1]["processor"]]

    for _ in range(rounds):
        quiet(once)
    return {name: statistics.median(cost[name] for cost in found) for name in found[0]}
