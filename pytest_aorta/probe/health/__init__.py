"""Health of this host and its devices: errors, throttling, temperature, clocks. ``docs/probe.md`` says what is read."""

from __future__ import annotations

from pytest_aorta.probe.health.model import (
    HealthChange,
    HealthEvent,
    HealthReading,
    PartChange,
    PartReading,
    difference,
)
from pytest_aorta.probe.health.reading import read_health

__all__ = [
    "HealthChange",
    "HealthEvent",
    "HealthReading",
    "PartChange",
    "PartReading",
    "difference",
    "read_health",
]
