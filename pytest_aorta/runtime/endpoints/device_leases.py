"""The leases of a worker's devices: no other process uses them as long as one of the worker's lives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from pytest_aorta.runtime.endpoints.protocol import StartupError
from pytest_aorta.runtime.resources.devices import are_named_only, choose_devices, devices_text, find_devices
from pytest_aorta.runtime.resources.leases import Lease, LeaseCancelled, LeaseError, Leases

#: Seconds that a start waits for devices; processes of a worker that was killed may still be ending.
PATIENCE = 5.0


class DeviceLeases:
    """Taken all at once, or not at all. What this process was handed by the one that started it counts as taken.

    Args:
        devices: their ids.
        give_up: moment of ``time.monotonic()`` at which the start of the worker is given up.

    Raises:
        StartupError: a device does not exist, or another process holds it.
    """

    def __init__(self, devices: Sequence[int], give_up: float) -> None:
        self._lease: Lease | None = None
        self._descriptors: dict[int, int] = {}
        if not devices:
            return
        until = min(give_up, time.monotonic() + PATIENCE)
        try:
            found = find_devices()
            if not are_named_only(found):
                choose_devices(tuple(devices), found)
            self._descriptors = Leases(devices).inherited()
            leases = Leases([device for device in devices if device not in self._descriptors])
            looks = itertools.count()  # at least one, however late it is
            self._lease = leases.acquire(
                len(leases.devices), cancelled=lambda: next(looks) > 0 and time.monotonic() > until
            )
        except LeaseCancelled:
            held = leases.holders() or dict.fromkeys(leases.devices, "other processes")
            holders = ", ".join(f"device {device} by {holder}" for device, holder in held.items())
            raise StartupError(
                f"device_ids {devices_text(devices)} are not free: {holders}; a device belongs to one worker at a time"
            ) from None
        except (LeaseError, OSError, ValueError) as error:
            raise StartupError(f"device_ids {devices_text(devices)}: {error}") from error
        self._descriptors.update(zip(self._lease.devices, self._lease.descriptors, strict=True))

    def descriptors(self, device: int) -> list[int]:
        """The lock of a device: a process that has it open keeps the device."""
        return [self._descriptors[device]]

    def release(self) -> None:
        """Give the devices back."""
        if self._lease is not None:
            self._lease.release()
