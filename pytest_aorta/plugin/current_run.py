"""The run of a config, for hooks that are called in every pytest process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_aorta.plugin.run import Run


def current_run(config: pytest.Config) -> Run | None:
    """The run, if there is one already. Asking imports nothing: most pytest processes have no trials."""
    module = sys.modules.get("pytest_aorta.plugin.run")
    return None if module is None else config.stash.get(module.RUN, None)


def current_runs(config: pytest.Config) -> list[Run]:
    """The run, and those of the actions of recipes."""
    run = current_run(config)
    module = sys.modules.get("pytest_aorta.plugin.recipes.runs")
    return [] if run is None else [run, *(module.action_runs(config) if module is not None else ())]
