"""Pictures of a report, as SVG; those with a scale are drawn by matplotlib."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from pytest_aorta.triage.facts import TrialFacts, TrialSteps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Colours that matplotlib draws with, and the variables of the page that take their place.
COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--line)",
    "#040404": "var(--accent)",
}
INK, MUTED, LINE, ACCENT = COLOURS

#: Width in points, and characters of a label.
_WIDTH, _LONGEST = 760.0, 100

#: Cells of a chart; a longer one cannot be read.
MOST_CELLS = 60

#: Trials of a cell that are marked one by one in the chart of step times.
_MOST_MARKS = 40

#: Longest step, as a multiple of the shortest, above which the scale is logarithmic.
_LOGARITHMIC = 12


def step_times(cells: Sequence[tuple[str, Sequence[TrialFacts]]]) -> str | None:
    """The distribution of each cell's steps, with the median of each trial; ``None`` where no cell has step times."""
    found = [(label, [facts.steps for facts in trials if facts.steps is not None]) for label, trials in cells]
    shown = [(label, trials) for label, trials in found if trials][:MOST_CELLS]
    if not shown:
        return None
    return _chart(f"steps {shown[0][0]}", len(shown), 34.0, lambda axes: _draw_steps(axes, shown))


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


def _chart(name: str, rows: int, row_height: float, draw: Callable[[Axes], None]) -> str:
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that matplotlib's own font does not have: the browser's has
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9.0})
        return _svg(_drawn(rows * row_height + 34, draw))


def _drawn(height: float, draw: Callable[[Axes], None]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH / 72, height / 72))
    axes = figure.add_axes((8 / _WIDTH, 32 / height, 1 - 18 / _WIDTH, 1 - 34 / height))
    axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(axis="x", colors=MUTED, length=3, width=0.8)
    axes.set_yticks([])
    draw(axes)
    axes.xaxis.label.set_color(MUTED)
    return figure


def _label(axes: Axes, row: float, text: str) -> None:
    cut = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 13]}…{text[-12:]}"
    axes.text(0, row, cut, transform=axes.get_yaxis_transform(), color=INK, va="center", parse_math=False)


def _draw_steps(axes: Axes, cells: Sequence[tuple[str, Sequence[TrialSteps]]]) -> None:
    import numpy
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    pooled = [numpy.concatenate([numpy.asarray(steps.sorted_ms) for steps in trials]) for _, trials in cells]
    for row, ((label, trials), steps) in enumerate(zip(cells, pooled, strict=True)):
        y = -float(row)
        _label(axes, y + 0.36, label)
        low, p10, median, p90, high = numpy.quantile(steps, [0.005, 0.1, 0.5, 0.9, 0.995])
        axes.plot([low, high], [y - 0.1] * 2, color=ACCENT, linewidth=0.8, solid_capstyle="butt")
        axes.plot([p10, p90], [y - 0.1] * 2, color=ACCENT, linewidth=7, alpha=0.3, solid_capstyle="butt")
        axes.plot([median] * 2, [y - 0.3, y + 0.1], color=INK, linewidth=1.8, solid_capstyle="butt")
        medians = numpy.asarray([each.median_ms for each in trials])
        if len(medians) > _MOST_MARKS:
            medians = numpy.quantile(medians, numpy.linspace(0, 1, _MOST_MARKS))
        axes.plot(medians, [y - 0.1] * len(medians), "o", color=INK, alpha=0.55, markersize=2.6, mew=0)
    is_log = max(steps.max() for steps in pooled) > _LOGARITHMIC * min(steps.min() for steps in pooled)
    if is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(-len(cells) + 0.45, 0.65)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("ms per step" + (", logarithmic" if is_log else ""))


def _svg(figure: Figure) -> str:
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # it would hold for the whole page
    text = re.sub(r"(\d\.\d)\d{2,}", r"\1", text)
    text = re.sub(r'^<svg[^>]* (viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true" focusable="false">', text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    text = text.replace("xlink:href", "href")
    for colour, variable in COLOURS.items():
        text = text.replace(colour, variable)
    return re.sub(r"\n\s*", "\n", text).strip()
