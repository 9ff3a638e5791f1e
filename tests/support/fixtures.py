"""Fixtures of all tests."""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Iterator

import pytest

from support.processes import MARK, kill_all
from support.stage import Stage
from support.warm_pytest import import_plugin


@pytest.fixture(scope="session")
def imported() -> None:
    """What runs of pytest in this process would import anew each time: pytester forgets modules after a run."""
    import scipy.special  # noqa: F401

    import_plugin()
    gc.collect()
    gc.freeze()


@pytest.fixture
def stage(imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for name in set(os.environ) - set(Stage(pytester.path).environ()):
        monkeypatch.delenv(name)
    # Runs in this process with isolation `auto` choose as users' do, but for how fast this machine is just now.
    monkeypatch.setattr("pytest_aorta.launch.host.starts.QUICK", math.inf)
    stage = Stage(pytester.path, pytester)
    monkeypatch.setenv(MARK, stage.mark)
    yield stage
    kill_all(stage.processes())  # of a test that failed


@pytest.fixture
def as_users_have_it(stage: Stage) -> None:
    """With isolation ``auto``: commands as typed, and classes in processes of their own."""
    stage.isolation = None


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
