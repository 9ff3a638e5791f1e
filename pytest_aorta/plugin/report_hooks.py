"""Hooks of the process that owns the reports: not an xdist worker, and of several ranks the first."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plugin.compat import has_no_summary
from pytest_aorta.plugin.current_run import current_run, current_runs
from pytest_aorta.plugin.failure_text import printable
from pytest_aorta.plugin.last_failed import remember
from pytest_aorta.plugin.open_items import OpenItems
from pytest_aorta.plugin.summary.cut_reasons import cut_reasons
from pytest_aorta.plugin.summary.folded_summary import FoldedSummary
from pytest_aorta.plugin.trial_watcher import WATCHER
from pytest_aorta.plugin.xdist_roles import place_under_each

_LOST = "the xdist worker that ran this trial died"

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_aorta.plugin.outputs.gating import Gating
    from pytest_aorta.plugin.outputs.writer import TrialWriter
    from pytest_aorta.plugin.run import Run


class ReportHooks:
    """From reports to trial files and the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.open = OpenItems()
        self._folded: FoldedSummary | None = None
        #: Exit statuses by node id, where pytest-html is to show them.
        self._ended: dict[str, str] = {}
        #: Path of the report that was written, as it was given.
        self._report = ""
        #: Those of the actions of recipes.
        self._action_writers: dict[Run, TrialWriter] = {}
        self._selected: list[str] = []
        #: What has decided the exit status, where there are gates.
        self._gating: Gating | None = None

    def _writer_of(self, nodeid: str) -> TrialWriter:
        """What writes the records of an item."""
        from pytest_aorta.plugin.outputs.writer import TrialWriter

        action_run: Run | None = None
        if ".toml::" in nodeid:
            from pytest_aorta.plugin.recipes.runs import action_run_of_item

            action_run = action_run_of_item(self.config, nodeid)
        if action_run is None:
            return self.writer
        if action_run not in self._action_writers:
            action_run.runner.store.settle(action_run.plan.flat_cells)
            writer = self._action_writers[action_run] = TrialWriter(action_run)
            writer.alike = self.writer.alike  # failures of all actions are folded together
            writer.select(name for name in self._selected if name.startswith(nodeid.partition("[")[0] + "["))
        return self._action_writers[action_run]

    @property
    def _writers(self) -> list[TrialWriter]:
        """Those that there are."""
        return [*([self.writer] if "writer" in self.__dict__ else []), *self._action_writers.values()]

    @cached_property
    def writer(self) -> TrialWriter:
        """Made when there is something to write."""
        from pytest_aorta.plugin.outputs.writer import TrialWriter
        from pytest_aorta.plugin.run import run_of

        return TrialWriter(run_of(self.config))

    def pytest_sessionstart(self) -> None:
        """On a terminal, show the trials that run."""
        if sys.stdout.isatty():
            from pytest_aorta.plugin.live.view import LiveView, wanted_file

            file = wanted_file(self.config, os.environ)
            if file is not None:
                view = self.config.stash[WATCHER] = LiveView(self.config, file)
                self.config.pluginmanager.register(view, "aorta_live_view")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """What is deselected is not compared."""
        if current_run(self.config) is not None and not self.config.option.collectonly:
            self._select([item.nodeid for item in getattr(session, "items", ())])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """The same from the first of xdist's workers: all have the same items."""
        self.open.workers = (place_under_each(node) or (0, 1))[1]
        if current_run(self.config) is not None and "selected" not in self.__dict__:
            self.selected = True
            self._select(ids)

    def _select(self, nodeids: list[str]) -> None:
        self._selected = nodeids
        self.writer.select(nodeids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember the item: its end may never be reported."""
        self.open.begin(nodeid)
        run = current_run(self.config)
        if run is not None and nodeid.endswith("]"):  # as the names of all trials do
            self._writer_of(nodeid).begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a prefetched trial that its item has not taken."""
        for run in current_runs(self.config):
            run.prefetcher.drop(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the records that a report brings."""
        if report.when == "teardown":
            self.open.end(report.nodeid, _worker_of(report))
        if report.skipped and "writer" in self.__dict__:
            self._writer_of(report.nodeid).count_skip(report)
        if getattr(report, "aorta", None):
            from pytest_aorta.plugin.sigterm import end_in_order_when_terminated

            end_in_order_when_terminated(self.config)  # in an xdist controller, reports are the first sign of trials
            writer = self._writer_of(report.nodeid)
            writer.write_report(report)
            writer.judged.see(report)
            if report.when == "teardown" and self.config.getoption("htmlpath", None):
                self._ended[report.nodeid] = report.aorta["exit_status"] or ""

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Record the item that an xdist worker has died of, and report an error: the workload is not what failed."""
        worker = _worker_of(report)
        self.open.end(crashitem, worker)
        writer = self._writer_of(crashitem)
        found = writer.write_lost(crashitem, _LOST, worker)
        if found is not None:
            from pytest_aorta.plugin.lost_workers import describe_lost

            describe_lost(report, _LOST, *found, writer.store.results)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember why the trial that runs is about to end: between two phases of its item, there is no other sign."""
        for run in current_runs(self.config):
            from pytest_aorta.plugin.sigterm import reason_of

            run.interrupt(reason_of(excinfo.value))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what no report has brought. A run with a result that could not be written is no success."""
        run = current_run(self.config)
        if run is not None:
            remember(self.config)
            stopped = session.shouldfail or session.shouldstop or "the run ended before its item"
            run.unreported += run.prefetcher.close(str(run.interrupted or stopped))
            unfinished = self.open.unfinished(self._selected)
            self.writer.finish(unfinished, _ended_early(session, run.interrupted))
            if run.selection.report is not None:
                self._write_report(run)
            for writer in self._action_writers.values():
                writer.run.unreported += writer.run.prefetcher.close(str(run.interrupted or stopped))
                writer.finish(unfinished, _ended_early(session, run.interrupted))
            if run.selection.gates or any(writer.judged.gates for writer in self._writers):
                from pytest_aorta.plugin.outputs.gating import Gating

                self._gating = Gating()
                self._gating.conclude(session, [writer.judged for writer in self._writers])
            if any(writer.errors for writer in self._writers) and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    # Only what pytest itself prints is shorter: its own hook prints before and after those of all others.

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_terminal_summary_outside(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Show one or two of many trials that have failed alike."""
        # The reporters of others that are no kind of pytest's own have no such lists, or do not read them.
        is_pytests = isinstance(terminalreporter, pytest.TerminalReporter)
        if is_pytests and "writer" in self.__dict__ and self.config.get_verbosity() <= 0:
            self._folded = FoldedSummary(terminalreporter, self.writer.alike)
            self._folded.begin()
        try:
            return (yield)
        finally:
            if is_pytests and "writer" in self.__dict__:
                for line in cut_reasons(terminalreporter, self.config.get_terminal_writer().fullwidth):
                    terminalreporter.write_line(line)
            if self._folded is not None:
                self._folded.end()

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, trylast=True)
    def pytest_terminal_summary_inside(self) -> Generator[None, object, object]:
        """Show other plugins all reports."""
        if self._folded is not None:
            self._folded.pause()
        try:
            return (yield)
        finally:
            if self._folded is not None:
                self._folded.resume()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of cells."""
        if "writer" in self.__dict__ and not has_no_summary(terminalreporter) and self.config.get_verbosity() > -2:
            for writer in self._writers:
                writer.print_summary(terminalreporter)
            if self.config.get_verbosity() >= 0:
                from pytest_aorta.plugin.summary.stopping_text import stopping_lines

                for writer in self._writers:
                    selection = writer.run.selection
                    of = "" if writer.run.action is None else f"{writer.run.action}: "
                    for line in stopping_lines(selection, writer.triage, writer.decisions, writer.skipped):
                        terminalreporter.write_line(f"{of}{line}")
            if self.writer.notes:
                terminalreporter.write_sep("=", "minimize")
                for line in self.writer.notes:
                    terminalreporter.write_line(printable(line))
            if self._gating is not None:
                self._gating.print(terminalreporter)
            if self._report:
                terminalreporter.write_line(f"report: {self._report}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """In pytest-html's table, columns for cell and status."""
        from pytest_aorta.plugin.report_details import html_header

        html_header(cells)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: pytest.TestReport, cells: list[str]) -> None:
        """pytest-html writes the rows of a test when its last report has come."""
        from pytest_aorta.plugin.report_details import html_row

        html_row(report, self._ended.get(report.nodeid, ""), cells)

    def _write_report(self, run: Run) -> None:
        """``--aorta-report``; not in a run that has ended before its first trial."""
        if any(cell.finished for cell in self.writer.triage.cells):
            from pytest_aorta.plugin.outputs.report_option import write_run_report

            problem = write_run_report(run, self.writer.settings_used)
            if problem:
                self.writer.errors.append(problem)
            else:
                self._report = str(run.selection.report)


def _worker_of(report: pytest.TestReport) -> int:
    """Which of the workers of ``--dist each`` has sent a report; 0 otherwise."""
    node = getattr(report, "node", None)
    return 0 if node is None else (place_under_each(node) or (0, 1))[0]


def _ended_early(session: pytest.Session, interrupted: str | None) -> str | None:
    """What has ended the run before its last trial; ``None`` for nothing."""
    stopped = interrupted or session.shouldfail or session.shouldstop
    if not stopped and session.exitstatus == pytest.ExitCode.INTERRUPTED:
        stopped = "interrupted"
    return str(stopped) if stopped else None
