"""Fixtures of all tests."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import signal
from collections.abc import Iterator

import pytest

from support.processes import MARK, kill_all
from support.stage import Stage


@pytest.fixture(scope="session")
def imported() -> None:
    """What runs of pytest in this process would import anew each time: pytester forgets modules after a run."""
    import scipy.special  # noqa: F401

    import pytest_aorta.launch.engine
    import pytest_aorta.launch.inprocess
    import pytest_aorta.plugin

    for module in pkgutil.iter_modules(pytest_aorta.plugin.__path__, "pytest_aorta.plugin."):
        importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


@pytest.fixture
def stage(imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for name in set(os.environ) - set(Stage(pytester.path).environ()):
        monkeypatch.delenv(name)
    stage = Stage(pytester.path, pytester)
    monkeypatch.setenv(MARK, stage.mark)
    yield stage
    kill_all(stage.processes())  # of a test that failed


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
