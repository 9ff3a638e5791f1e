"""The hooks that pytest is given only when there are trials, and those of ranks and nodes that only run trials."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.plugin.options import is_mentioned
from pytest_aorta.plugin.roles import REPORTS, TRIALS, is_controller, is_worker

#: Seconds that node 0 may take to report, once the other nodes are done.
_PATIENCE = 60.0


def register_hooks(config: pytest.Config, *, late: bool = False) -> None:
    """Register the hooks that trials need, once; ``late``: the session has begun, and its first hooks are over."""
    manager = config.pluginmanager
    if manager.has_plugin(TRIALS):
        return
    import pytest_aorta.plugin.trial_hooks as trial_hooks  # "from" takes what a nested run of pytest has left
    from pytest_aorta.plugin.report_hooks import ReportHooks

    manager.register(trial_hooks, TRIALS)
    if not late:
        is_rank = _is_further_rank(config)
        if is_rank or _is_further_node(config):
            manager.register(FurtherRankHooks(config, is_node=not is_rank), "aorta_further_rank")
            return
    if not is_worker(config):
        hooks = ReportHooks(config)
        manager.register(hooks, REPORTS)
        if late:
            hooks.pytest_sessionstart()


def watch_reports(config: pytest.Config) -> None:
    """Look at reports in a controller that knows of no trial."""
    if is_controller(config) and not config.pluginmanager.has_plugin(TRIALS):
        config.pluginmanager.register(ControllerHooks(config), "aorta_controller")


class ControllerHooks:
    """In an xdist controller, which collects nothing itself: notice that a test starts trials."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See the first report of such a test before pytest's terminal asks for the word to show."""
        if hasattr(report, "aorta"):
            manager = self._config.pluginmanager
            manager.unregister(self)
            register_hooks(self._config, late=True)
            hooks: Any = manager.get_plugin(REPORTS)
            hooks.pytest_runtest_logreport(report)


def _is_further_rank(config: pytest.Config) -> bool:
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return False
    from pytest_aorta.launch.launch_mode import own_rank
    from pytest_aorta.plugin.workload_files import workload_classes

    return own_rank() != 0 and (is_mentioned(config) or any(workload_classes(Path(path)) for path in config.args))


def _is_further_node(config: pytest.Config) -> bool:
    if not is_mentioned(config) or config.option.help:
        return False
    from pytest_aorta.launch.nodes import node_rank
    from pytest_aorta.plugin.run import run_of

    selection = run_of(config).selection
    return not selection.resources.hosts and node_rank(selection.execution.elastic) != 0


class FurtherRankHooks:
    """Hooks of ranks, and of nodes, other than 0: rank 0 alone prints and writes.

    A rank leaves failed tests to rank 0: its exit status would have the launcher end rank 0 before its report. The exit
    status of a node is for the user, or for srun.
    """

    def __init__(self, config: pytest.Config, *, is_node: bool) -> None:
        self._config = config
        self._stdout = sys.stdout
        self._is_node = is_node
        self._failed = False

    def pytest_configure(self) -> None:
        """Have pytest's terminal reporter, which is made after this, write to nowhere."""
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (open until the process ends)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Let tests print as ever: the reporter is made."""
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
            from pytest_aorta.launch.nodes import endpoint, wait_for_end
            from pytest_aorta.plugin.run import run_of

            elastic = run_of(self._config).selection.execution.elastic
            wait_for_end(*endpoint(elastic), _PATIENCE)
