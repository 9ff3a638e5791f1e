"""Failure rates and step times of cells over the runs of a results directory, including its history."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, stdev

from pytest_aorta.settings import RequestError
from pytest_aorta.triage import SPEED_MARGIN
from pytest_aorta.triage.facts import CellKey, TrialFacts
from pytest_aorta.triage.rates import Interval, difference_p, wilson
from pytest_aorta.triage.reading import Results
from pytest_aorta.triage.speed import compare_speeds, measured
from pytest_aorta.workspace.paths import HISTORY

#: Chance that any change is marked although there is none, however many runs follow.
LEVEL = 0.05


@dataclass(frozen=True)
class CellRun:
    """The trials of a cell in one run.

    ``rate`` and ``step_ms`` have 95 % intervals; ``None`` without counted trials, or step times. ``changes``: compared
    with the runs since the last change.
    """

    began: str
    failures: int
    counted: int
    rate: tuple[float, Interval] | None
    step_ms: tuple[float, Interval] | None
    changes: tuple[str, ...] = ()


def split_runs(results: Path) -> list[list[TrialFacts]]:
    """Split all trials into runs: a new run begins when a trial occurs again.

    Raises ``RequestError`` if there are not two runs.
    """
    history = results / HISTORY
    there = Results(results)
    facts = [trial.facts for trial in there]
    if not facts and not history.is_dir():
        raise there.nothing_found()
    for folder in sorted(history.iterdir()) if history.is_dir() else ():
        facts += [trial.facts for trial in Results(folder, there.rules)]
    if not facts:
        raise there.nothing_found()
    runs: list[list[TrialFacts]] = []
    seen: set[tuple[CellKey, int]] = set()
    for each in sorted(facts, key=lambda it: it.started_at):
        if not runs or (each.key, each.index) in seen:
            runs.append([])
            seen.clear()
        seen.add((each.key, each.index))
        runs[-1].append(each)
    if len(runs) < 2:
        raise RequestError(f"{results}: there is one run; pytest-aorta run --new makes more")
    return runs


def over_time(runs: Sequence[Sequence[TrialFacts]]) -> dict[CellKey, list[CellRun]]:
    """Compare each cell's runs.

    Each run is compared with all runs since the last change together: failure rates by Boschloo's test, step times by
    the t test of the table. The k-th comparison of a cell uses a share 1 / k (k + 1) of the level; these add up to 1,
    so one may look after each run, forever. Cells and the two questions share the level equally.
    """
    cells = list(dict.fromkeys(each.key for run in runs for each in run))
    by_cell: dict[CellKey, list[CellRun]] = {}
    for key in cells:
        before: list[TrialFacts] = []
        looks, own = 0, []
        for run in ([each for each in run if each.key == key] for run in runs):
            if not run:
                continue
            changes: list[str] = []
            if before:
                looks += 1
                changes = [*_changes(run, before, LEVEL / (looks * (looks + 1)) / (2 * len(cells)))]
            own.append(_cell_run(run, changes))
            before = list(run) if changes else [*before, *run]
        by_cell[key] = own
    return by_cell


def _counts(trials: Iterable[TrialFacts]) -> tuple[int, int]:
    counted = [each.is_failure for each in trials if each.is_counted]
    return sum(counted), len(counted)


def _changes(run: Sequence[TrialFacts], before: Sequence[TrialFacts], level: float) -> Iterator[str]:
    one, other = _counts(run), _counts(before)
    if (p := difference_p(*one, *other)) < level:
        rates = [failures / trials for failures, trials in (one, other)]
        yield f"fails {'more' if rates[0] > rates[1] else 'less'} often: {rates[1]:.0%} to {rates[0]:.0%} (p = {p:.2g})"
    for of in ("steps", "runs"):
        # Trials of different runs are not neighbours.
        sides = [[each._replace(began="") for each in measured(trials, of)] for trials in (run, before)]
        [speed] = compare_speeds([(sides[0], sides[1])], SPEED_MARGIN, sequential=False, family=1)
        if speed.ratio is not None and speed.interval is not None and speed.p < level:
            yield f"{'slower' if speed.ratio > 1 else 'faster'}: {speed.change} (p = {speed.p:.2g})"


def _cell_run(run: Sequence[TrialFacts], changes: Sequence[str]) -> CellRun:
    failures, counted = _counts(run)
    times = [each.time for each in measured(run) or measured(run, "runs")]
    step_ms = None
    if times:
        half = inf
        if len(times) > 1:
            from scipy.special import stdtrit

            half = float(stdtrit(len(times) - 1, 0.975)) * stdev(times) / sqrt(len(times))
        mean = fmean(times)
        step_ms = exp(mean), Interval(exp(mean - half), exp(min(mean + half, log(1e300))))
    rate = (failures / counted, wilson(failures, counted)) if counted else None
    return CellRun(run[0].started_at, failures, counted, rate, step_ms, tuple(changes))


#: Size of a panel, and space around its axes, in pixels.
_WIDTH, _HEIGHT, _MARGIN = 360, 130, 44


def picture(cells: dict[CellKey, list[CellRun]]) -> str:
    """Draw an SVG: one row per cell, failure rates on the left, step times on the right; changes are red."""
    height = 20 + len(cells) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for row, (key, runs) in enumerate(cells.items()):
        top = 20 + row * _HEIGHT
        parts.append(f'<text x="8" y="{top - 4}" font-weight="bold">{html.escape(key.label)}</text>')
        parts += _panel(0, top, [(run, run.rate) for run in runs], "failure rate", ("fails",))
        parts += _panel(_WIDTH, top, [(run, run.step_ms) for run in runs], "ms", ("slower", "faster"))
    return "\n".join([*parts, "</svg>\n"])


def _panel(
    left: int,
    top: int,
    points: Sequence[tuple[CellRun, tuple[float, Interval] | None]],
    name: str,
    changes: tuple[str, ...],
) -> Iterator[str]:
    """``changes``: first words of changes of this panel's value."""
    drawn = [(number, run, each) for number, (run, each) in enumerate(points) if each is not None]
    if not drawn:
        return
    lowest, highest, is_share = 0.0, 1.0, name != "ms"
    if not is_share:  # a change of a tenth has to be seen
        lowest = 0.95 * min(each[1].low for _, _, each in drawn)
        highest = 1.05 * max(min(each[1].high, 2 * each[0]) for _, _, each in drawn)
    inner, bottom = _WIDTH - 2 * _MARGIN, top + _HEIGHT - _MARGIN

    def x(number: int) -> float:
        return left + _MARGIN + inner * (number + 0.5) / len(points)

    def y(value: float) -> float:
        return bottom - (bottom - top - 8) * (min(value, highest) - lowest) / (highest - lowest)

    yield f'<path d="M{left + _MARGIN} {top + 4}V{bottom}h{inner}" fill="none" stroke="#888"/>'
    yield f'<text x="{left + _MARGIN + 6}" y="{top + 14}" fill="#666">{name}</text>'
    for value in (lowest, highest):
        text = f"{value:.0%}" if is_share else f"{value:.3g}"
        yield f'<text x="{left + _MARGIN - 4}" y="{y(value) + 4}" text-anchor="end">{text}</text>'
    line = " ".join(f"{x(number):.1f},{y(each[0]):.1f}" for number, _, each in drawn)
    yield f'<polyline points="{line}" fill="none" stroke="#6a8"/>'
    for number, run, (value, interval) in drawn:
        color = "#c22" if any(each.startswith(changes) for each in run.changes) else "#264"
        yield f'<path d="M{x(number):.1f} {y(interval.low):.1f}V{y(interval.high):.1f}" stroke="{color}"/>'
        title = html.escape("; ".join([run.began, *run.changes]))
        yield f'<circle cx="{x(number):.1f}" cy="{y(value):.1f}" r="3.5" fill="{color}"><title>{title}</title></circle>'
        yield f'<text x="{x(number):.1f}" y="{bottom + 14}" text-anchor="middle">{run.began[5:10]}</text>'
