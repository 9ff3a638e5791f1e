"""In an xdist controller, which collects nothing itself: notice that a test starts trials."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_aorta.plugin.late_hooks import REPORTS, TRIALS, register_hooks
from pytest_aorta.plugin.xdist_roles import STAMP, is_controller, place_under_each


def watch_reports(config: pytest.Config) -> None:
    """Look at reports in a controller that knows of no trial."""
    if is_controller(config) and not config.pluginmanager.has_plugin(TRIALS):
        config.pluginmanager.register(ControllerHooks(config), "aorta_controller")


def introduce(node: Any) -> None:
    """Tell a worker the name of the run in the history, the same to all, where nothing else does."""
    if not node.config.pluginmanager.has_plugin(TRIALS):
        from pytest_aorta.workspace.history import stamp

        node.workerinput["aorta"] = {
            "stamp": node.config.stash.setdefault(STAMP, stamp()),
            "each": place_under_each(node),
        }


class ControllerHooks:
    """Gives way to the hooks of trials."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See the first report of a test that starts trials, before pytest's terminal asks for the word to show."""
        if hasattr(report, "aorta"):
            manager = self._config.pluginmanager
            manager.unregister(self)
            register_hooks(self._config, late=True)
            hooks: Any = manager.get_plugin(REPORTS)
            hooks.pytest_runtest_logreport(report)
