"""From reports to trial files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_aorta.plugin.compat import Duration, add_duration
from pytest_aorta.plugin.outputs.gating import JudgedTrials
from pytest_aorta.plugin.outputs.matrix_writer import MatrixWriter, planned_trials
from pytest_aorta.plugin.report_payload import FinishedTrial, notes_in, trials_in
from pytest_aorta.plugin.stopping.decided_cells import cell_of
from pytest_aorta.plugin.summary.alike_failures import AlikeFailures
from pytest_aorta.plugin.summary.terminal import Summary
from pytest_aorta.triage.decisions import Decisions
from pytest_aorta.triage.facts import facts_of
from pytest_aorta.triage.matrix import EarlierMatrix
from pytest_aorta.triage.verdicts import Triage
from pytest_aorta.workspace.atomic import write_json
from pytest_aorta.workspace.paths import TrialPaths

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plan import Plan
    from pytest_aorta.plugin.run import Run
    from pytest_aorta.triage.facts import TrialFacts
    from pytest_aorta.triage.verdicts import Table, TriageSettings
    from pytest_aorta.trials.events import FailureData
    from pytest_aorta.trials.spec import TrialSpec


class TrialWriter:
    """The single writer of trial files, in the process that owns the reports."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.store = run.runner.store
        self.summary = Summary(run)
        #: Those of this process, and those of files that only xdist's workers have made.
        self.plans = list(run.runner.plans)
        self.triage = Triage(_settings(run, self.plans))
        self.decisions = Decisions(self.triage) if run.selection.until_decided else None
        self.judged = JudgedTrials(run.selection.gates, self.triage, run.action or "", run.expects_failures)
        #: Lines for the summary, of items that conclude from several trials.
        self.notes: list[str] = []
        #: How many trials were skipped because their cells were decided.
        self.skipped = 0
        #: Trials of the plans by name, by what is before it in their node ids.
        self._specs: dict[str, dict[str, tuple[TrialSpec, TrialPaths]]] = {}
        for plan in self.plans:
            self._declare(plan)
        self.matrix = MatrixWriter(self.triage, self.store, self._folder(), self.plans)
        #: As it is shown at the end.
        self.table: Table | None = None
        #: Which items have failed alike.
        self.alike = AlikeFailures()
        #: What could not be written, and why.
        self.errors: list[str] = []

    def _folder(self) -> Path:
        """The one that all trial files of this run are below; those of replays leave others as they are."""
        if not self.run.replays:
            return self.store.results
        from pytest_aorta.replay import REPLAY

        return self.store.results / REPLAY

    def _declare(self, plan: Plan) -> None:
        for spec in plan.trials:
            self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations)

    def begin(self, nodeid: str) -> None:
        """The item of a trial has begun."""
        found = self._find(nodeid)
        if found is not None:
            spec = found[0]
            self.triage.declare(cell_of(spec), spec.environment.name, spec.mitigations)
            self.triage.begin(cell_of(spec), spec.trial_index)

    def write_report(self, report: pytest.TestReport) -> None:
        """Write the trials that a report brings."""
        self.notes += notes_in(report.aorta)
        for trial in trials_in(report.aorta):
            facts = self.write(trial)
            if "aorta_trial_id" in dict(report.user_properties):  # a test that starts trials fails for its own reasons
                self.alike.add(report.nodeid, facts, self.run.shown_cell(facts.key.workload, facts.key.cell))
            imported = trial.result["phases_sec"].get("import")
            if isinstance(imported, float) and not trial.resumed:
                add_duration(self.run.config, Duration(imported, "import", report.nodeid))

    def write(self, trial: FinishedTrial) -> TrialFacts:
        """Write one trial; one that cannot be written is kept elsewhere, and the run goes on."""
        paths = TrialPaths(PurePosixPath(trial.path))
        try:
            self.store.write(paths, trial.result, resumed=trial.resumed)
            self.run.on_record(trial.result)
        except OSError as error:
            self.errors.append(f"{paths.file_in(self.store.results)}: {error}{self._write_elsewhere(trial)}")
        if trial in self.run.unreported:
            self.run.unreported.remove(trial)
        self.summary.add(trial)
        facts = facts_of(trial.result, trial.path)
        if paths.repeat:  # not counted: it has the seeds of the trial, or was run because of how that has ended
            return facts
        self.triage.add(facts)
        if self.decisions is not None and self.decisions.update(facts.key):
            decided = self.run.stopping.decided
            decided.publish(self.decisions.stopped)
            self.run.prefetcher.withdraw(lambda spec: decided.reason(cell_of(spec)) is None)
        if self.run.watcher is not None:
            cell = self.run.shown_cell(facts.key.workload, facts.key.cell)
            self.run.watcher.trial_finished(facts, paths.file_in(self.store.results), cell)
        self.matrix.trial_is_over()
        return facts

    def count_skip(self, report: pytest.TestReport) -> None:
        """Count a trial that was not needed."""
        if self.decisions is not None and isinstance(report.longrepr, tuple):
            self.skipped += report.longrepr[2].removeprefix("Skipped: ") in self.decisions.stopped.values()

    def select(self, nodeids: Iterable[str]) -> None:
        """Only the cells of these items have trials in this run, and are compared."""
        found = [self._find(nodeid) for nodeid in nodeids]
        self.triage.keep({cell_of(trial[0]) for trial in found if trial is not None})

    def _write_elsewhere(self, trial: FinishedTrial) -> str:
        """Write a record to the temporary directory; returns a text with its path, empty if that fails as well."""
        path = Path(tempfile.gettempdir()) / f"pytest-aorta-{self.store.stamp}" / trial.path
        try:
            write_json(path, trial.result)
        except OSError:
            return ""
        return f"; kept in {path}"

    def write_lost(self, nodeid: str, why: str, repeat: int = 0) -> tuple[TrialSpec, TrialPaths] | None:
        """Record an item whose process died before it could report; its trial, ``None`` where it is none.

        ``repeat``: which one of its trial it was.
        """
        found = self._find(nodeid)
        if found is None:
            return None
        from pytest_aorta.launch.record import logs_in, lost_record

        spec, paths = found[0], found[1].repeated(repeat)
        self.store.make_room(paths)
        logs = logs_in(paths.folder_in(self.store.results))
        lost: FailureData = {"phase": "launch", "kind": "signal", "message": why}
        self.write(FinishedTrial.of(paths, lost_record(spec, lost, logs)))
        return spec, paths

    def _find(self, nodeid: str) -> tuple[TrialSpec, TrialPaths] | None:
        """The trial of a node id."""
        from pytest_aorta.plugin.items.collection import plans_of

        base, _, name = nodeid.rpartition("::")
        if self.run.recipe_trials is not None:
            spec = self.run.recipe_trials().get(name)
            return None if spec is None else (spec, self.run.plan.paths(spec))
        for replay in self.run.replays:
            if replay.nodeid == nodeid:
                return replay.spec, replay.paths
        if base not in self._specs:
            plans = plans_of(self.run, base)
            known = {plan.digest for plan in self.plans}
            self.plans += [plan for plan in plans if plan.digest not in known]
            self._specs[base] = {spec.item_name: (spec, plan.paths(spec)) for plan in plans for spec in plan.trials}
        return self._specs[base].get(name)

    def finish(self, unfinished: Iterable[tuple[str, int]], stopped: str | None = None) -> None:
        """Write what no report has brought, retire what a complete run no longer holds, and conclude.

        Args:
            unfinished: items that have begun only, each with the number of its repeat.
            stopped: what has ended the run before its time, so that its length may depend on what was seen.
        """
        for trial in list(self.run.unreported):
            self.write(trial)
        for nodeid, repeat in unfinished:
            found = self._find(nodeid)
            if found is not None and found[1].repeated(repeat).file not in self.store.written:
                why = self.run.interrupted or "the run ended before the trial"
                self.write_lost(nodeid, f"interrupted: {why}", repeat)
        plans = self.run.runner.plans
        self.store.retire_unplanned({plan.paths(spec) for plan in plans for spec in plan.trials})
        if self.decisions is not None:
            self.run.on_decided({key.cell: why for key, why in self.decisions.stopped.items()})
        self.table = self.triage.table(running=stopped is not None)
        if any(row.cell.total for row in self.table.rows):
            self.matrix.finish(self.table, stopped)
        self.summary.pruned = self.store.prune(self.run.selection.history)

    @property
    def settings_used(self) -> TriageSettings:
        """Of the last table, which is sequential where the run has ended before its time."""
        rows = () if self.table is None else self.table.rows
        methods = {row.comparison.method for row in rows if row.comparison is not None}
        return replace(self.triage.settings, sequential="sequential" in methods)

    def print_summary(self, terminal: pytest.TerminalReporter) -> None:
        """Print the table, once the run is over."""
        if self.table is not None:
            errors = [*self.errors, *([self.matrix.error] if self.matrix.error else [])]
            self.summary.print(terminal, self.table, errors)


def _settings(run: Run, plans: Sequence[Plan]) -> TriageSettings:
    """As they were given; sequential where trials are added to some that were looked at."""
    settings = run.selection.triage
    added = run.selection.resume and EarlierMatrix(run.results).was_looked_at(planned_trials(plans))
    return replace(settings, sequential=True) if added else settings
