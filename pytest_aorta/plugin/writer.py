"""From reports to trial files, to the terminal, and to what a failed trial says."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_aorta.workspace import history
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.leftovers import Leftovers
from pytest_aorta.workspace.paths import TrialPlace
from pytest_aorta.workspace.resume import read_kept, retitle

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plugin.run import Run
    from pytest_aorta.trials.execution import Resources
    from pytest_aorta.trials.spec import TrialSpec


@dataclass
class CellSummary:
    """What the summary table says of one cell."""

    statuses: Counter[str] = field(default_factory=Counter)
    step_times_ms: list[float] = field(default_factory=list)
    #: How many are ok only because their ranks were started again.
    restarted: int = 0


class TrialWriter:
    """The single writer of trial files, in the process that owns the reports."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.summary: dict[tuple[str, str], CellSummary] = {}
        self.written: set[str] = set()
        self.errors: list[str] = []
        #: How many trials had a result already.
        self.resumed = 0
        self._leftovers = Leftovers(run.results)

    def reported(self, report: pytest.TestReport) -> None:
        """Write the records that a report brings."""
        for record in json.loads(report.aorta["records"]):
            self.write(record)

    def write(self, record: dict[str, Any]) -> None:
        """Write one record; where that fails, elsewhere, as is told at the end of the run. The run goes on."""
        path, result = record["path"], record["result"]
        resumed = record.get("resumed", False)
        try:
            if resumed:
                retitle(self.run.results / path, result["trial_id"])
            elif self._clear(TrialPlace(PurePosixPath(path))):
                write_json(self.run.results / path, result)
            self._leftovers.remove(PurePosixPath(path))
        except OSError as error:
            self.errors.append(f"{self.run.results / path}: {error}{self._write_elsewhere(path, result)}")
        if record in self.run.unreported:
            self.run.unreported.remove(record)
        self.written.add(path)
        self.resumed += resumed
        cell = self.summary.setdefault((result["workload"], result["cell"]), CellSummary())
        cell.statuses[result["exit_status"]] += 1
        cell.restarted += result["exit_status"] == "ok" and (result.get("elastic") or {}).get("restarts", 0) > 0
        cell.step_times_ms += [t for t in result["result"]["step_times_ms"] if isinstance(t, float)]

    def _write_elsewhere(self, path: str, result: dict[str, Any]) -> str:
        """Keep a record for which there is no place among the results; where, in words."""
        place = Path(tempfile.gettempdir()) / f"pytest-aorta-{self.run.stamp}" / path
        try:
            write_json(place, result)
        except OSError:
            return ""
        return f"; kept in {place}"

    def _clear(self, place: TrialPlace) -> bool:
        """An earlier result is still there when its successor could not even be started; whether that takes its place.

        With ``--aorta-resume`` it does not: what went wrong says nothing about a result that can be replayed.
        """
        file = place.file_in(self.run.results)
        if not file.exists():
            return True
        if self.run.selection.resume and str(place.file) not in self.written and read_kept(file) is not None:
            return False
        history.retire(self.run.results, place, self.run.stamp)
        return True

    def lost(self, nodeid: str, why: str) -> None:
        """Record an item whose process died before it could report."""
        found = self._find(nodeid)
        if found is None:
            return  # no trial
        from pytest_aorta.launch.record import build_record
        from pytest_aorta.probe.snapshot import utc_now
        from pytest_aorta.trials.outcome import Observed

        spec, place = found
        self._clear(place)
        seen = Observed(lost={"phase": "launch", "kind": "signal", "message": why})
        folder = place.folder_in(self.run.results)
        logs = {path.stem: f"{folder.name}/{path.name}" for path in sorted(folder.glob("*.log"))}
        record = build_record(spec, seen, started_at=utc_now(), artifacts=logs)
        self.write({"path": str(place.file), "result": record.to_dict()})

    def _find(self, nodeid: str) -> tuple[TrialSpec, TrialPlace] | None:
        """The trial of a node id; items of files are known to xdist's workers only, so their plan is made again."""
        from pytest_aorta.plugin.collection import ROOT, plan_of_file
        from pytest_aorta.plugin.discovery import workload_classes

        base, _, name = nodeid.rpartition("::")
        path = self.run.config.rootpath / base
        if base == ROOT:
            plans = [self.run.plan]
        elif workload_classes(path):
            plans = [plan_of_file(path, self.run.selection, self.run.registry)]
        else:
            plans = []
        for plan in plans:
            for spec in plan.trials:
                if spec.item_name == name:
                    return spec, plan.place(spec)
        return None

    def finish(self, unfinished: Iterable[str]) -> None:
        """Write what no report has brought, and clear away what a complete run no longer holds."""
        for record in list(self.run.unreported):
            self.write(record)
        for nodeid in unfinished:
            found = self._find(nodeid)
            if found is not None and str(found[1].file) not in self.written:
                why = self.run.interrupted or "the run ended before the trial"
                self.lost(nodeid, f"interrupted: {why}")
        places = {plan.place(spec) for plan in self.run.plans for spec in plan.trials}
        if places and not self.run.selection.resume and {str(place.file) for place in places} == self.written:
            workloads = {place.file.parts[0] for place in places}
            history.retire_others(self.run.results, workloads, places, self.run.stamp)

    def print_summary(self, terminal: pytest.TerminalReporter) -> None:
        """One line per cell, and where the results are."""
        if not self.summary:
            return
        rows = [("workload", "cell", "trials", "ok", "failed", "timeout", "infra", "median step ms")]
        for (workload, cell), found in self.summary.items():
            counts = found.statuses
            median = f"{statistics.median(found.step_times_ms):.2f}" if found.step_times_ms else "-"
            rows.append(
                (
                    *(workload, cell, str(counts.total()), str(counts["ok"]), str(counts["workload_failed"])),
                    *(str(counts["timeout"]), str(counts["infrastructure_failed"]), median),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        terminal.write_sep("=", "trials")
        for row in rows:
            names = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
            numbers = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
            terminal.write_line("  ".join(names + numbers).rstrip())
        restarted = sum(found.restarted for found in self.summary.values())
        if restarted:
            where = self._restarted()
            terminal.write_line(f"{counted(restarted, 'trial')} ok only after a restart of the ranks: {where}")
        if self.run.selection.resume:
            total = sum(found.statuses.total() for found in self.summary.values())
            terminal.write_line(f"{self.resumed} of {counted(total, 'trial')} had a result already (--aorta-resume)")
        if self.run.ahead.held_by:
            code = ", ".join(self.run.ahead.held_by)
            terminal.write_line(f"one after the other, because of what runs before each trial: {code}")
        for error in self.errors:
            terminal.write_line(f"not written: {error}", red=True)
        terminal.write_line(f"results: {shown(self.run.results, self.run)}")

    def _restarted(self) -> str:
        """Of which cells."""
        found = {cell: summary.restarted for cell, summary in self.summary.items() if summary.restarted}
        return ", ".join(f"{count} of {workload} {cell}" for (workload, cell), count in found.items())


def shown(path: Path, run: Run) -> str:
    """A path relative to where pytest was started, where that is shorter."""
    try:
        return str(path.relative_to(run.config.invocation_params.dir))
    except ValueError:
        return str(path)


def header(run: Run) -> str:
    """The one line of the header."""
    cells = sum(len(labels) for labels in run.plan.cells.values())
    size = f"{counted(len(run.plan.trials), 'trial')} in {counted(cells, 'cell')}"
    return (
        f"aorta: plan {run.plan.digest}, {size}{places(run.selection.resources)}, results in {shown(run.results, run)}"
    )


def places(resources: Resources) -> str:
    """Where trials run, where that is not one after the other on this host; in words for the header."""
    found = [f"{resources.slots} slots"] if resources.slots > 1 else []
    if resources.hosts:
        from pytest_aorta.runtime.hosts.specs import without_values

        found = [f"{counted(resources.slots, 'slot')} on each of {', '.join(map(without_values, resources.hosts))}"]
    if resources.devices:
        from pytest_aorta.runtime.resources.devices import are_named_only, devices_text, find_devices

        names = not resources.hosts and are_named_only(find_devices())
        found.append(f"devices {devices_text(resources.devices)}" + (" (names only: there is no GPU)" if names else ""))
    return "".join(f", {text}" for text in found)


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def status_word(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Category, letter and word where they differ from pytest's own."""
    payload = getattr(report, "aorta", None)
    # A test that starts trials itself fails for its own reasons.
    if not payload or not report.failed or "aorta_trial_id" not in dict(report.user_properties):
        return None
    if payload["exit_status"] == "timeout" and report.when != "teardown":
        return ("failed" if report.when == "call" else "error", "T", "TIMEOUT")
    if payload["exit_status"] == "infrastructure_failed" and report.when == "call":
        return "error", "E", "ERROR"
    return None
