"""What is refused of a run as a whole: an error of the command line, with exit status 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import pytest

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.finding import FILE_NAMES

P = ParamSpec("P")

#: What a refused marker is called, after the node id of its test; of a worker's report, xdist sends the text only.
MARKER = "@pytest.mark.aorta"


def refuse(check: Callable[P, object], *arguments: P.args, **keywords: P.kwargs) -> None:
    """Make a check, and what it refuses an error of the command line.

    Raises:
        pytest.UsageError: in the words of the check.
    """
    try:
        check(*arguments, **keywords)
    except RequestError as error:
        raise pytest.UsageError(str(error)) from None


def has_refused_marker(config: pytest.Config) -> bool:
    """Whether a marker of ours, or a recipe, was an error of the collection, here or in a worker of xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    errors = [] if terminal is None else terminal.stats.get("error", [])
    collected = [report for report in errors if isinstance(report, pytest.CollectReport)]
    return any(_is_recipe(report.nodeid) or f": {MARKER}" in str(report.longrepr) for report in collected)


def _is_recipe(nodeid: str) -> bool:
    name = nodeid.rpartition("/")[2]
    return name in FILE_NAMES or name.endswith(".aorta.toml")
