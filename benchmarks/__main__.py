"""``python -m benchmarks``: measure, print ratios, say which expectations are met."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import (
    collectors,
    command,
    dispatch,
    gloo_trial,
    lazy,
    leaves,
    recipes,
    scaling,
    slots,
    snapshots,
    status,
    torch_trial,
    unused,
)
from benchmarks.compare import Comparison, Rounds, Subject, duration, table
from benchmarks.forked_venv import VenvUnavailable, forked_python
from benchmarks.machine import BackgroundLoad, facts
from benchmarks.processes import Workplace
from benchmarks.quiet import Quiet

_CACHE = Path(__file__).with_name(".cache")

_PARTS = (
    *("torch", "gloo", "phases", "dispatch", "scaling", "leaves", "slots", "snapshots"),
    *("lazy", "unused", "command", "collectors", "status", "recipes"),
)


def main() -> int:
    """Measure what the command line asks for."""
    options = _options()
    cache: Path = options.venv_cache
    cache.mkdir(parents=True, exist_ok=True)
    if cache == _CACHE:
        (cache / ".gitignore").write_text("*\n")
    report: dict[str, Any] = {"machine": facts(), "used_by_others": {}}
    for name, value in report["machine"].items():
        print(f"{name}: {value}")
    # Beside the sources rather than in /tmp, which may be memory: trials write their files to a real disk.
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=cache))
    try:
        place = Workplace(folder)
        place.run(sys.executable, "-c", "import torch")  # from the disk, for once
        for part in options.only or _PARTS:
            print(f"\n== {part}", flush=True)
            load = BackgroundLoad()
            report[part] = _measure(part, place, options)
            report["used_by_others"][part] = load.share()
            print(f"(others used {load.share():.0%} of the cores meanwhile)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="paired measurements (default 5)")
    parser.add_argument("--only", action="append", choices=_PARTS, help="only this part; repeat for several")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--venv-cache", type=Path, default=_CACHE, metavar="DIR", help="for pytest-forked's venv")
    parser.add_argument(
        "--peers", type=Path, default=Path(sys.executable), metavar="PYTHON", help="has Ray and Dask, if not this one"
    )
    parser.add_argument(
        "--quiet",
        type=float,
        metavar="SHARE",
        help="wait while others use more than this part of the cores, and measure again what they have disturbed",
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    return options


def _measure(part: str, place: Workplace, options: argparse.Namespace) -> dict[str, Any]:
    if part == "phases":
        return _phases(place)
    if part == "snapshots":
        return snapshots.measure(place, options.rounds)
    if part == "lazy":
        return lazy.measure(place, options.rounds, Quiet(options.quiet))
    if part == "status":
        return status.measure(place, options.rounds, Quiet(options.quiet))
    if part == "recipes":
        return recipes.measure(place, options.rounds, Quiet(options.quiet))
    if part == "collectors":
        return collectors.measure(place, options.rounds, Quiet(options.quiet))
    if part == "command":
        return command.measure(place, options.rounds, Quiet(options.quiet))
    if part == "unused":
        return unused.measure(place, options.rounds, Quiet(options.quiet))
    if part == "dispatch":
        return dispatch.measure(place, options.rounds, options.peers, Quiet(options.quiet))
    if part == "leaves":
        return leaves.measure(place, options.rounds, Quiet(options.quiet))
    if part == "scaling":
        return scaling.measure(place, options.rounds, Quiet(options.quiet))
    return _compare(part, place, options)


def _compare(part: str, place: Workplace, options: argparse.Namespace) -> dict[str, Any]:
    comparisons: tuple[Comparison, ...]
    subjects: dict[str, Subject]
    if part == "gloo":
        subjects, comparisons = gloo_trial.subjects(place), gloo_trial.COMPARISONS
    elif part == "slots":
        subjects, comparisons = slots.subjects(place), slots.COMPARISONS
    else:
        try:
            forked = forked_python(options.venv_cache.resolve())
        except VenvUnavailable as error:
            print(f"without pytest-forked, which cannot be installed:\n{error}")
            forked = None
        subjects, comparisons = torch_trial.subjects(place, forked), torch_trial.COMPARISONS
    comparisons = tuple(c for c in comparisons if {c.over, c.under} <= subjects.keys())
    rounds = Rounds(subjects, Quiet(options.quiet))
    for _ in range(options.rounds):
        rounds.add()
    print("\n".join(rounds.lines(comparisons)))
    return rounds.plain(comparisons)


def _phases(place: Workplace) -> dict[str, float]:
    """Where the time of a trial that does nothing goes."""
    phases = place.phases(
        sys.executable, "-p", "pytest_aorta.plugin.hooks", "trivial_workload.py", f"--aorta-trials={torch_trial.TRIALS}"
    )
    rows = [(name, duration(seconds)) for name, seconds in phases.items()]
    print("\n".join(table([*rows, ("sum", duration(sum(phases.values())))])))
    return phases


if __name__ == "__main__":
    sys.exit(main())
