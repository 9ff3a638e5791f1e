"""Hooks of the process that owns the reports: not an xdist worker, and of several ranks the first."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.texts import printable
from pytest_aorta.plugin import is_of_recipe
from pytest_aorta.plugin.compat import has_no_summary, longrepr_of
from pytest_aorta.plugin.folded_summary import FoldedSummary
from pytest_aorta.plugin.roles import is_controller
from pytest_aorta.plugin.run import (
    NO_ITEM,
    WATCHER,
    current_run,
    current_runs,
    end_in_order_when_terminated,
    reason_of,
    run_of,
)
from pytest_aorta.plugin.trial_item import properties_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_aorta.plugin.run import Run
    from pytest_aorta.plugin.writer import Gating, TrialWriter
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

_LOST = "the xdist worker that ran this trial died"


class ReportHooks:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        #: Items that have begun, and whose last report has not come.
        self._open: dict[str, None] = {}
        #: What writes the trials of each run: the first one of those that the options ask for, then of actions.
        self._writers: dict[Run, TrialWriter] = {}
        self._folded: FoldedSummary | None = None
        #: Path of the report that was written, as it was given.
        self._report = ""
        #: Node ids of the items that are run.
        self._selected: list[str] | None = None
        #: What has decided the exit status, where there are gates.
        self._gating: Gating | None = None

    @property
    def writer(self) -> TrialWriter:
        """Of the trials that the options ask for, and of tests; made when there is something to write."""
        from pytest_aorta.plugin.writer import TrialWriter

        run = run_of(self.config)
        if run not in self._writers:
            self._writers[run] = TrialWriter(run)
        return self._writers[run]

    def _writer_of(self, nodeid: str) -> TrialWriter:
        writer = self.writer
        if not is_of_recipe(nodeid):
            return writer
        from pytest_aorta.plugin.recipes.runs import action_run_of_item
        from pytest_aorta.plugin.writer import TrialWriter

        run = action_run_of_item(self.config, nodeid)
        if run is None:
            return writer
        if run not in self._writers:
            run.runner.store.sort_into_cells(run.plan.flat_cells)
            self._writers[run] = TrialWriter(run)
            self._writers[run].alike = writer.alike  # failures of all actions are folded together
            action = nodeid.partition("[")[0] + "["
            self._writers[run].select(name for name in self._selected or () if name.startswith(action))
        return self._writers[run]

    def _trial_of(self, nodeid: str) -> tuple[Run, TrialSpec, TrialPaths] | None:
        writer = self._writer_of(nodeid)
        found = writer.find(nodeid)
        return None if found is None else (writer.run, *found)

    def pytest_sessionstart(self) -> None:
        """On a terminal, show the trials that run."""
        if sys.stdout.isatty():
            from pytest_aorta.plugin.live_view import LiveView, wanted_file

            file = wanted_file(self.config, os.environ)
            if file is not None:
                view = self.config.stash[WATCHER] = LiveView(self.config, file, self._trial_of)
                self.config.pluginmanager.register(view, "aorta_live_view")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """What is deselected is not compared; a controller of xdist has no items, and waits for a worker's."""
        if is_controller(self.config) or self.config.option.collectonly:
            return
        if current_run(self.config) is not None:
            self._select([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """The same from the first of xdist's workers: all have the same items."""
        # The controller itself has selected none.
        if current_run(self.config) is not None and not self._selected:
            self._select(ids)

    def _select(self, nodeids: list[str]) -> None:
        self._selected = nodeids
        self.writer.select(nodeids)
        if "AORTA_JOB" in os.environ:  # whose other tasks may have decided on the first trial already
            for nodeid in {nodeid.partition("[")[0]: nodeid for nodeid in nodeids}.values():
                self._writer_of(nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember the item: its end may never be reported."""
        self._open[nodeid] = None
        if current_run(self.config) is not None and nodeid.endswith("]"):  # as the names of all trials do
            self._writer_of(nodeid).begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a prefetched trial that its item has not taken."""
        for run in current_runs(self.config):
            run.prefetcher.drop(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._open.pop(report.nodeid, None)
        if report.skipped and self._writers:
            self._writer_of(report.nodeid).count_skip(report)
        if getattr(report, "aorta", None):
            end_in_order_when_terminated(self.config)  # in an xdist controller, reports are the first sign of trials
            writer = self._writer_of(report.nodeid)
            writer.write_report(report)
            writer.judged.see(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Record the item that an xdist worker has died of, and report an error: the workload is not what failed."""
        self._open.pop(crashitem, None)
        writer = self._writer_of(crashitem)
        found = writer.write_lost(crashitem, _LOST)
        if found is not None:
            _describe_lost(report, *found, writer.store.results)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember why the trial that runs is about to end: between two phases of its item, there is no other sign."""
        for run in current_runs(self.config):
            run.interrupt(reason_of(excinfo.value))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what no report has brought. A run with a result that could not be written is no success."""
        run = current_run(self.config)
        if run is None:
            return
        why = str(run.interrupted or session.shouldfail or session.shouldstop or NO_ITEM)
        for writer in {run: self.writer, **self._writers}.values():
            writer.run.unreported += writer.run.prefetcher.close(why)
            writer.finish(self._open, _ended_early(session, run.interrupted))
            if writer.run is run and run.selection.report is not None:
                self._write_report(run, run.selection.report)
        if any(writer.judged.gates for writer in self._writers.values()):
            from pytest_aorta.plugin.writer import Gating

            self._gating = Gating()
            self._gating.conclude(session, [writer.judged for writer in self._writers.values()])
        if any(writer.errors for writer in self._writers.values()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_report(self, run: Run, given: Path) -> None:
        if any(cell.finished for cell in self.writer.triage.cells):
            from pytest_aorta.plugin.writer import write_run_report

            problem = write_run_report(run, self.config.invocation_params.dir / given, self.writer.settings_used)
            if problem:
                self.writer.errors.append(problem)
            else:
                self._report = str(given)

    # Only what pytest itself prints is shorter: its own hook prints before and after those of all others.

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_terminal_summary_outside(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Show one or two of many trials that have failed alike."""
        # The reporters of others that are no kind of pytest's own have no such lists, or do not read them.
        if isinstance(terminalreporter, pytest.TerminalReporter) and self._writers and self.config.get_verbosity() <= 0:
            self._folded = FoldedSummary(terminalreporter, self.writer.alike)
            self._folded.narrow()
        try:
            return (yield)
        finally:
            if self._folded is not None:
                self._folded.restore()
                self._folded.print()

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, trylast=True)
    def pytest_terminal_summary_inside(self) -> Generator[None, object, object]:
        if self._folded is not None:
            self._folded.restore()
        try:
            return (yield)
        finally:
            if self._folded is not None:
                self._folded.narrow()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self.config.get_verbosity()
        if not self._writers or has_no_summary(terminalreporter) or verbosity <= -2:
            return
        writers = self._writers.values()
        for writer in writers:
            writer.print_summary(terminalreporter)
        for writer in writers if verbosity >= 0 else ():
            for line in writer.stopping_lines():
                terminalreporter.write_line(line)
        if self.writer.notes:
            terminalreporter.write_sep("=", "minimize")
            for line in self.writer.notes:
                terminalreporter.write_line(printable(line))
        if self._gating is not None:
            self._gating.print(terminalreporter)
        if self._report:
            terminalreporter.write_line(f"report: {self._report}")


def _ended_early(session: pytest.Session, interrupted: str | None) -> str | None:
    stopped = interrupted or session.shouldfail or session.shouldstop
    if not stopped and session.exitstatus == pytest.ExitCode.INTERRUPTED:
        stopped = "interrupted"
    return str(stopped) if stopped else None


def _describe_lost(report: pytest.TestReport, spec: TrialSpec, paths: TrialPaths, results: Path) -> None:
    """Turn xdist's report of a crash into that of a trial, which ends with an error.

    As that of a teardown, for it is the last one of its item: with xdist's own ``when``, which is ``???``, reporters
    that wait for the last one, such as pytest-html and JUnit's, would not show it at all.
    """
    file = paths.file_in(results)
    text = f"infrastructure_failed: {_LOST} ({report.longrepr})\n\ntrial file: {file}"
    path = report.location[0]
    report.when = "teardown"
    report.location = (path, None, report.nodeid.partition("::")[2])
    report.longrepr = longrepr_of(text, path, None, f"{_LOST} (infrastructure_failed)")
    report.user_properties = [
        *properties_of(spec),
        ("aorta_exit_status", "infrastructure_failed"),
        ("aorta_cell", spec.cell),
        ("aorta_trial_file", str(file)),
    ]
    report.keywords = {spec.item_name: 1, "aorta": 1}
