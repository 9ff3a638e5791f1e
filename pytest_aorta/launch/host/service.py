"""What the trials of one host share: the runner with its warm zygotes, the devices, a place for files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.launch.environment import Seat
from pytest_aorta.launch.host.runner import TrialRunner
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.launch.nodes.store import NodeStore
from pytest_aorta.runtime.resources.devices import Devices, choose_devices, device_variables, devices_text, find_devices
from pytest_aorta.runtime.resources.leases import Lease, LeaseCancelled, LeaseError, Leases
from pytest_aorta.trials.limits import GRACE

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoints.job_slot import JobContext, Slot

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class DevicesQuarantined(Exception):
    """Processes that cannot be ended hold so many devices that too few are left."""


class TrialService:
    """Made once per host, closed at the end of the run."""

    def __init__(
        self, *, slots: int, devices: tuple[int, ...] | None, grace: float, node_store: int | None = None
    ) -> None:
        self.runner = TrialRunner(grace, slots)
        self.found: Devices | None = None
        self.leases: Leases | None = None
        #: Devices that a trial takes, by workload; known once a cell of it has been prepared.
        self.needs: dict[str, int] = {}
        #: Devices that a process holds which cannot be ended, and that process.
        self.quarantined: dict[int, str] = {}
        self._folder: str | None = None
        self._node_store = None if node_store is None else NodeStore(node_store)
        if devices is not None:
            self.found = find_devices()
        if devices and self.found is not None:
            try:
                self.leases = Leases(choose_devices(devices, self.found))
            except (ValueError, LeaseError, OSError) as error:
                raise LaunchModeError(f"--aorta-devices {devices_text(devices)}: {error}") from None

    @property
    def folder(self) -> Path:
        """For files of trials whose results belong to another host."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="pytest-aorta-")
        return Path(self._folder)

    def check_need(self, name: str, need: int) -> None:
        """Raise ``LaunchModeError`` when there are fewer devices than a trial of workload ``name`` needs."""
        there = self.leases.devices if self.leases is not None else ()
        if there and need > len(there):
            raise LaunchModeError(
                f"workload {name} needs {need} devices, one per rank, but --aorta-devices {devices_text(there)} "
                f"gives {len(there)}"
            )

    @contextlib.contextmanager
    def seat(self, job: JobContext, need: int) -> Iterator[Seat]:
        """Cores and devices for one trial; waits until ``need`` devices are free, of this and of other runs.

        Raises:
            LeaseCancelled: the trial was not wanted any more before that.
            DevicesQuarantined: there will never be so many again.
        """
        slot = job.slot
        if self.found is None:
            yield Seat(cores=slot.cores, threads=_threads(slot))
            return
        if self.leases is None:  # --aorta-devices none
            yield Seat(cores=slot.cores, threads=_threads(slot), devices=device_variables([], self.found))
            return
        with self._lease(self.leases, job, need) as lease:
            yield Seat(
                cores=slot.cores,
                threads=_threads(slot),
                devices=device_variables(lease.devices, self.found),
                device_ids=lease.devices,
                descriptors=tuple(lease.descriptors),
            )

    def _lease(self, leases: Leases, job: JobContext, need: int) -> Lease:
        def too_few() -> bool:
            return need > len(set(leases.devices) - set(self.quarantined))

        if not too_few():
            try:
                return leases.acquire(need, cancelled=lambda: job.cancelled or too_few())
            except LeaseCancelled:
                if job.cancelled or not too_few():
                    raise
        held = "; ".join(f"device {device} is held by {stuck}" for device, stuck in sorted(self.quarantined.items()))
        raise DevicesQuarantined(f"{held}, which cannot be ended; a trial takes {need} of the devices that are left")

    def quarantine(self, seat: Seat, stuck: Sequence[str]) -> None:
        """Processes of the trial on this seat cannot be ended. Their locks keep its devices from other runs as well."""
        self.quarantined |= dict.fromkeys(seat.device_ids, ", ".join(stuck))
        if self.leases is not None:  # those processes may end after all, and nobody knows what they have left there
            self.leases = Leases([device for device in self.leases.devices if device not in self.quarantined])

    def close(self) -> None:
        """End all processes."""
        self.runner.close()
        if self._node_store is not None:
            self._node_store.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def make_service(argument: dict[str, Any]) -> TrialService:
    """The service of a host worker; ``argument``: ``slots``, ``devices``, ``grace``, ``node_store``."""
    devices = argument["devices"]
    return TrialService(
        slots=argument["slots"],
        devices=None if devices is None else tuple(devices),
        grace=argument.get("grace", GRACE),
        node_store=argument.get("node_store"),
    )


def _threads(slot: Slot) -> dict[str, str]:
    return {} if slot.threads is None else {name: str(slot.threads) for name in _THREADS}
