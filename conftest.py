"""Configuration of this repository's own tests; what they have in common is in tests/support."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "support.fixtures"]

# How long an example takes says how busy this machine is.
settings.register_profile("aorta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aorta")


def pytest_configure(config: pytest.Config) -> None:
    """Where no bytecode is to be written beside sources, keep it in pytest's cache.

    Hundreds of processes that tests start would compile the same modules anew, each of them.
    """
    if sys.dont_write_bytecode and config.cache is not None and "PYTHONPYCACHEPREFIX" not in os.environ:
        os.environ["PYTHONPYCACHEPREFIX"] = str(config.cache.mkdir("bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
