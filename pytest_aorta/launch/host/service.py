"""The jobs that run on the slots of a host, and what they share: zygotes, cores and devices, a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.host.allocation import Allocator, DevicesQuarantined
from pytest_aorta.launch.host.cell_zygotes import CellZygotes
from pytest_aorta.launch.host.process_trial import BEHIND, ProcessTrial
from pytest_aorta.launch.host.temporary import TemporaryFolders
from pytest_aorta.launch.job_messages import (
    BrokenCell,
    FilePiece,
    PackagesListed,
    PhaseEnded,
    TrialOrder,
    WarningIssued,
)
from pytest_aorta.launch.launch_mode import under_launcher
from pytest_aorta.launch.nodes.store import NodeStore
from pytest_aorta.launch.verification import check_claims, warning_of
from pytest_aorta.registry import Environment
from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.resources.used_folders import UsedFolder, make_own
from pytest_aorta.runtime.zygote import ZygoteError, ZygoteTimeout
from pytest_aorta.trials.execution import Resources

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoints.job_slot import JobContext

#: Bytes of a trial's files that travel in one message.
_CHUNK = 2**20

_PHASES: tuple[Literal["setup", "run"], ...] = ("setup", "run")


@dataclass(frozen=True)
class HostOptions:
    """Options of a ``HostService``.

    Attributes:
        resources: of the run, without the specifications of its hosts.
        hosts: number of hosts of the run.
        node_store: host and port of the store at which the nodes of trials meet, where this host keeps it.
    """

    resources: Resources
    hosts: int = 1
    node_store: tuple[str, int] | None = None


class HostService:
    """Shared by the jobs of a host; made when its worker starts, closed at the end of the run."""

    def __init__(self, options: HostOptions) -> None:
        self.allocator = Allocator(options.resources, options.hosts)
        self.zygotes = CellZygotes(options.resources.slots)
        self.temporary = TemporaryFolders(os.getppid() if under_launcher() else None)
        #: Ranks of a trial on this host, by workload; known once a cell of it has been prepared.
        self.ranks: dict[str, int] = {}
        #: Digests of the lists of distributions that jobs have emitted.
        self._listed: set[str] = set()
        #: Environments that trials were found not to run in.
        self._warned: set[str] = set()
        self._folder: UsedFolder | None = None
        self.node_store = None if options.node_store is None else NodeStore(*options.node_store)

    @property
    def folder(self) -> Path:
        """For files of trials whose results belong to another host."""
        if self._folder is None:
            self._folder = UsedFolder(make_own)
        return self._folder.path

    def new_packages(self, listing: dict[str, Any] | None) -> dict[str, Any] | None:
        """The list of distributions of a cell, unless it has been here already."""
        if listing is None or listing["digest"] in self._listed:
            return None
        self._listed.add(listing["digest"])
        return listing

    def new_warning(self, environment: Environment, env: Mapping[str, Any] | None) -> str | None:
        """That a trial does not run in its environment, by its snapshot; once for each environment."""
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
        if self._folder is not None:
            self._folder.close()


class CellBroken(Exception):
    """The trials of a cell cannot be started."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        lost = error if isinstance(error, ZygoteError) else ZygoteError(str(error))
        self.details: BrokenCell = {
            "kind": type(error).__name__,
            "message": str(error),
            "phase": lost.phase,
            "error": lost.error,
            "returncode": lost.returncode,
        }
        if isinstance(error, ZygoteTimeout):
            self.details["hang"] = {"limit": error.limit, "stacks": error.stacks, "output": error.output}


def prepare_cell(job: JobContext, order: TrialOrder) -> dict[str, Any]:
    """A job: import the workload in the zygote of a cell, and plan how its trials start.

    Returns a ``PreparedCell`` as JSON.

    Raises:
        CellBroken: they cannot be started.
    """
    service: HostService = job.service
    spec, inherited = order.spec, order.inherited or Inherited.now(service.folder)
    cancelled = threading.Event()
    job.on_cancel(lambda why: cancelled.set())
    try:
        with service.allocator.allocate(job, 1) as allocation:
            job.on_cancel(lambda why: service.zygotes.abandon(spec, inherited, allocation))
            cell = service.zygotes.prepare(spec, inherited, allocation, order.timeout)
            if allocation.device_ids:  # it may use what it has no lease for any more
                service.zygotes.close_held(spec, inherited, allocation)
        service.allocator.check_need(spec.workload.name, cell.plan.nproc)
        service.ranks[spec.workload.name] = cell.plan.nproc
        cell = replace(cell, imposes=service.allocator.imposes(cell.plan.nproc))
    except Exception as error:
        if isinstance(error, ZygoteError) and -(error.returncode or 0) in process_tree.TERMINATIONS:
            cancelled.wait(BEHIND)
        raise CellBroken(error) from error
    return cell.to_plain()


def run_trial(job: JobContext, order: TrialOrder) -> dict[str, Any]:
    """A job: run one trial; its record as plain data.

    Emits ``PhaseEnded`` after setup and run, ``WarningIssued``, and ``FilePiece`` for a trial of another host.
    """
    service: HostService = job.service
    spec, inherited = order.spec, order.inherited or Inherited.now(service.folder)
    local = order.folder.is_absolute()
    # The folder's name is the one that it will have at home: records name files by it.
    folder = order.folder if local else Path(tempfile.mkdtemp(dir=service.folder)) / order.folder.name
    try:
        # One device per rank.
        with service.allocator.allocate(job, service.ranks.get(spec.workload.name, 1)) as allocation:
            job.on_cancel(lambda why: service.zygotes.abandon(spec, inherited, allocation))
            trial = ProcessTrial(spec, folder, service.zygotes, service.temporary, service.node_store)
            trial.start(inherited, allocation, order.timeout)
            job.on_cancel(trial.interrupt)
            for text in service.zygotes.take_warnings():
                job.emit(WarningIssued(type="warning", text=text))
            if (listing := service.new_packages(trial.packages)) is not None:
                job.emit(PackagesListed(type="packages", listing=listing))
            for phase in _PHASES:
                trial.wait(phase)
                if (warning := service.new_warning(spec.environment, trial.seen.env)) is not None:
                    job.emit(WarningIssued(type="warning", text=warning))
                job.emit(PhaseEnded(type="phase", phase=phase, failed=trial.seen.failed_in(phase)))
            record = trial.finish().to_dict()
            if trial.stuck:
                service.allocator.quarantine(allocation, trial.stuck)
    except DevicesQuarantined as error:
        raise CellBroken(error) from error
    if not local:
        _send_files(job, folder)
        shutil.rmtree(folder.parent, ignore_errors=True)
    return record


def _send_files(job: JobContext, folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as file:
                while True:
                    data = file.read(_CHUNK)
                    job.emit(FilePiece(type="file", name=name, data=data))
                    if len(data) < _CHUNK:
                        break
