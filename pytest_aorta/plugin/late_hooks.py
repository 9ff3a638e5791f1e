"""Hooks that pytest is given only when there are trials."""

from __future__ import annotations

import pytest

from pytest_aorta.plugin.xdist_roles import is_worker

#: Names of plugins.
TRIALS, REPORTS = "aorta_trials", "aorta_reports"


def register_hooks(config: pytest.Config, *, late: bool = False) -> None:
    """Register the hooks that trials need, once.

    Args:
        config: of pytest.
        late: whether the session has begun: then the hooks of its beginning are not called any more.
    """
    manager = config.pluginmanager
    if manager.has_plugin(TRIALS):
        return
    import pytest_aorta.plugin.trial_hooks as trial_hooks  # "from" takes what a nested run of pytest has left
    from pytest_aorta.plugin.report_hooks import ReportHooks

    manager.register(trial_hooks, TRIALS)
    if not late:
        from pytest_aorta.plugin.further_rank import FurtherRankHooks, is_further_node, is_further_rank

        is_rank = is_further_rank(config)
        if is_rank or is_further_node(config):
            manager.register(FurtherRankHooks(config, is_node=not is_rank), "aorta_further_rank")
            return
    if not is_worker(config):
        hooks = ReportHooks(config)
        manager.register(hooks, REPORTS)
        if late:
            hooks.pytest_sessionstart()
