"""The last line of a table: what to do next, as one command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.common.texts import duration_text
from pytest_aorta.plugin.collection import ROOT
from pytest_aorta.triage.power import FREQUENT, LONGEST, UNTIL_IT_FAILS
from pytest_aorta.triage.verdicts import NOT_CONFIRMED

if TYPE_CHECKING:
    from pytest_aorta.plugin.run import SessionRun
    from pytest_aorta.triage.verdicts import Row, Table

#: Switches that the next command does not repeat.
_SWITCHES = ("--aorta-resume", "--lf", "--last-failed")


#: Options that a search chooses itself.
_CHOSEN = ("-k", *(f"--aorta-{name}" for name in ("mitigations", "stop", "trials", "vary", "baseline")))


def next_steps(run: SessionRun, table: Table, stopped: str | None) -> Iterator[str]:
    """Lines such as ``next: 34 more trials of each cell, about 2m: pytest ... --aorta-trials 39 --aorta-resume``."""
    results = _shown(run, run.results)
    report = f"the evidence in one page: pytest-aorta report {shlex.quote(results)}"
    rows = [row for row in table.rows if row.cell.total]
    if run.replays or run.expects_failures or run.selection.searches or not rows:
        return
    is_line = run.action is None and run.chosen is not None and not run.selection.shard  # else a file has the numbers
    if stopped is not None and is_line:
        # What has failed fails again, and would end the run again.
        to_its_end = ["--maxfail=0"] if run.config.getoption("maxfail") else []
        yield f"next: the rest of the plan: {_line(run, [*to_its_end, '--aorta-resume'])}"
        return
    compared = [row for row in rows if row.comparison is not None]
    kinds = {row.verdict.kind for row in rows}
    cures = [row for row in compared if row.verdict.kind in ("fixes", "reduces")]
    if not any(row.cell.counted for row in rows):
        if is_line:
            yield f"next: when the reason is gone: {_line(run, ['--aorta-resume'])}"
        return
    if cures:
        yield f"next: {report}"
        failed = next((file for row in rows if row.verdict.kind == "baseline" for file in _failed(run, row)), None)
        if failed is not None:
            yield f"next: a failure again, with its seeds: pytest --aorta-replay {shlex.quote(failed)}"
        best = min(cures, key=lambda row: (row.verdict.kind, row.p))
        names = ",".join(best.cell.mitigations)
        overlays = {spec.cell: spec.overlay for spec in run.plan.trials} if is_line else {}
        base = overlays.get(best.comparison.baseline.cell, {}) if best.comparison is not None else {}
        if len(overlays.get(best.cell.key.cell, {}).items() - base.items()) > 1 and best.cell.environment == "local":
            yield f"next: which part of it does it: {_search(run, 'minimize', names)}"
        return
    start, failed = table.associations.start, next((file for row in rows for file in _failed(run, row)), None)
    if failed is not None and start is not None and start.factor == "hash seed":
        # More trials would draw more seeds, and tell no more.
        yield f"next: a failure again, with its hash seed: pytest --aorta-replay {shlex.quote(failed)}"
        return
    is_answered = run.selection.stop.power or any(each.acts for each in table.factorials)
    undecided = [row for row in compared if row.verdict.kind == "undecided"]
    is_rare = not any(row.cell.failures for row in rows)
    if is_line and failed is not None and 0 < (rows[0].cell.rate or 0) < FREQUENT:
        yield f"next: which condition makes it frequent: {_search(run, 'amplify')}"
    if not is_line:
        yield f"next: {report}"
    elif is_rare and not table.settings.speed and not kinds & {"slower", "faster"}:
        stop = [word for name, value in UNTIL_IT_FAILS.items() for word in (f"--aorta-{name}", value)]
        what = "it" if len(rows) == 1 else "each cell"
        yield f"next: until {what} fails, for {LONGEST} at most: {_line(run, stop)}"
    elif undecided and table.associations.runs is None and not is_answered:
        more = _more(run, undecided, table)
        trials = max(row.cell.total for row in rows) + more
        time = _time(run, rows, more)
        keep = [] if not run.selection.stop.ends_cells else ["--aorta-stop", _stop(run)]
        line = _line(run, ["--aorta-trials", str(trials), *keep, "--aorta-resume"])
        yield f"next: {more} more trials of each cell{time}: {line}"
    elif not compared and not is_rare and failed is not None:
        yield f"next: a failure again, with its seeds: pytest --aorta-replay {shlex.quote(failed)}"
    else:
        yield f"next: {report}"


def _more(run: SessionRun, undecided: Sequence[Row], table: Table) -> int:
    """Estimate how many more trials would decide; without an estimate, as many as there were."""
    known = [row.verdict.more_trials for row in undecided if row.verdict.more_trials is not None]
    if known and not any(row.verdict.reason == NOT_CONFIRMED for row in undecided):
        return max(known)
    return max(row.cell.total for row in undecided)


def _time(run: SessionRun, rows: Sequence[Row], more: int) -> str:
    walls = [row.cell.median_wall_sec for row in rows if row.cell.median_wall_sec is not None]
    if not walls:
        return ""
    resources = run.selection.resources
    at_a_time = max(1, resources.total_slots) * max(1, resources.workers)
    seconds = more * sum(walls) / at_a_time
    unit = 60 if seconds > 120 else 10
    return f", about {duration_text(unit * math.ceil(seconds / unit))}"


def _stop(run: SessionRun) -> str:
    stop = run.selection.stop
    goals = {"first-fix": stop.first_fix, "equivalence": stop.equivalence, "speed": stop.speed}
    # Not failures=N, with which cells that have failed so often would have no more trials.
    words = [name for name, is_set in goals.items() if is_set] or ["decided"]
    return ",".join([*words, *([] if stop.confirm else ["confirm=0"])])


def _line(run: SessionRun, more: Sequence[str]) -> str:
    """The command line of this run, with further options."""
    return shlex.join(["pytest", *_kept(run, more), *more])


def _search(run: SessionRun, *words_of_search: str) -> str:
    """The command of a search, without options that it chooses itself."""
    return shlex.join(["pytest-aorta", *words_of_search, *_kept(run, _CHOSEN)])


def _kept(run: SessionRun, but: Sequence[str]) -> Iterator[str]:
    """The words of this command line but for these options; with other trials, no ``[local-none-3]``."""
    words = list(map(str, run.config.invocation_params.args))
    while words:
        word = words.pop(0)
        if word.partition("=")[0] in but:
            if "=" not in word and words:
                words.pop(0)
        elif word not in _SWITCHES:
            name = word.rpartition("::")[2]
            is_trial = "--aorta-trials" in but and name in (run.chosen or ())
            yield f"{ROOT}::{name.partition('[')[0]}" if is_trial else word


def _failed(run: SessionRun, row: Row) -> Iterator[str]:
    for each in row.cell.finished:
        if each.is_failure:
            yield _shown(run, run.results / each.file)


def _shown(run: SessionRun, path: Path) -> str:
    start = run.config.invocation_params.dir
    return str(path.relative_to(start) if path.is_relative_to(start) else path)
