"""A trial that was submitted to the engine, as its caller sees it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aorta.common.bounded_waits import wait_bounded
from pytest_aorta.launch.diagnosis.traces import ImportHang
from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.host.external_ranks import report_unstarted
from pytest_aorta.launch.job_messages import JobEvent, TrialOrder, broken_cell
from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.launch.record import build_record, logs_in
from pytest_aorta.launch.request import request_of
from pytest_aorta.probe.snapshot import utc_now
from pytest_aorta.runtime.records import Outcome, TaskRecord
from pytest_aorta.trials.events import FailureData, Phase
from pytest_aorta.trials.outcome import Observed, conclude, exit_failure, interruption, was_terminated
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

if TYPE_CHECKING:
    from pytest_aorta.runtime.handles import TaskRef


class RunningTrial(Protocol):
    """A trial that was started, or need not run because an earlier run has its result."""

    spec: TrialSpec
    #: Whether the result is that of an earlier run.
    resumed: bool
    #: Whether it runs, or has run.
    started: bool

    def wait(self, phase: str) -> bool:
        """Block until ``phase`` (``setup``, ``run``) has ended, or the trial has; whether the phase has succeeded."""

    def got_through(self, phase: str) -> bool:
        """Whether ``phase`` has succeeded already."""

    def failed(self) -> bool:
        """Whether it has failed already."""

    def interrupt(self, why: str) -> None:
        """End it now, because of ``why``; without a result it is ``infrastructure_failed``."""

    def finish(self) -> TrialResult:
        """Block until its processes are gone; the record."""

    def take_warnings(self) -> list[str]:
        """Warnings for the user since the last call."""


class SlotTrial:
    """A trial that is a job of the engine. Its events come on other threads."""

    resumed = False

    def __init__(self, spec: TrialSpec, folder: Path) -> None:
        self.spec = spec
        self.folder = folder
        self._changed = threading.Condition()
        self._ended: dict[str, bool] = {}
        self._warnings: list[str] = []
        self._settled: TaskRecord | None = None
        self._ref: TaskRef | None = None
        self._why: str | None = None
        self._submitted_at = utc_now()
        self._order: TrialOrder | None = None
        self._record: TrialResult | None = None
        #: Called with the list of installed distributions, once for each host and list.
        self.on_packages: Callable[[dict[str, Any]], object] = lambda listing: None
        #: Whether something may be put into its folder although it has not started.
        self.make_room: Callable[[], bool] = lambda: True
        #: Whether a slot has taken it; the name of the slot, or of the host.
        self.started = False
        self.place = ""

    def follow(self, ref: TaskRef, order: TrialOrder) -> None:
        """``ref`` is its task, with ``order`` as its payload."""
        self._ref = ref
        self._order = order
        ref.when_settled(self._settle)

    def begin(self, place: str, prepare: Callable[[SlotTrial], None] | None) -> None:
        """Called when the slot ``place`` takes it."""
        self.place = place
        if prepare is not None:
            prepare(self)
        self.started = True

    def receive(self, event: JobEvent) -> None:
        """Take in one event of the job."""
        if event["type"] == "file":
            self._write(event["name"], event["data"])
            return
        if event["type"] == "packages":
            self.on_packages(event["listing"])
            return
        with self._changed:
            if event["type"] == "warning":
                self._warnings.append(event["text"])
            else:
                self._ended[event["phase"]] = not event["failed"]
            self._changed.notify_all()

    def _write(self, name: str, data: bytes) -> None:
        """Append to a file of the trial's folder; ignores paths outside of that folder."""
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            return
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def _settle(self, record: TaskRecord) -> None:
        with self._changed:
            self._settled = record
            self._changed.notify_all()

    def wait(self, phase: str) -> bool:
        """Block until ``phase`` has ended, or the trial has; whether the phase has succeeded."""
        with self._changed:
            wait_bounded(partial(self._changed.wait_for, lambda: phase in self._ended or self._settled is not None))
            return self._ended.get(phase, False)

    def got_through(self, phase: str) -> bool:
        """Whether ``phase`` has succeeded already."""
        return self._ended.get(phase, False)

    def failed(self) -> bool:
        """Whether it has failed already."""
        return self._settled is not None or not all(self._ended.values())

    def is_over(self) -> bool:
        """Whether its processes are gone."""
        return self._settled is not None

    def take_warnings(self) -> list[str]:
        """Warnings for the user since the last call."""
        with self._changed:
            taken, self._warnings = self._warnings, []
        return taken

    def interrupt(self, why: str) -> None:
        """End it, wherever it is."""
        self._why = self._why or why
        if self._ref is not None:
            self._ref.cancel(why)

    def finish(self) -> TrialResult:
        """Block until its processes are gone; the record. Again: the same."""
        with self._changed:
            wait_bounded(partial(self._changed.wait_for, lambda: self._settled is not None))
        if self._record is None:
            assert self._settled is not None
            self._record = self._build(self._settled)
        return self._record

    def _phase(self) -> Phase:
        """The phase of which the last event spoke."""
        if not self.started:
            return "launch"
        return "cleanup" if "run" in self._ended else "run" if "setup" in self._ended else "setup"

    def _build(self, settled: TaskRecord) -> TrialResult:
        if settled.outcome is Outcome.SUCCESS:
            return TrialResult.from_dict(settled.payload)
        seen, has_logs = Observed(), self.started  # else what lies there is of an earlier run
        broken = broken_cell(settled)
        if broken is not None and "hang" in broken:
            has_logs = has_logs or self.make_room()
            ImportHang(**broken["hang"]).see(seen, self.spec.workload.target, self.folder if has_logs else None)
        else:
            seen.lost = _lost(settled, self._why, self._phase())
        logs = logs_in(self.folder) if has_logs else {}
        if broken is not None and own_rank() > 0 and (failure := conclude(seen)[1]) is not None:
            with contextlib.suppress(OSError):
                report_unstarted(self.folder, own_rank(), failure)
        order = self._order
        inherited = (None if order is None else order.inherited) or Inherited.now(origin=self.spec.origin)
        return build_record(
            self.spec,
            seen,
            started_at=self._submitted_at,
            artifacts=logs,
            stacks=logs.get("stacks"),
            request=request_of(self.spec, inherited, timeout=None if order is None else order.timeout),
        )


def _lost(settled: TaskRecord, why: str | None, phase: Phase) -> FailureData:
    """The ``failure`` of a trial whose job gave no record."""
    lost = _lost_otherwise(settled, why, phase)
    # A batch system sends its signals to all processes of a job.
    return interruption(lost["phase"], why) if why is not None and was_terminated(lost) else lost


def _lost_otherwise(settled: TaskRecord, why: str | None, phase: Phase) -> FailureData:
    failure = settled.failure
    if settled.outcome is Outcome.CANCELLED or failure is None:
        return interruption(phase, why or "not wanted any more")
    if (broken := broken_cell(settled)) is not None:
        return exit_failure(broken["phase"], broken["returncode"], broken["error"] or {"message": broken["message"]})
    if settled.outcome is Outcome.ENDPOINT_FAILURE:
        what = "there is no host left to run it" if phase == "launch" else "the host that ran this trial died"
        return {"phase": phase, "kind": "exception", "message": f"{what}: {failure.message}"}
    lost: FailureData = {"phase": phase, "kind": "exception", "type": failure.type, "message": failure.message}
    return {**lost, "traceback": failure.traceback} if failure.traceback else lost
