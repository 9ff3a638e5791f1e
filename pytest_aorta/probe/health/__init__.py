"""Health of this host and its devices: errors, throttling, temperature, clocks; see ``docs/reference/probe.md``.

The names below are loaded on first use: the table of what events mean is read where nothing else is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_aorta.probe.health.model import HealthChange as HealthChange
    from pytest_aorta.probe.health.model import HealthEvent as HealthEvent
    from pytest_aorta.probe.health.model import HealthReading as HealthReading
    from pytest_aorta.probe.health.model import PartChange as PartChange
    from pytest_aorta.probe.health.model import PartReading as PartReading
    from pytest_aorta.probe.health.model import difference as difference
    from pytest_aorta.probe.health.reading import read_health as read_health

#: The module of each public name.
_HOMES = dict.fromkeys(
    ("HealthChange", "HealthEvent", "HealthReading", "PartChange", "PartReading", "difference"), "model"
) | {"read_health": "reading"}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
