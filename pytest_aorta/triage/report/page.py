"""All that the page shows, as its templates take it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_aorta._version import __version__
from pytest_aorta.common.texts import first_names
from pytest_aorta.triage.conclusion import conclusions
from pytest_aorta.triage.facts import CellKey, Outcome, TrialFacts
from pytest_aorta.triage.failures.signatures import Signature
from pytest_aorta.triage.report import charts
from pytest_aorta.triage.report.cell_views import CellView, SignatureView, cell_views, signature_views
from pytest_aorta.triage.report.environments import EnvironmentView, between_cells, from_other_run
from pytest_aorta.triage.report.material import Material, labels_of
from pytest_aorta.triage.report.safe_text import one_line
from pytest_aorta.triage.report.trial_views import TrialView, trial_views
from pytest_aorta.triage.table import Table
from pytest_aorta.triage.wording import counted, rate_with_interval

#: Names that the head of the page has of each kind.
_MOST_NAMES = 6

#: Warnings that the head of the page has.
_MOST_WARNINGS = 20


@dataclass(frozen=True)
class Page:
    """One report.

    Attributes:
        title: names of the workloads.
        facts: of the run, as name and value: trials, host, when.
        sentences: the most important conclusions.
        warnings: what makes them doubtful.
        cells, signatures, trials: rows of their tables.
        steps: a chart for each workload that has step times.
        timeline: of failures; ``None`` where there are no trials.
        environments: what differs between them.
        method: of the statistics.
        version: of this software.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    cells: tuple[CellView, ...]
    signatures: tuple[SignatureView, ...]
    trials: tuple[TrialView, ...]
    steps: tuple[charts.Chart, ...]
    timeline: charts.Chart | None
    environments: tuple[EnvironmentView, ...]
    method: str
    version: str = __version__

    @property
    def most_drawn(self) -> int:
        """Cells in a chart."""
        return charts.MOST_CELLS

    @property
    def outcomes(self) -> list[str]:
        """Those that there are, for the filter."""
        return list(dict.fromkeys(trial.outcome for trial in self.trials))


def page_of(material: Material, output: Path, against: tuple[str, Material] | None = None) -> Page:
    """The page of a results directory.

    ``against``: another one, and its name.
    """
    table = material.triage.table()
    labels = labels_of([row.cell.key for row in table.rows])
    signatures = {facts.signature for facts in material.trials if facts.signature is not None}
    ids = {signature: _id(signature) for signature in signatures}
    of_files = {facts.file: ids[facts.signature] for facts in material.trials if facts.signature is not None}
    cells = cell_views(table, labels, ids)
    shown = _shown(material.folder)
    return Page(
        title=_listed(sorted({row.cell.key.workload for row in table.rows})) or "no trials",
        facts=tuple(_facts(material, shown)),
        sentences=tuple(_sentences(table, labels)),
        warnings=tuple(_warnings(table, material, labels)),
        cells=tuple(cells),
        signatures=tuple(signature_views(material, labels, ids)),
        trials=tuple(trial_views(material, labels, of_files, output, shown)),
        steps=tuple(_steps(material, labels)),
        timeline=_timeline(material, labels),
        environments=tuple(_environments(material, labels, against)),
        method=next((row.comparison.method for row in table.rows if row.comparison is not None), "fixed"),
    )


def _id(signature: Signature) -> str:
    """Equal for equal signatures, in other reports as well."""
    return f"s{hashlib.sha256(repr(signature).encode(errors='replace')).hexdigest()[:8]}"


def _shown(results: Path) -> str:
    """A results directory as it is typed: relative where it lies below the current one."""
    absolute, here = Path(os.path.abspath(results)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _facts(material: Material, shown: str) -> list[tuple[str, str]]:
    cells = len(material.triage.cells)
    numbers = f"{counted(len(material.trials), 'trial')} in {counted(cells, 'cell')}"
    found = [("trials", numbers), ("host", _listed([name for name, _ in material.hosts.most_common()]))]
    times = sorted(facts.started_at for facts in material.trials if facts.started_at)
    if times:
        first, last = (one_line(time[:16].replace("T", " ")) for time in (times[0], times[-1]))
        end = last[11:] if last[:10] == first[:10] else last
        found.append(("started", f"{first} UTC" if first == last else f"{first} to {end} UTC"))
    return [*found, ("results", one_line(shown))]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, first_names(names, _MOST_NAMES)))


def _sentences(table: Table, labels: Mapping[CellKey, str]) -> list[str]:
    """What the table comes to; of cells that are not compared, how often they have failed."""
    found = conclusions(table)
    if not found:
        for row in table.rows[:_MOST_NAMES]:
            cell = row.cell
            found.append(
                f"{labels[cell.key]}: {cell.failures} of {counted(cell.counted, 'trial')} failed, "
                f"{rate_with_interval(cell.rate, cell.rate_interval)}; there is nothing to compare with."
                if cell.counted
                else f"{labels[cell.key]}: no trial says anything about the workload."
            )
    return [one_line(text, 600) for text in found]


def _warnings(table: Table, material: Material, labels: Mapping[CellKey, str]) -> list[str]:
    """What concerns several cells, then their confounds, what their variables have not done, and what trials say."""
    found = [*table.warnings]
    for row in table.rows:
        if row.confound is not None and row.confound.kind == "speed":
            found.append(f"{labels[row.cell.key]}: {row.confound.text}; a fault of timing can hide in slower steps")
    found += dict.fromkeys(text for row in table.rows if row.effect is not None for text in row.effect.sentences)
    for row in table.rows:
        for text, number in row.cell.warnings.items():
            found.append(f"{labels[row.cell.key]}: {text} ({counted(number, 'trial')})")
    found += material.left_out
    more = len(found) - _MOST_WARNINGS
    shown = [one_line(text, 500) for text in found[:_MOST_WARNINGS]]
    return [*shown, *([f"and {counted(more, 'more warning')}"] if more > 0 else [])]


def _environments(
    material: Material, labels: Mapping[CellKey, str], against: tuple[str, Material] | None
) -> list[EnvironmentView]:
    others = [] if against is None else from_other_run(material, against[1], against[0], labels)
    return [*others, *between_cells(material, labels)]


def _steps(material: Material, labels: Mapping[CellKey, str]) -> list[charts.Chart]:
    """A chart for each workload: the steps of different ones have nothing in common."""
    groups: dict[str, dict[CellKey, list[TrialFacts]]] = {}
    for key in labels:
        groups.setdefault(" ".join(filter(None, (key.test, key.workload))), {})[key] = []
    by_cell = {key: trials for cells in groups.values() for key, trials in cells.items()}
    for facts in material.trials:
        by_cell[facts.key].append(facts)
    found = []
    for cells in groups.values():
        chart = charts.step_times([(labels[key], trials) for key, trials in cells.items()])
        if chart is not None:
            found.append(chart)
    return found


def _timeline(material: Material, labels: Mapping[CellKey, str]) -> charts.Chart | None:
    orders: dict[CellKey, list[tuple[int, Outcome]]] = {key: [] for key in labels}
    for order, facts in enumerate(material.trials, 1):
        orders[facts.key].append((order, facts.outcome))
    return charts.timeline([(labels[key], trials) for key, trials in orders.items()])
