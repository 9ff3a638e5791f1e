"""What runs as a job on a slot: the preparation of a cell, and one trial."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.host.service import DevicesQuarantined, TrialService
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError
from pytest_aorta.trials.conversion import encode_non_finite

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoints.job_slot import JobContext
    from pytest_aorta.trials.spec import TrialSpec

#: Bytes of a trial's files that travel in one message.
_CHUNK = 2**20


@dataclass(frozen=True)
class TrialOrder:
    """One trial, for the host that runs it.

    Attributes:
        spec: what to run.
        folder: for its artifacts, or only its name, when that is another host's.
        timeout: deadline in seconds that overrides the spec's.
        inherited: what it has of the process that asks for it; ``None`` for that of the host's own.
    """

    spec: TrialSpec
    folder: Path
    timeout: float | None = None
    inherited: Inherited | None = None


class CellBroken(Exception):
    """The trials of a cell cannot be started. ``details`` says in which phase that showed, and how."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        lost = error if isinstance(error, ZygoteError) else ZygoteError(str(error))
        self.details: dict[str, Any] = {
            "kind": type(error).__name__,
            "message": str(error),
            "phase": lost.phase,
            "error": lost.error,
            "returncode": lost.returncode,
        }


def prepare_cell(job: JobContext, order: TrialOrder) -> dict[str, Any]:
    """Import the workload once, in the process that the cell's trials are forked from, and check how they start.

    Returns ``need``, the number of devices that a trial takes, and as plain data what ``Checked`` is made of.

    Raises:
        CellBroken: they cannot be started.
    """
    service: TrialService = job.service
    name = order.spec.workload.name
    try:
        with service.seat(job, 1) as seat:
            job.on_cancel(lambda why: service.runner.abandon(order.spec, order.inherited, seat))
            description, launch = service.runner.check(order.spec, order.inherited, seat)
        service.check_need(name, launch.nproc)
        service.needs[name] = launch.nproc
    except Exception as error:
        raise CellBroken(error) from error
    return {
        "need": launch.nproc,
        "source_digest": description["source_digest"],
        "config": encode_non_finite(description["config"]),  # it may come from another host, as JSON
        "nproc": launch.nproc,
    }


def run_trial(job: JobContext, order: TrialOrder) -> dict[str, Any]:
    """Run one trial; its record as plain data.

    Emits ``{"ended": phase, "failed": bool}`` after setup and run, ``{"warning": text}``, and, when the results
    belong to another host, ``{"file": name, "data": bytes}`` in pieces.
    """
    service: TrialService = job.service
    away = not order.folder.is_absolute()
    # Of the same name as at home: records name files by it.
    room = Path(tempfile.mkdtemp(dir=service.folder)) if away else None
    folder = order.folder if room is None else room / order.folder.name
    try:
        with service.seat(job, _need(service, order)) as seat:
            job.on_cancel(lambda why: service.runner.abandon(order.spec, order.inherited, seat))
            running = service.runner.launch(order.spec, folder, order.timeout, order.inherited, seat)
            job.on_cancel(running.interrupt)
            for text in service.runner.take_warnings():
                job.emit({"warning": text})
            for phase in ("setup", "run"):
                running.wait(phase)
                job.emit({"ended": phase, "failed": running.seen.failed_in(phase)})
            record = running.finish().to_dict()
            if running.stuck:
                service.quarantine(seat, running.stuck)
    except DevicesQuarantined as error:
        raise CellBroken(error) from error
    if room is not None:
        _send_files(job, folder)
        shutil.rmtree(room, ignore_errors=True)
    return record


def _need(service: TrialService, order: TrialOrder) -> int:
    """Devices that a trial takes: one per rank."""
    if service.leases is None:
        return 0
    return service.needs.get(order.spec.workload.name, 1)


def _send_files(job: JobContext, folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as file:
                while True:
                    data = file.read(_CHUNK)
                    job.emit({"file": name, "data": data})
                    if len(data) < _CHUNK:
                        break
