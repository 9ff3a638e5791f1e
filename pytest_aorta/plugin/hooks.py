"""Every pytest hook of pytest-aorta, and only hooks. Imports nothing heavy: pytest loads this at every start."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plugin.fixtures import (  # noqa: F401  (found by name)
    aorta_env,
    aorta_extra_env,
    aorta_run,
    aorta_torchrun,
    aorta_trial,
)
from pytest_aorta.plugin.options import add_options, is_mentioned

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_aorta.plugin.writer import TrialWriter

_CHOSEN = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the hooks that see reports; read the selection when there is one."""
    config.addinivalue_line(
        "markers",
        "aorta(trials=, mitigations=, environments=, timeout=): run the test, which takes the fixture aorta_trial, "
        "once per trial of every cell. Every trial item carries this marker.",
    )
    if _is_further_rank(config) or _is_further_node(config):
        config.pluginmanager.register(_FurtherRank(), "aorta_further_rank")
    elif not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reports(config), "aorta_reports")
    if is_mentioned(config) and not config.option.help:
        from pytest_aorta.plugin.run import run_of

        run = run_of(config)
        if run.selection.workloads:
            _select(config, run)


def _select(config: pytest.Config, run: Any) -> None:
    """Resolve the plan; trials named on the command line are not paths; without paths, only trials are collected."""
    from pytest_aorta.plan import PlanError
    from pytest_aorta.plugin.collection import split_arguments, unknown_trials
    from pytest_aorta.registry import RegistryError

    try:
        plan = run.plan
    except (RegistryError, PlanError) as error:
        raise pytest.UsageError(str(error)) from None
    if hasattr(config, "workerinput"):
        decided = config.workerinput["aorta"]
        paths, chosen = decided["paths"], set(decided["chosen"])
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        paths, chosen = split_arguments(config.args, plan)
    else:
        paths, chosen = [], set()
    if unknown := unknown_trials(chosen, plan):
        examples = ", ".join(spec.item_name for spec in plan.trials[:3])
        raise pytest.UsageError(f"no such trial: {', '.join(unknown)}; the plan has {examples}, ...")
    config.args = paths
    config.stash[_CHOSEN] = chosen


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker what was decided here."""
    from pytest_aorta.plugin.run import run_of

    node.workerinput["aorta"] = {
        "stamp": run_of(node.config).stamp,
        "paths": [str(argument) for argument in node.config.args],
        "chosen": sorted(node.config.stash.get(_CHOSEN, set())),
    }


def pytest_report_header(config: pytest.Config) -> str | None:
    """One line, when there is a plan."""
    if _CHOSEN not in config.stash or config.get_verbosity() < 0:
        return None
    from pytest_aorta.plugin.run import run_of
    from pytest_aorta.plugin.writer import header

    return header(run_of(config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``aorta_trial`` run once per trial of every cell."""
    if "aorta_trial" in metafunc.fixturenames:
        from pytest_aorta.plugin.marked_tests import parametrize

        parametrize(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the selected trials to what the session collects."""
    report = yield
    if isinstance(collector, pytest.Session) and _CHOSEN in collector.config.stash and report.passed:
        from pytest_aorta.plugin.collection import selected_trials
        from pytest_aorta.plugin.run import run_of

        config = collector.config
        plan = run_of(config).plan
        report.result.append(selected_trials(collector, report.result, plan, config.stash[_CHOSEN]))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Any, parent: pytest.Collector) -> pytest.Collector | None:
    """A file that was given as a path and holds Workload classes but no tests is not imported here."""
    from pytest_aorta.plugin.collection import WorkloadFile
    from pytest_aorta.plugin.discovery import has_tests, workload_classes

    if parent.session.isinitpath(module_path) and workload_classes(module_path) and not has_tests(module_path):
        return WorkloadFile.from_parent(parent, path=module_path)
    return None


def pytest_collect_file(file_path: Any, parent: pytest.Collector) -> pytest.Collector | None:
    """The Workload classes of a test file that was given as a path; its tests are pytest's own business."""
    from pytest_aorta.plugin.collection import WorkloadFile
    from pytest_aorta.plugin.discovery import has_tests, workload_classes

    given = file_path.suffix == ".py" and parent.session.isinitpath(file_path)
    if given and has_tests(file_path) and workload_classes(file_path):
        return WorkloadFile.from_parent(parent, path=file_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first item: refuse what would prevent every trial."""
    from pytest_aorta.plugin.preflight import check_trials

    option = session.config.option
    # pytest's own loop, which comes after this, will not start when something could not be collected.
    broken = session.testsfailed and not option.continue_on_collection_errors
    if not option.collectonly and not broken and not hasattr(session.config, "workerinput"):
        check_trials(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the trial's record to the report, as plain data; let a failed trial speak for itself."""
    report = yield
    if "pytest_aorta.plugin.run" in sys.modules:
        from pytest_aorta.plugin.run import REPORT, TrialFailed

        if call.excinfo is not None and isinstance(call.excinfo.value, TrialFailed):
            from pytest_aorta.plugin.failure_text import as_longrepr

            report.longrepr = as_longrepr(str(call.excinfo.value), item.path)
        told = item.stash.get(REPORT, None)
        if told is not None:
            report.aorta = told.to_plain(with_records=report.when == "teardown")  # type: ignore[attr-defined]
    return report


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """TIMEOUT, and ERROR for what says nothing about the workload."""
    if getattr(report, "aorta", None) is None:
        return None
    from pytest_aorta.plugin.writer import status_word

    return status_word(report)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """pytest-timeout's limit becomes the trial's deadline; its own timer would end pytest instead."""
    from pytest_aorta.plugin.collection import TrialItem
    from pytest_aorta.plugin.run import DEADLINE

    if isinstance(item, TrialItem) and item.spec.execution.isolation != "none":
        item.stash[DEADLINE] = settings.timeout
        return True
    return None


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all processes."""
    if "pytest_aorta.plugin.run" in sys.modules:
        from pytest_aorta.plugin.run import RUN

        if RUN in config.stash:
            config.stash[RUN].close()


class _Reports:
    """Hooks of the process that owns the reports: not an xdist worker, and of several ranks the first."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.open: dict[str, None] = {}

    @cached_property
    def writer(self) -> TrialWriter:
        """Made when there is something to write."""
        from pytest_aorta.plugin.run import run_of
        from pytest_aorta.plugin.writer import TrialWriter

        return TrialWriter(run_of(self.config))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """An item has begun; its end may never be reported."""
        self.open[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A trial that its item did not ask for is not wanted."""
        if "pytest_aorta.plugin.run" in sys.modules:
            from pytest_aorta.plugin.run import RUN

            if RUN in self.config.stash:
                self.config.stash[RUN].ahead.drop(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the records that a report brings."""
        if report.when == "teardown":
            self.open.pop(report.nodeid, None)
        if getattr(report, "aorta", None):
            from pytest_aorta.plugin.sigterm import end_in_order_when_terminated

            end_in_order_when_terminated(self.config)  # under xdist, nothing else tells that there are trials
            self.writer.reported(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """An xdist worker died while it ran this item."""
        self.open.pop(crashitem, None)
        self.writer.lost(crashitem, "the xdist worker that ran this trial died")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember why the trial that runs is about to end: between two phases of its item, nothing else says so."""
        if "pytest_aorta.plugin.run" in sys.modules:
            from pytest_aorta.plugin.run import RUN
            from pytest_aorta.plugin.sigterm import reason_of

            if RUN in self.config.stash:
                self.config.stash[RUN].interrupt(reason_of(excinfo.value))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what no report has brought. A run with a result that could not be written is no success."""
        if "pytest_aorta.plugin.run" in sys.modules:
            from pytest_aorta.plugin.run import RUN

            if RUN in self.config.stash:
                run = self.config.stash[RUN]
                stopped = session.shouldfail or session.shouldstop or "the run ended before its item"
                run.unreported += run.ahead.end(str(run.interrupted or stopped))
                self.writer.finish(self.open)
                if self.writer.errors and session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table of cells."""
        if "writer" in self.__dict__ and not terminalreporter.no_summary:
            self.writer.print_summary(terminalreporter)


def _is_further_rank(config: pytest.Config) -> bool:
    """Whether pytest was asked for trials as a rank other than 0 (``torchrun -m pytest``)."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return False
    from pytest_aorta.launch.launch_mode import own_rank
    from pytest_aorta.plugin.discovery import workload_classes

    return own_rank() != 0 and (is_mentioned(config) or any(workload_classes(Path(path)) for path in config.args))


def _is_further_node(config: pytest.Config) -> bool:
    """Whether pytest runs on a node other than node 0 of trials that have several."""
    if not is_mentioned(config) or config.option.help:
        return False
    from pytest_aorta.launch.nodes.addressing import node_rank
    from pytest_aorta.plugin.run import run_of

    selection = run_of(config).selection
    return not selection.resources.hosts and node_rank(selection.execution.elastic) != 0


class _FurtherRank:
    """Hooks of ranks, and of nodes, other than 0, which run every trial but print and write nothing."""

    def __init__(self) -> None:
        self._stdout = sys.stdout

    def pytest_configure(self) -> None:
        """Have pytest's terminal reporter, which is made after this, write to nowhere."""
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (lives as long as the process)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """The reporter is made; tests print as ever."""
        sys.stdout = self._stdout

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A failed test is rank 0's to tell; an exit status here would have the launcher end rank 0 before it has."""
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK
