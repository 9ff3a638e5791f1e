"""Configuration of this repository's own tests; what they have in common is in tests/support."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "support.browser", "support.fixtures", "support.slurm_steps", "support.workloads"]

# Without bytecode, each of hundreds of processes that tests start would rewrite the assertions of all plugins anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Runs of pytest in this process would append to it.
os.environ.pop("GITHUB_STEP_SUMMARY", None)

# How long an example takes says how busy this machine is.
settings.register_profile("aorta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aorta")
