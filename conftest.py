"""Configuration of this repository's own tests; what they have in common is in tests/support."""

from __future__ import annotations

import gc
import os
import sys
from importlib.util import find_spec

import pytest

# Without the extra ``test`` there are no tests to run, but pytest is to start here all the same: the first command of
# README.md runs trials with what a plain ``pip install .`` brings.
if find_spec("hypothesis") is not None:
    # A run of pytest in this process forgets what it has imported, and NumPy cannot be loaded twice.
    import numpy  # noqa: F401
    from hypothesis import HealthCheck, settings

    pytest_plugins = [
        "pytester",
        *(f"support.{name}" for name in ("fixtures", "neighbourhood", "nursery", "slurm_steps", "workloads")),
    ]

    # How long an example takes says how busy this machine is.
    settings.register_profile(
        "aorta",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        # The same examples in each run, so that a change is judged by what it changes; to look for new ones, set it.
        derandomize="AORTA_NEW_EXAMPLES" not in os.environ,
    )
    settings.load_profile("aorta")

# Without bytecode, each of hundreds of processes that tests start would rewrite the assertions of all plugins anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Of a run with one trial, the sampler's start is a third of the time.
os.environ.setdefault("PYTEST_AORTA_HEALTH", "false")

# Runs of pytest in this process would append to it.
os.environ.pop("GITHUB_STEP_SUMMARY", None)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Each run of pytest in this process collects garbage five times: let it not walk all that the tests import."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """``-n`` balances by stealing; among the ``addopts``, pytest without xdist would refuse the option."""
    if getattr(config.option, "dist", None) == "no":
        config.option.dist = "worksteal"
