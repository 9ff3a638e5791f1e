"""The part that pytest loads at every start: options, fixtures, and hooks that notice trials.

The other hooks are in ``trial_hooks`` and ``report_hooks``, which an option, a workload file, or a test that starts
trials brings in. This module imports nothing heavy, and no hook of it is called while tests run. It imports few small
modules, too: pytest's own loader for plugins takes 0.2 ms for each.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_aorta.plugin import (
    MARKER,
    ONE_TEST,
    REPORTS,
    STAMP,
    SUFFIXES,
    TRIALS,
    is_controller,
    is_each,
    is_worker,
    may_have_workloads,
)
from pytest_aorta.plugin.options import add_options, is_mentioned, refuse_mistyped

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_aorta.plugin.ordinary_tests import RunTrial
    from pytest_aorta.plugin.torchrun_fixture import RunTorchrun
    from pytest_aorta.probe.collect import EnvSnapshot

#: Seconds that other nodes wait for the report of node 0.
_PATIENCE = 60.0


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Other plugins may name them at once, so that pytest has to know them at its start."""
    from pytest_aorta.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Refuse an unknown option of ours, and suggest the nearest one. Options of conftest files are known by now."""
    refuse_mistyped(parser, args)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; and the hooks of trials, if the command line or the ini file asks for trials."""
    config.addinivalue_line(
        "markers",
        "aorta(trials=, mitigations=, environments=, timeout=): run the test once per trial of every cell, each time "
        "in a process of its own, or with a fixture aorta_run for this trial. Every trial item carries this marker.",
    )
    if config.pluginmanager.has_plugin(ONE_TEST):
        return
    arguments = " ".join(config.args)
    if any(suffix in arguments for suffix in SUFFIXES):
        register_hooks(config)
    if (".py" in arguments or config.option.pyargs) and _may_be_given(config):
        from pytest_aorta.plugin.workload_files import find_given

        if find_given(config):
            register_hooks(config)
    if is_mentioned(config):
        register_hooks(config)
        if not config.option.help:
            from pytest_aorta.plugin.trial_hooks import select

            select(config)
    elif is_controller(config) and not config.pluginmanager.has_plugin(TRIALS):
        config.pluginmanager.register(ControllerHooks(config), "aorta_controller")


def _may_be_given(config: pytest.Config) -> bool:
    here = config.invocation_params.dir
    if config.option.pyargs or (here != config.rootpath and any(argument.endswith("]") for argument in config.args)):
        return True  # they may have to be found elsewhere
    for file in {argument.partition("::")[0] for argument in config.args}:
        if file.endswith(".py"):
            with contextlib.suppress(OSError, ValueError), open(os.path.join(here, file), "rb", buffering=0) as opened:
                if may_have_workloads(opened.read()):
                    return True
    return False


def register_hooks(config: pytest.Config, *, late: bool = False) -> None:
    """Register the hooks of trials, once; ``late``: after the start of the session, whose first hooks are over."""
    manager = config.pluginmanager
    if manager.has_plugin(TRIALS):
        return
    import pytest_aorta.plugin.trial_hooks as trial_hooks  # "from" takes what a nested run of pytest has left
    from pytest_aorta.plugin.report_hooks import ReportHooks

    manager.register(trial_hooks, TRIALS)
    if not late:
        is_rank, is_node = False, False
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            from pytest_aorta.launch.launch_mode import own_rank
            from pytest_aorta.plugin.workload_files import workload_facts

            asked = is_mentioned(config) or any(workload_facts(Path(path)).workloads for path in config.args)
            is_rank = asked and own_rank() != 0
        if not is_rank and is_mentioned(config) and not config.option.help:
            from pytest_aorta.launch.launch_mode import node_rank
            from pytest_aorta.plugin.run import run_of

            selection = run_of(config).selection
            is_node = not selection.resources.hosts and node_rank(selection.execution.elastic) != 0
        if is_rank or is_node:
            manager.register(FurtherRankHooks(config, is_node=not is_rank), "aorta_further_rank")
            return
    if not is_worker(config):
        hooks = ReportHooks(config)
        manager.register(hooks, REPORTS)
        if late:
            hooks.pytest_sessionstart()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give all xdist workers the name of the run in the history; ``trial_hooks`` adds more, if registered."""
    if not node.config.pluginmanager.has_plugin(TRIALS):
        from pytest_aorta.workspace.trial_store import stamp

        # Such a run may have --dist each; a worker that comes to a trial all the same refuses it.
        node.workerinput["aorta"] = {"stamp": node.config.stash.setdefault(STAMP, stamp()), "each": is_each(node)}
    # A worker knows what they have become only.
    node.workerinput["aorta_arguments"] = [str(argument) for argument in node.config.invocation_params.args]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect recipes: ``aorta.toml`` and ``*.aorta.toml``; Row's and AORTA's if they are given as arguments."""
    name = file_path.name
    if not name.endswith(SUFFIXES):  # most are through here
        return None
    if name != "aorta.toml" and not name.endswith(".aorta.toml"):
        if not parent.session.isinitpath(file_path):
            return None
        from pytest_aorta.workflow.finding import is_sweep

        if name != "workflow.toml" and not is_sweep(file_path):
            return None
    from pytest_aorta.plugin.recipes import RecipeFile

    register_hooks(parent.config, late=True)
    collector: RecipeFile = RecipeFile.from_parent(parent, path=file_path)
    return collector


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A marked test that takes ``aorta_run`` runs once per trial of every cell."""
    # Called for every test function that is collected: most are through here.
    if "aorta_run" not in metafunc.fixturenames and "aorta" not in metafunc.definition.keywords:
        return
    if metafunc.config.pluginmanager.has_plugin(ONE_TEST):
        return
    is_marked = metafunc.definition.get_closest_marker("aorta") is not None
    if is_marked or "aorta_run" in metafunc.fixturenames:
        register_hooks(metafunc.config, late=True)
    if is_marked:
        from pytest_aorta.plugin.ordinary_tests import parametrize

        parametrize(metafunc)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Replace tests that are to have trials with their trials."""
    report = yield
    manager = collector.config.pluginmanager
    has_trials = manager.has_plugin(TRIALS)
    if not has_trials and type(collector).__name__ == "UnitTestCase":  # whose methods are no test functions of pytest
        has_trials = not manager.has_plugin(ONE_TEST) and any("aorta" in node.keywords for node in report.result)
    if not has_trials or not report.passed:
        return report
    from pytest_aorta.plugin.ordinary_tests import with_trials

    register_hooks(collector.config, late=True)
    return with_trials(collector, report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """End a run with a wrong marker or recipe with the exit status of a wrong option."""
    # The argument: sessions of ``pytester.getnode`` have no ``exitstatus``.
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED):
        return
    for report in terminal.stats.get("error", []):
        # Of a worker's report, xdist sends the text only.
        if isinstance(report, pytest.CollectReport) and (
            report.nodeid.endswith(SUFFIXES) or f": {MARKER}" in str(report.longrepr)
        ):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """If nothing was collected, name classes that are nearly workloads, and what they lack."""
    if exitstatus in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED):
        from pytest_aorta.plugin.workload_files import lines_of_empty_run

        for line in lines_of_empty_run(terminalreporter, exitstatus, config):
            terminalreporter.write_line(line, red=True)


# Processes that have another part than to run items


class ControllerHooks:
    """In an xdist controller, which collects nothing itself: notice that a recipe or a test starts trials."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Notice a recipe, and pass on its selected cells in their order."""
        text = "\n".join(ids)  # of each worker, perhaps a hundred thousand: no call for each
        for suffix in SUFFIXES:
            if f"{suffix}::" in text:
                self._make_way().pytest_xdist_node_collection_finished(node, ids)
                return

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notice the first report with trials, before pytest's terminal asks for its word."""
        if hasattr(report, "aorta"):
            self._make_way().pytest_runtest_logreport(report)

    def _make_way(self) -> Any:
        manager = self._config.pluginmanager
        manager.unregister(self)
        register_hooks(self._config, late=True)
        return manager.get_plugin(REPORTS)


class FurtherRankHooks:
    """Hooks of ranks and nodes other than 0, which neither print nor write.

    A rank reports no failed tests by its exit status: the launcher would end rank 0 before its report. A node does, for
    the user or for srun.
    """

    def __init__(self, config: pytest.Config, *, is_node: bool) -> None:
        self._config = config
        self._stdout = sys.stdout
        self._is_node = is_node
        self._failed = False

    def pytest_configure(self) -> None:
        """Have pytest's terminal reporter, which is made later, write to the null device."""
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (open until the process ends)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        sys.stdout = self._stdout

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED
        if self._failed and not self._is_node:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End after node 0, where this node's exit status may have srun end the job (``KillOnBadExit``)."""
        if self._is_node and self._failed:
            from pytest_aorta.launch.launch_mode import endpoint, wait_for_end
            from pytest_aorta.plugin.run import run_of

            elastic = run_of(self._config).selection.execution.elastic
            wait_for_end(*endpoint(elastic), _PATIENCE)


# Fixtures


@pytest.fixture
def aorta_extra_env() -> dict[str, str]:
    """Variables on top of all others for every trial. Override it in a conftest.py to set them there."""
    return {}


@pytest.fixture
def aorta_run(request: pytest.FixtureRequest, aorta_extra_env: dict[str, str]) -> RunTrial:
    """``aorta_run("gemm", steps=20, mitigations=["tf32_off"])`` runs one trial and returns its TrialResult.

    The trial's failure is in the result, not an exception. Every call leaves a trial file. A test with
    ``@pytest.mark.aorta(trials=, ...)`` runs once per trial of every cell; ``aorta_run`` then has its ``environment``,
    ``mitigations`` and ``index``, and takes them where a call gives none.
    """
    from pytest_aorta.plugin.ordinary_tests import RunTrial

    register_hooks(request.config, late=True)  # it may have been asked for by its name, when the test ran already
    return RunTrial(request.node, aorta_extra_env, getattr(request, "param", None))


@pytest.fixture
def aorta_torchrun(aorta_run: RunTrial) -> RunTorchrun:
    """``aorta_torchrun("train.py", "--steps", "3", nproc=2, timeout=60)`` runs a script under torchrun.

    The script's failure is in the TorchrunResult, not an exception. Every call leaves a trial file.
    """
    from pytest_aorta.plugin.torchrun_fixture import RunTorchrun

    return RunTorchrun(aorta_run)


@pytest.fixture(scope="session")
def aorta_env() -> EnvSnapshot:
    """The machine and software that pytest itself runs on, as trials record them."""
    from pytest_aorta.probe.collect import collect_env

    return collect_env()
