"""Pytest processes that run the trials together with another one, which alone prints and writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_aorta.plugin.options import is_mentioned

#: Seconds that node 0 may take to report, once the other nodes are done.
_PATIENCE = 60.0


def is_further_rank(config: pytest.Config) -> bool:
    """Whether pytest was asked for trials as a rank other than 0 (``torchrun -m pytest``)."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return False
    from pytest_aorta.launch.launch_mode import own_rank
    from pytest_aorta.plugin.items.discovery import workload_classes

    return own_rank() != 0 and (is_mentioned(config) or any(workload_classes(Path(path)) for path in config.args))


def is_further_node(config: pytest.Config) -> bool:
    """Whether pytest runs on a node other than node 0 of trials that have several."""
    if not is_mentioned(config) or config.option.help:
        return False
    from pytest_aorta.launch.nodes.addressing import node_rank
    from pytest_aorta.plugin.run import run_of

    selection = run_of(config).selection
    return not selection.resources.hosts and node_rank(selection.execution.elastic) != 0


class FurtherRankHooks:
    """Hooks of ranks, and of nodes, other than 0.

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
        """Leave failed tests of ranks to rank 0."""
        self._failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED
        if self._failed and not self._is_node:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End after node 0, where this node's exit status may have srun end the job (``KillOnBadExit``)."""
        if self._is_node and self._failed:
            from pytest_aorta.launch.nodes.addressing import endpoint
            from pytest_aorta.launch.nodes.store import wait_for_end
            from pytest_aorta.plugin.run import run_of

            elastic = run_of(self._config).selection.execution.elastic
            wait_for_end(*endpoint(elastic), _PATIENCE)
