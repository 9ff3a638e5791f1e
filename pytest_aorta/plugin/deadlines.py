"""Which of several time limits is the deadline of a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_aorta.plugin.compat import general_timeout

if TYPE_CHECKING:
    from pytest_aorta.trials.spec import TrialSpec

#: Limit that pytest-timeout would set for an item, in seconds.
TIMEOUT = pytest.StashKey[float]()


def deadline_of(item: pytest.Item, spec: TrialSpec) -> float | None:
    """A trial's deadline in seconds; ``None`` leaves it to the workload.

    The first of: the marker ``aorta(timeout=)``, pytest-timeout's marker, ``--aorta-timeout``, and pytest-timeout's
    limit for all tests, which was hardly made with trials in mind.
    """
    for marker in item.iter_markers("aorta"):
        if marker.kwargs.get("timeout") is not None:
            return float(marker.kwargs["timeout"])
    general = item.stash.get(TIMEOUT, None) or _pytest_timeout(item)
    own = spec.limits.timeout
    if own is None or (general is not None and item.get_closest_marker("timeout") is not None):
        return general
    return own


def _pytest_timeout(item: pytest.Item) -> float | None:
    """pytest-timeout's limit for an item whose timer has not been set yet."""
    if not item.config.pluginmanager.has_plugin("timeout"):
        return None
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        given: float | None = marker.kwargs.get("timeout", marker.args[0] if marker.args else None)
        return given or None  # 0 switches it off
    return general_timeout(item.config)
