"""``python -m benchmarks.simulate_triage``: how often verdicts are wrong, and how soon they are right.

Simulates triages whose failure rates are known, judges them by the rules of the package, and writes the tables of
docs/statistics.md anew, between their markers. Always the same numbers for the same --triages.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from benchmarks.simulated_triages import (
    Course,
    Outcomes,
    ever_called,
    fixed_verdicts,
    lower_rate_anywhere,
    outcomes,
    pairs_until_different,
    pairs_until_different_two_sided,
    uncorrected_fisher,
    until_decided,
)
from benchmarks.simulated_worlds import Seen, simulate_one, worlds
from pytest_aorta.triage.verdicts import VerdictKind

_PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
_CELLS, _TRIALS, _BOUND = 8, 20, 200
_CHUNK = 25
_EFFECTS = ((0.9, 0.0), (0.5, 0.0), (0.3, 0.0), (0.1, 0.0), (0.9, 0.5), (0.5, 0.2), (0.3, 0.1), (0.1, 0.5))
_BETTER: set[VerdictKind] = {"fixes", "reduces"}


@dataclass(frozen=True)
class _Table:
    """One table of the page; ``row`` makes a row for each of ``rows``, from as many ``triages``."""

    name: str
    caption: str
    columns: tuple[str, ...]
    row: Callable[[tuple[float, ...], int], str]
    rows: Sequence[tuple[float, ...]]
    triages: int


def _tables(triages: int) -> list[_Table]:
    few = max(1, triages // 10)
    alike = [(rate,) for rate in (0.02, 0.1, 0.3, 0.5, 0.9)]
    return [
        _Table(
            "no effect",
            f"{triages:,} triages of {_CELLS} cells x {_TRIALS} trials for each rate, all cells alike; "
            "share of triages in which any cell is called better:",
            (
                "failure rate of all cells",
                "any lower rate (AORTA)",
                "Fisher, at the end",
                "Fisher, after every trial",
                "fixed: `fixes`",
                "fixed: `fixes` or `reduces`",
                "watched: `fixes`",
                "watched: `fixes` or `reduces`",
                "watched, then fixed: `fixes` or `reduces`",
            ),
            _no_effect,
            alike,
            triages,
        ),
        _Table(
            "no effect, long",
            f"{few:,} triages of {_CELLS} cells x {_BOUND} trials for each rate, all cells alike, looked at after "
            "every trial; share of triages in which any cell is ever called better:",
            ("failure rate of all cells", "watched: `fixes`", "watched: `fixes` or `reduces`"),
            _no_effect_long,
            alike,
            few,
        ),
        _Table(
            "effects",
            f"{few:,} triages of {_CELLS} cells for each row, of which one acts:",
            (
                "failure rate, baseline -> cell",
                f"found by {_TRIALS} trials, fixed",
                f"found until decided, at most {_TRIALS}",
                f"found until decided, at most {_BOUND}",
                "trials of this cell",
                f"trials saved of this cell's {_BOUND}",
                f"trials saved of all {_CELLS} x {_BOUND}",
            ),
            _effect,
            _EFFECTS,
            few,
        ),
        _Table(
            "equal rates",
            f"{few:,} triages of {_CELLS} cells for each rate, all alike; share of cells called `no effect`:",
            (
                "failure rate of all cells",
                f"by {_BOUND} trials, fixed",
                f"until decided, at most {_BOUND}",
                "trials of a cell",
                f"trials saved of all {_CELLS} x {_BOUND}",
            ),
            _equal_rates,
            [(0.0,), *alike],
            few,
        ),
        _Table(
            "at the margin",
            f"{few:,} triages of {_CELLS} cells for each row; share of cells that are called `no effect` although "
            "their rate differs by as much as the margin:",
            ("failure rate, baseline -> cells", f"by {_BOUND} trials, fixed", f"until decided, at most {_BOUND}"),
            _at_the_margin,
            [(0.0, 0.1), (0.1, 0.2), (0.3, 0.4), (0.5, 0.4), (0.9, 1.0)],
            few,
        ),
        _Table(
            "tests",
            f"{triages:,} comparisons of one cell with its baseline for each row, at most {_BOUND} pairs:",
            (
                "failure rate, baseline -> cell",
                "p < 0.05 within 50 pairs: this test",
                "two-sided test",
                "mean pairs until p < 0.05: this test",
                "two-sided test",
            ),
            _test,
            _EFFECTS[:-1],
            triages,
        ),
    ]


def main() -> int:
    """Simulate, print, and write the tables into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_triage", description=__doc__)
    parser.add_argument("--triages", type=int, default=10_000, metavar="N", help="per failure rate (default 10000)")
    parser.add_argument("--page", type=Path, default=_PAGE, help="with the markers (default docs/statistics.md)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="at once (default: cores)")
    parser.add_argument("--dry-run", action="store_true", help="print the tables only")
    parser.add_argument(
        "--worlds",
        nargs="+",
        metavar="NAME",
        choices=(*worlds(), "all"),
        help="only these worlds, printed with examples",
    )
    options = parser.parse_args()
    if options.worlds:
        with ProcessPoolExecutor(options.processes) as pool:
            for line in _worlds([*worlds()] if "all" in options.worlds else options.worlds, options.triages, pool):
                print(line, flush=True)
        return 0
    page = options.page.read_text()
    with ProcessPoolExecutor(options.processes) as pool:
        for table in _tables(options.triages):
            started = time.perf_counter()
            lines = [table.caption, "", _row(*table.columns), _row(*["---:"] * len(table.columns))]
            lines += pool.map(table.row, table.rows, [table.triages] * len(table.rows))
            text = "\n".join(lines)
            print(f"\n{text}\n({table.name}: {time.perf_counter() - started:.0f} s)", flush=True)
            page = _replaced(page, table.name, text)
    if not options.dry_run:
        options.page.write_text(page)
    return 0


def _worlds(names: Sequence[str], triages: int, pool: Executor) -> Iterator[str]:
    """A row for each world, and below it what was said falsely."""
    yield _row(
        "world", "wrong", "found", "best test", "names the culprit", "cautions", "trials of a cell", "of the best"
    )
    yield _row(*["---"] * 8)
    for name in names:
        for number, world in enumerate(worlds()[name]):
            chunks = [range(start, min(start + _CHUNK, triages)) for start in range(0, triages, _CHUNK)]
            seen = Seen()
            for each in pool.map(simulate_one, repeat(name), repeat(number), chunks):
                seen.add(each)
            acts = world.acting is not None
            yield _row(
                world.name,
                f"{seen.wrong / seen.triages:.1%}",
                f"{seen.found / seen.triages:.1%}" if acts else "",
                f"{seen.best / seen.triages:.1%}" if acts and world.oracle else "",
                f"{seen.culprits / seen.triages:.1%}" if world.truth.culprit else "",
                f"{seen.cautions / seen.triages:.1%}",
                f"{seen.trials / seen.triages / len(world.truth.rates):.0f}",
                f"{seen.best_trials / seen.triages:.0f}" if acts and world.oracle else "",
            )
            for what, times in seen.what.most_common(4):
                yield f"    {times} x {what}: {seen.example[what]}"


def _no_effect(rates: tuple[float, ...], triages: int) -> str:
    failed = outcomes(_generator(1, rates), [*rates] * _CELLS, triages, _TRIALS)
    fixed = [set(verdicts) for verdicts in fixed_verdicts(failed)]
    watched = ever_called(failed)
    at_the_end, any_time = uncorrected_fisher(failed)
    return _row(
        f"{rates[0]:g}",
        _share(lower_rate_anywhere(failed)),
        _share(at_the_end),
        _share(any_time),
        _share("fixes" in kinds for kinds in fixed),
        _share(bool(kinds & _BETTER) for kinds in fixed),
        _share("fixes" in kinds for kinds in watched),
        _share(bool(kinds & _BETTER) for kinds in watched),
        _share(bool((live | final) & _BETTER) for live, final in zip(watched, fixed, strict=True)),
    )


def _no_effect_long(rates: tuple[float, ...], triages: int) -> str:
    watched = ever_called(outcomes(_generator(2, rates), [*rates] * _CELLS, triages, _BOUND))
    return _row(
        f"{rates[0]:g}",
        _share("fixes" in kinds for kinds in watched),
        _share(bool(kinds & _BETTER) for kinds in watched),
    )


def _effect(rates: tuple[float, ...], triages: int) -> str:
    base, cell = rates
    failed = outcomes(_generator(3, rates), [base, cell, *[base] * (_CELLS - 2)], triages, _BOUND)
    wanted: set[VerdictKind] = {"worse"} if cell > base else _BETTER
    fixed = fixed_verdicts(failed[:, :, :_TRIALS])
    short, course = until_decided(failed[:, :, :_TRIALS]), until_decided(failed)
    return _row(
        f"{base:g} -> {cell:g}",
        _share(verdicts[0] in wanted for verdicts in fixed),
        _share(verdicts[0] in wanted for verdicts in short.verdicts),
        _share(verdicts[0] in wanted for verdicts in course.verdicts),
        f"{course.trials[:, 0].mean():.0f}",
        f"{1 - course.trials[:, 0].mean() / _BOUND:.0%}",
        _saved(course),
    )


def _equal_rates(rates: tuple[float, ...], triages: int) -> str:
    failed = outcomes(_generator(4, rates), [*rates] * _CELLS, triages, _BOUND)
    fixed, course = fixed_verdicts(failed), until_decided(failed)
    return _row(
        f"{rates[0]:g}",
        _share(kind == "no effect" for verdicts in fixed for kind in verdicts),
        _share(kind == "no effect" for verdicts in course.verdicts for kind in verdicts),
        f"{course.trials.mean():.0f}",
        _saved(course),
    )


def _at_the_margin(rates: tuple[float, ...], triages: int) -> str:
    base, cell = rates
    failed = outcomes(_generator(6, rates), [base, *[cell] * (_CELLS - 1)], triages, _BOUND)
    return _row(
        f"{base:g} -> {cell:g}",
        _share(kind == "no effect" for verdicts in fixed_verdicts(failed) for kind in verdicts),
        _share(kind == "no effect" for verdicts in until_decided(failed).verdicts for kind in verdicts),
    )


def _test(rates: tuple[float, ...], streams: int) -> str:
    failed = outcomes(_generator(5, rates), rates, streams, _BOUND)
    ours = pairs_until_different(failed[:, 0], failed[:, 1])
    theirs = pairs_until_different_two_sided(failed[:, 0], failed[:, 1])
    return _row(
        f"{rates[0]:g} -> {rates[1]:g}",
        _share(ours <= 50),
        _share(theirs <= 50),
        f"{ours.mean():.1f}",
        f"{theirs.mean():.1f}",
    )


def _saved(course: Course) -> str:
    """Of all trials; the baseline goes on as long as any cell needs it."""
    used = course.trials.sum(axis=1) + course.trials.max(axis=1)
    return f"{1 - used.mean() / (_CELLS * _BOUND):.0%}"


def _generator(table: int, rates: tuple[float, ...]) -> np.random.Generator:
    return np.random.default_rng([table, *(round(1000 * rate) for rate in rates)])


def _row(*fields: str) -> str:
    return f"| {' | '.join(fields)} |"


def _share(hits: Iterable[bool] | Outcomes) -> str:
    return f"{100 * float(np.mean(np.fromiter(hits, float))):.2f} %"


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
