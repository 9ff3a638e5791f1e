"""What runs trials on one host: cells are prepared, cores and devices are allocated, trials are supervised."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pytest_aorta.launch.environment import EnvironmentUnusable, Inherited, zygote_spec
from pytest_aorta.launch.host.allocation import Allocator, Cancellable
from pytest_aorta.launch.host.cell_zygotes import CellZygotes
from pytest_aorta.launch.host.place import TemporaryFolders
from pytest_aorta.launch.host.process_trial import BEHIND, ProcessTrial
from pytest_aorta.launch.launch_mode import under_launcher
from pytest_aorta.launch.nodes import NodeStore
from pytest_aorta.launch.record import check_claims, warning_of
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.registry import Environment
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.resources.leases import LeaseCancelled
from pytest_aorta.runtime.zygote import ZygoteError, ZygoteUnwanted
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.records import prepare_events
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

#: Seconds between two looks of a trial that waits for another one's import: whether it was cancelled.
_LOOK = 0.1

_PHASES: tuple[Literal["setup", "run"], ...] = ("setup", "run")


class TrialJob(Cancellable, Protocol):
    """Hears of a trial."""

    def phase_ended(self, phase: Literal["setup", "run"], failed: bool) -> None:
        """A phase, or the trial during it, has ended."""

    def warn(self, text: str) -> None:
        """A warning for the user."""

    def packages_listed(self, listing: dict[str, Any]) -> None:
        """The installed distributions, once for each host and list."""


@dataclass(frozen=True)
class TrialOrder:
    """What a host is asked to run."""

    spec: TrialSpec
    folder: Path
    inherited: Inherited
    timeout: float | None = None


class HostLost(Exception):
    """The host of a trial died, or there is none left to run it."""


class TrialHost:
    """Shared by the slots of a host."""

    def __init__(self, resources: Resources, hosts: int = 1, node_store: tuple[str, int] | None = None) -> None:
        self.allocator = Allocator(resources, hosts)
        self.zygotes = CellZygotes(resources.slots)
        self.temporary = TemporaryFolders(os.getppid() if under_launcher() else None)
        self.node_store = None if node_store is None else NodeStore(*node_store)
        self._lock = threading.Lock()
        #: Cells that were prepared, or are about to be.
        self._cells: dict[str, Future[PreparedCell]] = {}
        #: Ranks of a trial on this host, by workload; known once a cell of it has been prepared.
        self._ranks: dict[str, int] = {}
        #: Digests of the lists of distributions that were passed on.
        self._listed: set[str] = set()
        #: Environments that trials were found not to run in.
        self._warned: set[str] = set()

    def importing(self, order: TrialOrder) -> Future[PreparedCell] | None:
        """What ends with the import of a cell that another trial waits for now, if one does."""
        with self._lock:
            found = self._cells.get(cell_key(order))
        return None if found is None or found.done() else found

    def prepare(self, order: TrialOrder, slot: int, job: Cancellable) -> PreparedCell:
        """Import the workload in the zygote of a cell, and plan how its trials start; once for each cell.

        Raises:
            START_FAILURES: they cannot be started.
            LeaseCancelled, ZygoteUnwanted: the job was cancelled.
        """
        key = cell_key(order)
        while not job.cancelled:
            with self._lock:
                found = self._cells.get(key)
                is_first = found is None
                if found is None:
                    found = self._cells[key] = Future()
            if is_first:
                self._prepare_first(key, found, order, slot, job)
            if wait([found], _LOOK).done and not found.cancelled():
                return found.result()
        raise ZygoteUnwanted("its start was cancelled")

    def _prepare_first(
        self, key: str, found: Future[PreparedCell], order: TrialOrder, slot: int, job: Cancellable
    ) -> None:
        try:
            found.set_result(self._prepare(order, slot, job))
        except (LeaseCancelled, ZygoteUnwanted):
            with self._lock:
                del self._cells[key]
            found.cancel()  # a waiting trial prepares the cell itself
            raise
        except BaseException as error:
            found.set_exception(error)

    def _prepare(self, order: TrialOrder, slot: int, job: Cancellable) -> PreparedCell:
        spec, inherited = order.spec, order.inherited
        prepare_events()  # before a trial runs: an event that waits for it would be late
        try:
            with self.allocator.allocate(job, slot, 1) as allocation:
                cell = self.zygotes.prepare(spec, inherited, allocation, order.timeout, lambda: not job.cancelled)
            self.allocator.check_need(spec.workload.name, cell.plan.nproc)
        except ZygoteError as error:
            if -(error.returncode or 0) in process_tree.TERMINATIONS:
                _wait_for_cancel(job)
            raise
        self._ranks[spec.workload.name] = cell.plan.nproc
        return replace(cell, imposes=self.allocator.imposes(cell.plan.nproc))

    def run(self, order: TrialOrder, slot: int, job: TrialJob) -> TrialResult:
        """Run one trial of a prepared cell; ``job`` hears of its phases and warnings."""
        spec = order.spec
        # One device per rank.
        with self.allocator.allocate(job, slot, self._ranks.get(spec.workload.name, 1)) as allocation:
            trial = ProcessTrial(spec, order.folder, self.zygotes, self.temporary, self.node_store)
            job.on_cancel(trial.interrupt)
            trial.start(order.inherited, allocation, order.timeout)
            for text in self.zygotes.take_warnings():
                job.warn(text)
            listing = trial.packages
            if listing is not None and listing["digest"] not in self._listed:
                self._listed.add(listing["digest"])
                job.packages_listed(listing)
            for phase in _PHASES:
                trial.wait(phase)
                if (warning := self._new_warning(spec.environment, trial.seen.env)) is not None:
                    job.warn(warning)
                job.phase_ended(phase, trial.seen.failed_in(phase))
            record = trial.finish()
            if trial.stuck:
                self.allocator.quarantine(allocation, trial.stuck)
        return record

    def _new_warning(self, environment: Environment, env: Mapping[str, Any] | None) -> str | None:
        if environment.name in self._warned or env is None:
            return None
        text = warning_of(environment, check_claims(environment, env))
        if text is not None:
            self._warned.add(environment.name)
        return text

    def close(self) -> None:
        """End all processes."""
        self.zygotes.close()
        self.temporary.close()
        if self.node_store is not None:
            self.node_store.close()


def cell_key(order: TrialOrder) -> str:
    """Cells of one key are prepared once. How they are launched, and for how long they may be imported, counts."""
    try:
        key = zygote_spec(order.spec, order.inherited).key()
    except EnvironmentUnusable as error:
        key = str(error)  # and the preparation fails with it, on its host
    limit = order.spec.limits.timeout if order.timeout is None else order.timeout
    return f"{key} {order.spec.execution} {limit}"


def _wait_for_cancel(job: Cancellable) -> None:
    cancelled = threading.Event()
    job.on_cancel(lambda why: cancelled.set())
    cancelled.wait(BEHIND)
