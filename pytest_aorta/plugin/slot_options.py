"""How many trials run at a time, and which devices they may lease."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from pytest_aorta.plan import Selection


def automatic_slots(config: pytest.Config, devices: tuple[int, ...] | None) -> int:
    """``--aorta-slots auto``: one per device that may be leased, else one per physical core that pytest may use.

    One for an xdist worker, whose siblings are the other slots.
    """
    if hasattr(config, "workerinput") or under_xdist(config):
        return 1
    if devices:
        return len(devices)
    return max(1, min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0))))


def under_xdist(config: pytest.Config) -> bool:
    """Whether this process hands its items to workers of xdist."""
    return bool(config.getoption("numprocesses", None) or config.getoption("tx", None))


def check_slots(config: pytest.Config, selection: Selection) -> None:
    """Refuse what cannot work together, and devices that are not there or cannot be leased.

    Raises:
        pytest.UsageError: naming both sides, or the devices.
    """
    from pytest_aorta.launch.launch_mode import under_launcher
    from pytest_aorta.runtime.resources.devices import choose_devices, devices_text, find_devices
    from pytest_aorta.runtime.resources.leases import LeaseError, Leases

    resources = selection.resources
    several = "--aorta-host" if resources.hosts else f"--aorta-slots {resources.slots}"
    if resources.total_slots > 1 or resources.hosts:
        if under_xdist(config):
            raise pytest.UsageError(f"{several} and -n both run trials side by side; use one of them")
        if under_launcher():
            raise pytest.UsageError(f"{several}: pytest is a rank of an outer launcher, and runs one trial at a time")
    if resources.devices is None:
        return
    named = f"--aorta-devices {devices_text(resources.devices)}"
    if selection.execution.isolation == "none":
        raise pytest.UsageError(
            f"{named} and --aorta-isolation none: a trial in pytest's own process has that process's devices"
        )
    if resources.devices and under_launcher():
        raise pytest.UsageError(f"{named}: pytest is a rank of an outer launcher, which gives out the devices")
    if resources.devices and not resources.hosts:
        try:
            Leases(choose_devices(resources.devices, find_devices()))
        except (ValueError, LeaseError, OSError) as error:
            raise pytest.UsageError(f"{named}: {error}") from None
