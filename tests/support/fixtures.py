"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import MARK, kill_all
from support.slurm import NODES, Slurm, missing, start_server, stop_server
from support.stage import Stage


@pytest.fixture(scope="session")
def loaded_statistics() -> None:
    """After each run in this process, pytester unloads what was imported; NumPy cannot be loaded twice."""
    import scipy.stats  # noqa: F401


@pytest.fixture
def stage(loaded_statistics: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A fresh stage, which is the current directory."""
    for name in set(os.environ) - set(Stage(pytester.path).environ()):
        monkeypatch.delenv(name)
    stage = Stage(pytester.path, pytester)
    monkeypatch.setenv(MARK, stage.mark)
    yield stage
    kill_all(stage.processes())  # of a test that failed


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts this process, even if the suite runs in the background, where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def slurm_server() -> Iterator[Slurm]:
    """SLURM with two nodes, for all tests of this process; without SLURM here, tests that ask for it are skipped."""
    if reason := missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="aorta-slurm-"))
    start_server(folder)
    yield Slurm(folder)
    stop_server(folder)


@pytest.fixture
def slurm(slurm_server: Slurm) -> Iterator[Slurm]:
    """SLURM with two idle nodes."""
    slurm_server.wait_for_nodes("idle")
    yield slurm_server
    slurm_server.cancel_all()
    for node in NODES:
        slurm_server.start_node(node)
