"""Runs trials on this host: prepares cells, allocates cores and devices, supervises trials."""

from __future__ import annotations

import os
import threading
from concurrent import futures
from dataclasses import dataclass, replace
from typing import Literal

from pytest_aorta.collectors.contract import load
from pytest_aorta.launch.environment import PreparedCell
from pytest_aorta.launch.host import collecting
from pytest_aorta.launch.host.allocation import Allocator
from pytest_aorta.launch.host.beside import RunningBeside
from pytest_aorta.launch.host.cell_zygotes import CellZygotes
from pytest_aorta.launch.host.folders import SharedFolder, TemporaryFolders
from pytest_aorta.launch.host.supervisor import BEHIND, Supervisor
from pytest_aorta.launch.job import TrialJob
from pytest_aorta.launch.launch_mode import NodeStore, own_rank, under_launcher
from pytest_aorta.launch.record import check_claims, warning_of
from pytest_aorta.probe.health.sampler import Sampler
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.zygote import ZygoteError
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.records import prepare_events
from pytest_aorta.trials.result import TrialResult


class LocalHost:
    """Runs trials on this host; shared by its slots."""

    def __init__(
        self,
        resources: Resources,
        hosts: int = 1,
        node_store: tuple[str, int] | None = None,
        number: int = 0,
        run: str = "",
    ) -> None:
        self.allocator = Allocator(resources, hosts)
        self.zygotes = CellZygotes(resources, hosts, number)
        self.temporary = TemporaryFolders(os.getppid() if under_launcher() else None)
        self.node_store = None if node_store is None else NodeStore(*node_store)
        self._sampler = Sampler(run) if resources.health else None
        #: Watched working directories that trials share; ``None`` except in the first of several workers.
        self._shared: dict[str, SharedFolder] | None = {} if resources.worker == 0 and own_rank() == 0 else None
        self._lock = threading.Lock()
        self._prepared: dict[str, PreparedCell] = {}
        #: Digests of the lists of distributions that were already passed on.
        self._listed: set[str] = set()
        #: Environments about which the user was warned, because trials do not run in them.
        self._warned: set[str] = set()

    def prepare_cell(self, job: TrialJob, slot: int) -> PreparedCell:
        """Import the workload in a zygote of the cell and plan the launch of its trials, once per cell.

        Raises ``START_FAILURES``; ``LeaseCancelled`` or ``ZygoteUnwanted`` once the job is cancelled.
        """
        if self._sampler is not None:
            self._sampler.start()  # it is ready once the workload has been imported
        try:
            if job.key not in self._prepared:
                if job.spec.collect:  # raises where they cannot be used for any trial
                    collecting.with_collectors(job, load(job.spec.collect))
                prepare_events()  # before a trial runs: an event that waits for it would be late
                with self.allocator.allocate(job, slot, 1) as allocation:
                    cell = self.zygotes.of(job, allocation).prepare_cell(job, allocation, job.cancelled.done)
                imposes = self.allocator.imposes(cell.plan.nproc, job.spec.workload.name)
                self._prepared[job.key] = replace(cell, imposes=imposes)
        except ZygoteError as error:
            if -(error.returncode or 0) in process_tree.TERMINATIONS:  # pytest may have got the signal, too
                futures.wait([job.cancelled], BEHIND)
            raise
        return self._prepared[job.key]

    def run(self, job: TrialJob, slot: int) -> TrialResult:
        """Run one trial of a prepared cell; tells the ``job`` of phases and warnings."""
        spec = job.spec
        # One device per rank.
        need = self.prepare_cell(job, slot).plan.nproc
        with self.allocator.allocate(job, slot, need, (spec.workload.name, spec.cell)) as allocation:
            sampled = None if self._sampler is None else self._sampler.begin()
            trial = Supervisor(job, allocation, self.zygotes, self.temporary, self.node_store)
            job.on_cancel(trial.interrupt)
            shared = None
            if self._shared is not None and spec.execution.cwd == "here":
                here = job.inherited
                with self._lock:
                    if here.cwd not in self._shared:
                        self._shared[here.cwd] = SharedFolder(here.cwd, here.results)
                    shared = self._shared[here.cwd]
            with RunningBeside(spec.environment.beside) as beside:
                record = self._watched(job, trial)
            if self._sampler is not None:
                devices = None if allocation.imposes.devices is None else allocation.device_ids
                health = self._sampler.end(sampled, devices, record.exit_status != "ok")
                record = record.model_copy(update={"health": health})
            warnings = [beside.problem, None if shared is None else shared.warning()]
            if any(warnings):
                record = record.model_copy(update={"warnings": [*record.warnings, *filter(None, warnings)]})
            if trial.stuck:
                self.allocator.quarantine(allocation, trial.stuck)
        return record

    def _watched(self, job: TrialJob, trial: Supervisor) -> TrialResult:
        """Start the trial, tell the job of its phases, and wait for its end."""
        trial.start()
        for text in self.zygotes.take_warnings():
            job.warn(text)
        listing = None if trial.cell is None else trial.cell.info.packages
        if listing is not None and listing["digest"] not in self._listed:
            self._listed.add(listing["digest"])
            job.on_packages(listing)
        phases: tuple[Literal["setup", "run"], ...] = ("setup", "run")
        for phase in phases:
            trial.wait(phase)
            environment, env = job.spec.environment, trial.seen.env
            if env is not None and environment.kind != "local" and environment.name not in self._warned:
                wrong = warning_of(environment, check_claims(environment, env))
                if wrong is not None:
                    self._warned.add(environment.name)
                    job.warn(wrong)
            job.phase_ended(phase, trial.seen.failed_in(phase))
        return trial.finish()

    def close(self) -> None:
        self.zygotes.close()
        self.temporary.close()
        if self._sampler is not None:
            self._sampler.close()
        if self.node_store is not None:
            self.node_store.close()


@dataclass(frozen=True)
class Slot:
    """A place that runs one job at a time; ``index`` is its number on its host, ``number`` the number of the host."""

    host: LocalHost
    index: int
    name: str = ""
    number: int = 0
