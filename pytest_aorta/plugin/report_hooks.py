"""Hooks of the process that owns the reports: the xdist controller, or rank 0 of several."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.common.texts import printable
from pytest_aorta.plugin import is_controller, is_of_recipe
from pytest_aorta.plugin.compat import has_no_summary, longrepr_of
from pytest_aorta.plugin.failures import FoldedSummary
from pytest_aorta.plugin.run import (
    NO_ITEM,
    WATCHER,
    ask_others,
    current_run,
    current_runs,
    end_in_order_when_terminated,
    reason_of,
    run_of,
)
from pytest_aorta.plugin.trial_item import properties_of
from pytest_aorta.settings import RequestError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from pytest_aorta.plugin.run import SessionRun
    from pytest_aorta.plugin.writer import TrialWriter
    from pytest_aorta.trials.spec import TrialSpec
    from pytest_aorta.workspace.paths import TrialPaths

_LOST = "the xdist worker that ran this trial died"


class ReportHooks:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        #: Items that have begun, without their last report yet.
        self._open: dict[str, None] = {}
        #: The writer of each run: of the options' trials, and of each action.
        self._writers: dict[SessionRun, TrialWriter] = {}
        self._folded: FoldedSummary | None = None
        #: Path of the written report, as given.
        self._report = ""
        #: Node ids of the selected items.
        self._selected: list[str] = []
        #: Lines on the gates, with colours.
        self._gates: list[tuple[str, str]] = []

    def _writer_of(self, nodeid: str = "") -> TrialWriter:
        """The writer of an item's action; for any other item, the writer of the session's own run."""
        run: SessionRun | None = None
        if is_of_recipe(nodeid):
            from pytest_aorta.plugin.recipes import action_run_of_item

            run = action_run_of_item(self.config, nodeid)
        if run is None:
            run = run_of(self.config)
        if run not in self._writers:
            from pytest_aorta.plugin.writer import TrialWriter

            writer = self._writers[run] = TrialWriter(run)
            if run.action is not None:
                run.runner.store.sort_into_cells(run.plan.flat_cells)
                writer.alike = self._writer_of().alike  # failures of all actions are folded together
                action = nodeid.partition("[")[0] + "["
                writer.select(name for name in self._selected if name.startswith(action))
        return self._writers[run]

    def _trial_of(self, nodeid: str) -> tuple[SessionRun, TrialSpec, TrialPaths] | None:
        writer = self._writer_of(nodeid)
        trial = writer.find(nodeid)
        return None if trial is None else (writer.run, *trial)

    def pytest_sessionstart(self) -> None:
        if sys.stdout.isatty():
            from pytest_aorta.plugin.live_view import LiveView, wanted_file

            file = wanted_file(self.config, os.environ)
            if file is not None:
                view = self.config.stash[WATCHER] = LiveView(self.config, file, self._trial_of)
                self.config.pluginmanager.register(view, "aorta_live_view")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Compare selected items only. An xdist controller has no items, and waits for those of a worker."""
        if not is_controller(self.config) and not self.config.option.collectonly:
            self._select([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Take the items of the first xdist worker: all have the same ones."""
        if not self._selected:
            self._select(ids)

    def _select(self, nodeids: list[str]) -> None:
        self._selected = nodeids
        if current_run(self.config) is None:
            return
        if not is_controller(self.config):
            for run in current_runs(self.config):
                trials = [spec for plan in run.runner.plans for spec in plan.trials]
                ask_others(self.config, "plan", warnings.warn, trials=trials)
        self._writer_of().select(nodeids)
        if "AORTA_JOB" in os.environ:  # whose other tasks may have decided on the first trial already
            for nodeid in {nodeid.partition("[")[0]: nodeid for nodeid in nodeids}.values():
                self._writer_of(nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember the item: its end may never be reported."""
        self._open[nodeid] = None
        if nodeid.endswith("]") and current_run(self.config) is not None:  # as the names of all trials do
            self._writer_of(nodeid).begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a prefetched trial that its item has not taken."""
        for run in current_runs(self.config):
            if run.prefetcher is not None:
                run.prefetcher.drop(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._open.pop(report.nodeid, None)
        if report.skipped and self._writers:
            self._writer_of(report.nodeid).count_skip(report)
        if getattr(report, "aorta", None):
            end_in_order_when_terminated(self.config)  # in an xdist controller, reports are the first sign of trials
            self._writer_of(report.nodeid).write_report(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Record the item that killed an xdist worker, and report an error: the workload is not what failed.

        The report is an error of the teardown. With xdist's own ``when``, which is ``???``, reporters that wait for the
        last report of an item, such as pytest-html and JUnit's, would not show it.
        """
        self._open.pop(crashitem, None)
        writer = self._writer_of(crashitem)
        trial = writer.write_lost(crashitem, _LOST)
        if trial is None:
            return
        spec, file = trial[0], trial[1].file_in(writer.store.results)
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

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember why the running trial is about to end: between two phases of its item, nothing else tells."""
        for run in current_runs(self.config):
            run.interrupt(reason_of(excinfo.value))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write unreported trials. A result that could not be written makes the run fail."""
        run = current_run(self.config)
        if run is None:
            return
        stopped = run.interrupted or session.shouldfail or session.shouldstop
        if not stopped and session.exitstatus == pytest.ExitCode.INTERRUPTED:
            stopped = "interrupted"
        first = self._writer_of()
        writers = {run: first, **self._writers}.values()
        for writer in writers:
            writer.run.end_prefetched(str(run.interrupted or session.shouldfail or session.shouldstop or NO_ITEM))
            writer.finish(self._open, str(stopped) if stopped else None)
            if writer is first and run.selection.report is not None:
                self._write_report(first, run.selection.report)
        if any(writer.gates for writer in writers):
            from pytest_aorta.plugin.writer import judge_gates

            self._gates = judge_gates(session, writers)
        if any(writer.errors for writer in writers) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_report(self, writer: TrialWriter, given: Path) -> None:
        """Write the report on all trials in the results directory. An error here costs no result."""
        if not any(cell.finished for cell in writer.triage.cells):
            return
        output, results = self.config.invocation_params.dir / given, writer.store.results
        try:
            from pytest_aorta.triage.report import write_report

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of libraries, which -W error would make errors
                # The last table is sequential where the run has ended before its time.
                rows = () if writer.table is None else writer.table.rows
                sequential = any(row.comparison and row.comparison.method == "sequential" for row in rows)
                settings = replace(writer.triage.settings, sequential=sequential)
                sections = ask_others(self.config, "report_section", writer.errors.append, results=results)
                write_report(results, output, settings=settings, sections=sections)
        except RequestError as error:
            writer.errors.append(f"report {output}: {error}")
        except Exception as error:
            again = shlex.join(["pytest-aorta", "report", str(results), "-o", str(output)])
            writer.errors.append(f"report {output}: {type(error).__name__}: {error}; try again with: {again}")
        else:
            self._report = str(given)

    # Only what pytest itself prints is shorter: its own hook prints before and after those of all others.

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_terminal_summary_outside(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Show one or two of many trials that failed alike."""
        # The reporters of others that are no kind of pytest's own have no such lists, or do not read them.
        if isinstance(terminalreporter, pytest.TerminalReporter) and self._writers and self.config.get_verbosity() <= 0:
            self._folded = FoldedSummary(terminalreporter, self._writer_of().alike)
            self._folded.show(everything=False)
        try:
            return (yield)
        finally:
            if self._folded is not None:
                self._folded.show(everything=True)
                self._folded.print()

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, trylast=True)
    def pytest_terminal_summary_inside(self) -> Generator[None, object, object]:
        if self._folded is not None:
            self._folded.show(everything=True)
        try:
            return (yield)
        finally:
            if self._folded is not None:
                self._folded.show(everything=False)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self.config.get_verbosity()
        if not self._writers or has_no_summary(terminalreporter) or verbosity <= -2:
            return
        writers = self._writers.values()
        for writer in writers:
            if writer.table is not None:
                errors = [*writer.errors, *filter(None, [writer.matrix.error])]
                writer.summary.print(terminalreporter, writer.table, errors)
        for writer in writers if verbosity >= 0 else ():
            for line in writer.stopping_lines():
                terminalreporter.write_line(line)
        for writer in writers:
            for line in writer.next_steps():
                terminalreporter.write_line(printable(line))
        if notes := self._writer_of().notes:
            terminalreporter.write_sep("=", "search")
            for line in notes:
                terminalreporter.write_line(printable(line))
        if self._gates:
            terminalreporter.write_sep("=", "gates")
            for line, colour in self._gates:
                terminalreporter.write_line(printable(line), **{colour: True} if colour else {})
        if self._report:
            terminalreporter.write_line(f"report: {self._report}")
