"""Gives each running trial a share of the cores and devices of one host."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_aorta.launch.job import DevicesQuarantined, TrialJob
from pytest_aorta.launch.launch_mode import LaunchModeError
from pytest_aorta.runtime.resources.devices import (
    choose_devices,
    device_variables,
    devices_text,
    equal_shares,
    find_devices,
    threads_of,
)
from pytest_aorta.runtime.resources.leases import Lease, LeaseCancelled, LeaseError, Leases
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.result import Imposed, SideBySide
from pytest_aorta.trials.spec import ImposedCounts

#: Variables that set numbers of threads; torch reads the first one.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Allocation:
    """The part of a host that a trial may use."""

    imposes: ImposedCounts = field(default_factory=ImposedCounts)
    cores: tuple[int, ...] | None = None
    threads: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    device_ids: tuple[int, ...] = ()
    descriptors: tuple[int, ...] = ()
    side_by_side: SideBySide = field(default_factory=SideBySide)

    def imposed(self, inherited: Mapping[str, str], overlay: Mapping[str, str]) -> Imposed:
        """What the record of a trial says of it, without variables that the trial has from elsewhere."""
        variables = {**self.threads, **self.devices}
        for name in (inherited.keys() - self.devices.keys() | overlay.keys()) & variables.keys():
            del variables[name]
        return Imposed(
            threads=self.imposes.threads if _THREADS[0] in variables else None,
            cpus=None if self.cores is None else list(self.cores),
            devices=None if self.imposes.devices is None else list(self.device_ids),
            variables=variables,
        )


class Allocator:
    """Allocates cores and devices of this host."""

    def __init__(self, resources: Resources, hosts: int = 1) -> None:
        devices = resources.devices
        cpus = os.sched_getaffinity(0)
        self._side_by_side = SideBySide(
            slots=resources.slots,
            workers=resources.workers,
            hosts=hosts,
            cores=threads_of(cpus),
            job=os.environ.get("SLURM_JOB_ID"),
        )
        #: Number of slots of all workers of this host, and number of the first slot of this worker.
        self._at_a_time = resources.slots * resources.workers
        self._first = resources.worker * resources.slots
        self._divides = resources.own_cores and self._at_a_time > 1
        #: Cores of each slot; ``None`` if cores are not divided, or there are too few.
        self._shares = equal_shares(self._at_a_time, cpus) if self._divides else None
        self._found = None if devices is None else find_devices()
        self._leases: Leases | None = None
        self._used: Counter[tuple[object, int]] = Counter()
        #: The processes that hold each device and cannot be ended.
        self._quarantined: dict[int, str] = {}
        if devices and self._found is not None:
            try:
                self._leases = Leases(choose_devices(devices, self._found))
            except (ValueError, LeaseError, OSError) as error:
                raise LaunchModeError(f"--aorta-devices {devices_text(devices)}: {error}") from None

    @contextlib.contextmanager
    def allocate(self, job: TrialJob, slot: int, need: int, cell: object = None) -> Iterator[Allocation]:
        """Allocate the cores of slot ``slot`` and, if devices are leased, ``need`` devices; wait until they are free.

        A ``cell`` gets all devices equally often, see ``_preferred``; ``None`` is for jobs that are no trials. Raises
        ``LeaseCancelled``, or ``DevicesQuarantined`` if so many devices will never be free again.
        """
        imposes, number = self.imposes(need), self._first + slot
        shared = Allocation(
            imposes,
            cores=None if self._shares is None else self._shares[number % len(self._shares)],
            threads={} if imposes.threads is None else dict.fromkeys(_THREADS, str(imposes.threads)),
            side_by_side=self._side_by_side.model_copy(update={"slot": number}),
        )
        if self._found is None:
            yield shared
        elif self._leases is None:  # --aorta-devices none
            yield replace(shared, devices=device_variables([], self._found))
        else:
            preferred = self._preferred(self._leases.devices, number, need, cell)
            with self._lease(self._leases, job, need, preferred) as lease:
                if cell is not None:
                    self._used.update((cell, device) for device in lease.devices)
                yield replace(
                    shared,
                    devices=device_variables(lease.devices, self._found),
                    device_ids=lease.devices,
                    descriptors=tuple(lease.descriptors),
                )

    def imposes(self, need: int, workload: str | None = None) -> ImposedCounts:
        """The limits that an allocation imposes on ``need`` processes.

        Raises:
            LaunchModeError: there are fewer devices than a trial of the ``workload`` needs.
        """
        there = self._leases.devices if self._leases is not None else ()
        if workload is not None and there and need > len(there):
            raise LaunchModeError(
                f"workload {workload} needs {need} devices, one per rank, but --aorta-devices {devices_text(there)} "
                f"gives {len(there)}"
            )
        devices = None if self._found is None else need if self._leases is not None else 0
        if not self._divides:
            return ImposedCounts(devices=devices)
        if self._shares is None:
            return ImposedCounts(threads=1, devices=devices)
        cores = threads_of(self._shares[0])
        return ImposedCounts(threads=max(1, cores // need), cores=cores, devices=devices)

    def _preferred(self, devices: Sequence[int], number: int, need: int, cell: object) -> list[int]:
        """Order in which free devices are taken: groups of ``need`` neighbouring devices.

        If there is one group per slot, each slot keeps its own: slots are balanced over cells, and so devices are, too.
        If there are more groups, the cell takes the group that it has had least often.
        """
        parts = [devices[start : start + need] for start in range(0, len(devices), need)]
        has_own = len(devices) // need == self._at_a_time

        def rank(part: int) -> tuple[bool, bool, int, int]:
            used = sum(self._used[cell, device] for device in parts[part])
            return len(parts[part]) < need, has_own and part != number, used, (part - number) % len(parts)

        return [device for part in sorted(range(len(parts)), key=rank) for device in parts[part]]

    def _lease(self, leases: Leases, job: TrialJob, need: int, preferred: Sequence[int]) -> Lease:
        def too_few() -> bool:
            return need > len(set(leases.devices) - set(self._quarantined))

        if not too_few():
            try:
                return leases.acquire(need, preferred, cancelled=lambda: job.cancelled.done() or too_few())
            except LeaseCancelled:
                if job.cancelled.done() or not too_few():
                    raise
        held = "; ".join(f"device {device} is held by {stuck}" for device, stuck in sorted(self._quarantined.items()))
        raise DevicesQuarantined(f"{held}, which cannot be ended; a trial takes {need} of the devices that are left")

    def quarantine(self, allocation: Allocation, stuck: Sequence[str]) -> None:
        """Stop allocating these devices, because the processes ``stuck`` cannot be ended.

        These processes hold the locks of the devices, which keeps other runs away from them.
        """
        self._quarantined |= dict.fromkeys(allocation.device_ids, ", ".join(stuck))
        if self._leases is not None:  # the processes may end after all, and leave a device in any state
            self._leases = Leases([device for device in self._leases.devices if device not in self._quarantined])
