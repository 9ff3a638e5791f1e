"""The cores and devices of one host, and which of them a trial has while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.runtime.resources.devices import choose_devices, device_variables, devices_text, find_devices
from pytest_aorta.runtime.resources.leases import Lease, LeaseCancelled, LeaseError, Leases

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoints.job_slot import JobContext, Slot

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Allocation:
    """The part of a host that a trial may use.

    Attributes:
        cores: numbers of CPU cores; ``None`` for all.
        threads: variables with the number of compute threads.
        devices: variables that select devices.
        device_ids: numbers of these devices.
        descriptors: locks on these devices, inherited by the trial's process.
    """

    cores: tuple[int, ...] | None = None
    threads: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    device_ids: tuple[int, ...] = ()
    descriptors: tuple[int, ...] = ()


class DevicesQuarantined(Exception):
    """Processes that cannot be ended hold so many devices that too few are left."""


class Allocator:
    """Allocates cores and devices of this host.

    Args:
        devices: ids to lease from; empty for hiding all; ``None`` for leaving devices alone.

    Raises:
        LaunchModeError: a device does not exist, or cannot be locked.
    """

    def __init__(self, devices: tuple[int, ...] | None) -> None:
        self._found = None if devices is None else find_devices()
        self._leases: Leases | None = None
        #: The processes that hold each device and cannot be ended.
        self._quarantined: dict[int, str] = {}
        if devices and self._found is not None:
            try:
                self._leases = Leases(choose_devices(devices, self._found))
            except (ValueError, LeaseError, OSError) as error:
                raise LaunchModeError(f"--aorta-devices {devices_text(devices)}: {error}") from None

    def check_need(self, name: str, need: int) -> None:
        """Raise ``LaunchModeError`` when there are fewer devices than a trial of workload ``name`` needs."""
        there = self._leases.devices if self._leases is not None else ()
        if there and need > len(there):
            raise LaunchModeError(
                f"workload {name} needs {need} devices, one per rank, but --aorta-devices {devices_text(there)} "
                f"gives {len(there)}"
            )

    @contextlib.contextmanager
    def allocate(self, job: JobContext, need: int) -> Iterator[Allocation]:
        """The slot's cores, and ``need`` devices if devices are leased; waits until this and other runs leave so many.

        Raises:
            LeaseCancelled: the job was cancelled before.
            DevicesQuarantined: so many will never be free again.
        """
        cores, threads = job.slot.cores, _threads(job.slot)
        if self._found is None:
            yield Allocation(cores, threads)
        elif self._leases is None:  # --aorta-devices none
            yield Allocation(cores, threads, device_variables([], self._found))
        else:
            with self._lease(self._leases, job, need) as lease:
                variables = device_variables(lease.devices, self._found)
                yield Allocation(cores, threads, variables, lease.devices, tuple(lease.descriptors))

    def _lease(self, leases: Leases, job: JobContext, need: int) -> Lease:
        def too_few() -> bool:
            return need > len(set(leases.devices) - set(self._quarantined))

        if not too_few():
            try:
                return leases.acquire(need, cancelled=lambda: job.cancelled or too_few())
            except LeaseCancelled:
                if job.cancelled or not too_few():
                    raise
        held = "; ".join(f"device {device} is held by {stuck}" for device, stuck in sorted(self._quarantined.items()))
        raise DevicesQuarantined(f"{held}, which cannot be ended; a trial takes {need} of the devices that are left")

    def quarantine(self, allocation: Allocation, stuck: Sequence[str]) -> None:
        """Allocate these devices no more, for the processes ``stuck`` cannot be ended.

        The locks that these processes have inherited keep other runs away from the devices.
        """
        self._quarantined |= dict.fromkeys(allocation.device_ids, ", ".join(stuck))
        if self._leases is not None:  # the processes may end after all, and leave a device in any state
            self._leases = Leases([device for device in self._leases.devices if device not in self._quarantined])


def _threads(slot: Slot) -> dict[str, str]:
    return {} if slot.threads is None else {name: str(slot.threads) for name in _THREADS}
