"""Configuration of this repository's own tests; what they have in common is in tests/support."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "support.fixtures"]

# How long an example takes says how busy this machine is.
settings.register_profile("aorta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("aorta")
