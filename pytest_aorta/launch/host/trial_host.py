"""What runs trials on one host: cells are prepared, cores and devices are allocated, trials are supervised."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from pytest_aorta.launch.environment import TrialOrder
from pytest_aorta.launch.host.allocation import Allocator, Cancellable
from pytest_aorta.launch.host.cell_zygotes import CellZygotes
from pytest_aorta.launch.host.collecting import check
from pytest_aorta.launch.host.directories import SharedFolder
from pytest_aorta.launch.host.place import TemporaryFolders
from pytest_aorta.launch.host.process_trial import BEHIND, ProcessTrial
from pytest_aorta.launch.launch_mode import own_rank, under_launcher
from pytest_aorta.launch.nodes import NodeStore
from pytest_aorta.launch.record import check_claims, warning_of
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.zygote import ZygoteError, ZygoteUnwanted
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.records import prepare_events
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

#: Seconds between two looks of a trial that waits for another one's import: whether it was cancelled.
_LOOK = 0.1


class HostLost(Exception):
    """The host of a trial died, or there is none left to run it."""


class TrialJob(Cancellable, Protocol):
    """Hears of a trial."""

    def phase_ended(self, phase: Literal["setup", "run"], failed: bool) -> None:
        """A phase, or the trial during it, has ended."""

    def warn(self, text: str) -> None:
        """A warning for the user."""

    def packages_listed(self, listing: dict[str, Any]) -> None:
        """The installed distributions, once for each host and list."""


class TrialHost:
    """Runs trials on this host; shared by its slots."""

    def __init__(self, resources: Resources, hosts: int = 1, node_store: tuple[str, int] | None = None) -> None:
        self.allocator = Allocator(resources, hosts)
        self.zygotes = CellZygotes(resources.slots)
        self.temporary = TemporaryFolders(os.getppid() if under_launcher() else None)
        self.node_store = None if node_store is None else NodeStore(*node_store)
        #: Working directories that trials share; of several workers, the first one looks.
        self._shared: dict[str, SharedFolder] | None = {} if resources.worker == 0 and own_rank() == 0 else None
        self._lock = threading.Lock()
        self._preparing: dict[str, threading.Lock] = {}
        self._prepared: dict[str, PreparedCell] = {}
        #: Digests of the lists of distributions that were passed on.
        self._listed: set[str] = set()
        #: Environments that trials were found not to run in.
        self._warned: set[str] = set()

    def prepare(self, order: TrialOrder, slot: int, job: Cancellable) -> PreparedCell:
        """Import the workload in the zygote of a cell, and plan how its trials start; once for each cell.

        Raises:
            START_FAILURES: they cannot be started.
            LeaseCancelled, ZygoteUnwanted: the job was cancelled.
        """
        with self._lock:
            preparing = self._preparing.setdefault(order.key, threading.Lock())
        while not preparing.acquire(timeout=_LOOK):
            if job.cancelled:
                raise ZygoteUnwanted("its start was cancelled")
        try:
            if order.key not in self._prepared:
                check(order)
                self._prepared[order.key] = self._prepare(order, slot, job)
        finally:
            preparing.release()
        return self._prepared[order.key]

    def _prepare(self, order: TrialOrder, slot: int, job: Cancellable) -> PreparedCell:
        prepare_events()  # before a trial runs: an event that waits for it would be late
        try:
            with self.allocator.allocate(job, slot, 1) as allocation:
                cell = self.zygotes.of(order, allocation).prepare(order, allocation, lambda: not job.cancelled)
        except ZygoteError as error:
            if -(error.returncode or 0) in process_tree.TERMINATIONS:
                _wait_for_cancel(job)
            raise
        self.allocator.check_need(order.spec.workload.name, cell.plan.nproc)
        return replace(cell, imposes=self.allocator.imposes(cell.plan.nproc))

    def run(self, order: TrialOrder, slot: int, job: TrialJob) -> TrialResult:
        """Run one trial of a prepared cell; ``job`` hears of its phases and warnings."""
        spec = order.spec
        # One device per rank.
        need = self.prepare(order, slot, job).plan.nproc
        with self.allocator.allocate(job, slot, need, cell_name(spec)) as allocation:
            trial = ProcessTrial(order, allocation, self.zygotes, self.temporary, self.node_store)
            job.on_cancel(trial.interrupt)
            shared = self._shared_folder(order)
            trial.start()
            for text in self.zygotes.take_warnings():
                job.warn(text)
            listing = trial.packages
            if listing is not None and listing["digest"] not in self._listed:
                self._listed.add(listing["digest"])
                job.packages_listed(listing)
            phases: tuple[Literal["setup", "run"], ...] = ("setup", "run")
            for phase in phases:
                trial.wait(phase)
                self._warn_of_claims(spec, trial.seen.env, job)
                job.phase_ended(phase, trial.seen.failed_in(phase))
            record = trial.finish()
            if shared is not None and (warning := shared.warning()) is not None:
                record = record.model_copy(update={"warnings": [*record.warnings, warning]})
            if trial.stuck:
                self.allocator.quarantine(allocation, trial.stuck)
        return record

    def _shared_folder(self, order: TrialOrder) -> SharedFolder | None:
        if self._shared is None or order.spec.execution.cwd != "here":
            return None
        here = order.inherited
        with self._lock:
            shared = self._shared.setdefault(here.cwd, SharedFolder(here.cwd, here.results))
        shared.begin()
        return shared

    def _warn_of_claims(self, spec: TrialSpec, env: Mapping[str, Any] | None, job: TrialJob) -> None:
        environment = spec.environment
        if env is None or environment.name in self._warned:
            return
        text = warning_of(environment, check_claims(environment, env))
        if text is not None:
            self._warned.add(environment.name)
            job.warn(text)

    def close(self) -> None:
        """End all processes."""
        self.zygotes.close()
        self.temporary.close()
        if self.node_store is not None:
            self.node_store.close()


def _wait_for_cancel(job: Cancellable) -> None:
    cancelled = threading.Event()
    job.on_cancel(lambda why: cancelled.set())
    cancelled.wait(BEHIND)


def cell_name(spec: TrialSpec) -> tuple[str, str]:
    return spec.workload.name, spec.cell


@dataclass(frozen=True)
class Slot:
    """A place of a host where one job runs at a time; ``index`` is its number there, ``number`` that of the host."""

    host: TrialHost
    index: int
    name: str = ""
    number: int = 0


class SlotJob(ABC):
    """One thread runs it, any may cancel it.

    Attributes:
        host: which host has to run it, as the number of that host; ``None`` for any.
        urgent: whether it comes before those that are not.
        cell: of whose jobs each slot takes equally many; ``None`` for one that keeps its place in the queue.
        round: index of the trial in its cell.
        why: why it was cancelled, if it was.
    """

    host: int | None = None
    urgent = False
    cell: tuple[str, str] | None = None
    round = 0

    def __init__(self) -> None:
        self._cancelling = threading.Lock()
        self.why: str | None = None
        self._callbacks: list[Callable[[str], object]] = []

    @abstractmethod
    def run(self, slot: Slot) -> None:
        """Do it. Must not raise."""

    @abstractmethod
    def give_up(self, error: Exception | None = None) -> None:
        """It will not run: it was cancelled before it began, or no host is left, which ``error`` says."""

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.why is not None

    def on_cancel(self, callback: Callable[[str], object]) -> None:
        """Call with the reason, on any thread, once it is cancelled; at once, if it was already."""
        with self._cancelling:
            self._callbacks.append(callback)
            why = self.why
        if why is not None:
            callback(why)

    def cancel(self, why: str) -> None:
        """Call what was registered with ``on_cancel``; once."""
        with self._cancelling:
            if self.why is not None:
                return
            self.why = why
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(why)
