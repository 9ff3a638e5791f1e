"""In an xdist controller, which collects nothing itself: notice that a test starts trials."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_aorta.plugin.late_hooks import REPORTS, register_hooks


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
