"""Pictures of a report, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from pytest_aorta.triage.facts import TrialFacts, TrialSteps

#: Units of a chart's width, its margin on both sides, the height of a cell, and of the scale below the cells.
_WIDTH, _MARGIN, _ROW, _SCALE = 760, 10, 34, 30

#: Characters of a label.
_LONGEST = 100

#: Cells of a chart; a longer one cannot be read.
MOST_CELLS = 60

#: Trials of a cell that are marked one by one in the chart of step times.
_MOST_MARKS = 40

#: Longest step that is drawn, as a multiple of the shortest, above which the scale is logarithmic.
_LOGARITHMIC = 12

#: Marks of a scale at most.
_MOST_TICKS = 10


def step_times(cells: Sequence[tuple[str, Sequence[TrialFacts]]]) -> str | None:
    """The distribution of each cell's steps, with the median of each trial; ``None`` where no cell has step times.

    The line covers 99 % of the steps, the bar 80 %; the upright line is their median, each dot that of a trial.
    """
    import numpy

    found = [(label, [facts.steps for facts in trials if facts.steps is not None]) for label, trials in cells]
    shown = [(label, trials) for label, trials in found if trials][:MOST_CELLS]
    if not shown:
        return None
    pooled = [numpy.concatenate([numpy.asarray(steps.sorted_ms) for steps in trials]) for _, trials in shown]
    ends = [numpy.quantile(steps, [0.005, 0.1, 0.5, 0.9, 0.995]).tolist() for steps in pooled]
    medians = [_marks(trials) for _, trials in shown]
    values = [value for row in (*ends, *medians) for value in row]
    low, high = min(values), max(values)
    is_log = high > _LOGARITHMIC * low
    if low == high:
        low, high = 0.95 * low, 1.05 * high
    ground = len(shown) * _ROW + 2
    x = _position(low, high, is_log=is_log)
    drawn = [
        f'<path d="M{x(at):.1f} 0V{ground}" stroke="var(--line)" stroke-width=".6"/>'
        f'<text x="{x(at):.1f}" y="{ground + 11}" fill="var(--muted)" text-anchor="middle">{at:.10g}</text>'
        for at in _ticks(low, high, is_log=is_log)
    ]
    rows = enumerate(zip(shown, ends, medians, strict=True))
    drawn += [_row(number * _ROW, label, quantiles, marks, x) for number, ((label, _), quantiles, marks) in rows]
    unit = "ms per step" + (", logarithmic" if is_log else "")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {ground + _SCALE}" aria-hidden="true" focusable="false" font-size="9">\n'
        + "\n".join(drawn)
        + f'\n<path d="M{_MARGIN} {ground}H{_WIDTH - _MARGIN}" stroke="var(--line)"/>'
        f'<text x="{_WIDTH / 2:g}" y="{ground + 25}" fill="var(--muted)" text-anchor="middle">{unit}</text></svg>'
    )


def _row(
    top: int, label: str, quantiles: Sequence[float], medians: Sequence[float], x: Callable[[float], float]
) -> str:
    cut = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 13]}…{label[-12:]}"
    low, p10, median, p90, high = map(x, quantiles)
    at = top + 26
    return (
        f'<text x="{_MARGIN}" y="{top + 14}" fill="var(--ink)">{escape(cut)}</text>'
        f'<path d="M{low:.1f} {at}H{high:.1f}" stroke="var(--accent)" stroke-width=".8"/>'
        f'<path d="M{p10:.1f} {at}H{p90:.1f}" stroke="var(--accent)" stroke-width="7" opacity=".3"/>'
        f'<path d="M{median:.1f} {at - 6}V{at + 6}" stroke="var(--ink)" stroke-width="1.8"/>'
        + "".join(f'<circle cx="{x(each):.1f}" cy="{at}" r="1.3" fill="var(--ink)" opacity=".55"/>' for each in medians)
    )


def _marks(trials: Sequence[TrialSteps]) -> list[float]:
    medians = sorted(each.median_ms for each in trials)
    if len(medians) <= _MOST_MARKS:
        return medians
    return [medians[round(i * (len(medians) - 1) / (_MOST_MARKS - 1))] for i in range(_MOST_MARKS)]


def _position(low: float, high: float, *, is_log: bool) -> Callable[[float], float]:
    scale: Callable[[float], float] = math.log if is_log else float
    first, span = scale(low), scale(high) - scale(low)
    room = _WIDTH - 4 * _MARGIN
    return lambda value: 2 * _MARGIN + room * (scale(value) - first) / span


def _ticks(low: float, high: float, *, is_log: bool) -> Iterator[float]:
    if is_log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1, 2, 5) if 3 * len(powers) <= 2 * _MOST_TICKS else (1,)
        every = (factor * 10.0**power for power in powers for factor in factors)
        yield from (at for at in every if low <= at <= high)
        return
    unit = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    step = next(unit * factor for factor in (1, 2, 5, 10) if (high - low) / (unit * factor) <= _MOST_TICKS)
    yield from (number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1))


def added_up(trials: Sequence[tuple[float, TrialFacts]], most: int) -> str:
    """A line that rises by one at each failure, and ends at the last trial that counts.

    ``trials``: with their positions in the run, from 0 to 1. ``most``: failures at the top of the picture, which is
    100 wide and has its ground at 44.
    """
    counted = [(at, facts) for at, facts in trials if facts.is_counted]
    if not counted:
        return ""
    path, failures = "M0 44", 0
    for at, facts in counted:
        if facts.is_failure:
            failures += 1
            path += f"H{100 * at:.1f}V{44 - 42 * failures / most:.1f}"
    return f"{path}H{100 * counted[-1][0]:.1f}"


def lost(trials: Sequence[tuple[float, TrialFacts]]) -> str:
    """Marks of trials that say nothing about the workload, below the ground."""
    return "".join(f"M{100 * at:.1f} 45.5V50" for at, facts in trials if not facts.is_counted)
