"""``python -m benchmarks.simulate_triage``: how often a triage says something false, and how soon the truth.

Simulates triages in worlds with known causes of failures, judges them as a run does, and rewrites the tables between
the markers in docs/explanation/statistics.md. Deterministic for a version and --triages; 1,000 take an hour.
``--worlds runs --triages 200`` prints some worlds only, with their false statements.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from benchmarks.simulated_worlds import Seen, World, simulate_one, worlds

_PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "statistics.md"

#: Triages of one task of a process.
_CHUNK = 20

#: Runs until decided cost ten times as much, so there are so many times fewer.
_FEWER = 5

#: Examples of false statements, at most.
_EXAMPLES = 4

_COLUMNS = (
    "world",
    "wrong",
    "any lower rate (AORTA)",
    "Fisher after every trial",
    "found",
    "best test",
    "names the cause",
    "trials",
    "of the best test",
)


def main() -> int:
    """Simulate, print, and write the tables into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_triage", description=__doc__)
    parser.add_argument("--triages", type=int, default=1000, metavar="N", help="of each world (default 1000)")
    parser.add_argument("--page", type=Path, help="with the markers (default the page of statistics, without --worlds)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="at once (default: cores)")
    parser.add_argument("--dry-run", action="store_true", help="print the tables only")
    parser.add_argument(
        "--worlds", nargs="+", metavar="NAME", choices=[*worlds(), "all"], help="only these, with false statements"
    )
    options = parser.parse_args()
    path = options.page or (None if options.worlds else _PAGE)
    wanted = [*worlds()] if options.worlds in (None, ["all"]) else options.worlds
    with ProcessPoolExecutor(options.processes) as pool:
        for group in wanted:
            started = time.perf_counter()
            fewer = -(-options.triages // _FEWER)
            lines = [
                f"{options.triages:,} triages of each world, {fewer:,} where it runs until decided:",
                "",
                _row(*_COLUMNS),
                _row(*["---:"] * len(_COLUMNS)),
            ]
            print(*lines[2:], sep="\n")
            for world, seen in _simulated(group, options.triages, pool):
                lines.append(_result(world, seen))
                print(lines[-1], flush=True)
                for what, times in seen.what.most_common(_EXAMPLES if options.worlds else 0):
                    print(f"    {times} x {what}: {seen.example[what]}")
            print(f"({group}: {time.perf_counter() - started:.0f} s)\n", flush=True)
            if path and not options.dry_run:
                path.write_text(_replaced(path.read_text(), group, "\n".join(lines)))
    return 0


def _simulated(group: str, triages: int, pool: Executor) -> Iterator[tuple[World, Seen]]:
    for number, world in enumerate(worlds()[group]):
        seen = Seen()
        wanted = -(-triages // _FEWER) if world.until_decided else triages
        chunks = [range(start, min(start + _CHUNK, wanted)) for start in range(0, wanted, _CHUNK)]
        for each in pool.map(simulate_one, repeat(group), repeat(number), chunks):
            seen.add(each)
        yield world, seen


def _result(world: World, seen: Seen) -> str:
    def share(number: float, said: bool = True) -> str:
        return f"{number / seen.triages:.1%}" if said else ""

    has_best = world.reference is not None or (world.acting is not None and world.oracle is not None)
    return _row(
        world.name,
        f"**{share(seen.wrong)}**",
        share(seen.lower),
        share(seen.fisher),
        share(seen.found),
        share(seen.best, has_best),
        share(seen.causes, _has_cause(world)),
        f"{seen.trials / seen.triages:.0f}",
        f"{seen.best_trials / seen.triages:.0f}" if has_best else "",
    )


def _has_cause(world: World) -> bool:
    truth = world.truth
    return bool(truth.culprit or truth.in_runs or truth.changes or truth.in_starts or truth.by_hash or truth.says)


def _row(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def _replaced(page: str, name: str, table: str) -> str:
    """The page with a table between its markers."""
    start, end = f"<!-- simulation: {name} -->", "<!-- end of simulation -->"
    before, marker, rest = page.partition(start)
    if not marker:
        raise SystemExit(f"the page has no {start}")
    _, _, after = rest.partition(end)
    return f"{before}{start}\n{table}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
