"""A trial as its caller sees it: a slot runs it, or an earlier run has its result."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from pytest_aorta.common.bounded_waits import wait_bounded
from pytest_aorta.launch.host.external_ranks import report_unstarted
from pytest_aorta.launch.host.service import HostLost, TrialOrder
from pytest_aorta.launch.host.start_failure import START_FAILURES, see_start_failure
from pytest_aorta.launch.launch_mode import own_rank
from pytest_aorta.launch.pool import Job, JobPool, Slot
from pytest_aorta.launch.record import build_record, logs_in
from pytest_aorta.launch.request import request_of
from pytest_aorta.probe.snapshot import utc_now
from pytest_aorta.runtime.resources.leases import LeaseCancelled
from pytest_aorta.runtime.zygote import ZygoteUnwanted
from pytest_aorta.trials.events import Phase
from pytest_aorta.trials.outcome import Observed, conclude, interruption, was_terminated
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec


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


class SlotTrial(Job):
    """A trial that a slot runs. ``begin``, ``phase_ended``, ``warn`` and ``on_packages`` are called on its thread.

    Attributes:
        folder: for its artifacts.
        started: whether a slot has taken it.
        place: the name of the slot, or of the host.
        on_start: called just before it starts.
        on_packages: called with the list of installed distributions, once for each host and list.
        make_room: called before anything is put into the folder of a trial that could not start; whether it may be.
    """

    resumed = False

    def __init__(self, order: TrialOrder, folder: Path, pool: JobPool) -> None:
        super().__init__()
        self.order = order
        self.spec = order.spec
        self.folder = folder
        self.started = False
        self.place = ""
        self.on_start: Callable[[SlotTrial], object] = lambda trial: None
        self.on_packages: Callable[[dict[str, Any]], object] = lambda listing: None
        self.make_room: Callable[[], bool] = lambda: True
        self._pool = pool
        self._changed = threading.Condition()
        self._ended: dict[str, bool] = {}
        self._warnings: list[str] = []
        self._over = False
        self._error: BaseException | None = None
        self._submitted_at = utc_now()
        self._record: TrialResult | None = None

    # On the slot's thread

    def run(self, slot: Slot) -> None:
        """Run it on a slot."""
        try:
            slot.host.prepare(self.order, slot.index, self)
            self.place = slot.name
            self.on_start(self)
            self.started = True
            self._settle(slot.host.run(self.order, slot.index, self))
        except HostLost as error:
            if self.started:
                self._settle(error=error)
            else:
                self._pool.submit(self, urgent=True)  # to another host
        except BaseException as error:
            self._settle(error=error)

    def give_up(self, error: Exception | None = None) -> None:
        """It will not run."""
        self._settle(error=error)

    def phase_ended(self, phase: Literal["setup", "run"], failed: bool) -> None:
        """A phase, or the trial during it, has ended."""
        with self._changed:
            self._ended[phase] = not failed
            self._changed.notify_all()

    def warn(self, text: str) -> None:
        """A warning for the user."""
        with self._changed:
            self._warnings.append(text)

    def _settle(self, record: TrialResult | None = None, error: BaseException | None = None) -> None:
        with self._changed:
            self._record, self._error, self._over = record, error, True
            self._changed.notify_all()

    # On that of the caller

    def wait(self, phase: str) -> bool:
        """Block until ``phase`` has ended, or the trial has; whether the phase has succeeded."""
        with self._changed:
            wait_bounded(partial(self._changed.wait_for, lambda: phase in self._ended or self._over))
            return self._ended.get(phase, False)

    def got_through(self, phase: str) -> bool:
        """Whether ``phase`` has succeeded already."""
        return self._ended.get(phase, False)

    def failed(self) -> bool:
        """Whether it has failed already."""
        return self._over or not all(self._ended.values())

    def is_over(self) -> bool:
        """Whether its processes are gone."""
        return self._over

    def take_warnings(self) -> list[str]:
        """Warnings for the user since the last call."""
        with self._changed:
            taken, self._warnings = self._warnings, []
        return taken

    def interrupt(self, why: str) -> None:
        """End it, wherever it is."""
        self._pool.cancel(self, why)

    def finish(self) -> TrialResult:
        """Block until its processes are gone; the record. Again: the same."""
        with self._changed:
            wait_bounded(partial(self._changed.wait_for, lambda: self._over))
        if self._record is None:
            self._record = self._build_lost()
        return self._record

    def _phase(self) -> Phase:
        """The phase of which the last event spoke."""
        if not self.started:
            return "launch"
        return "cleanup" if "run" in self._ended else "run" if "setup" in self._ended else "setup"

    def _build_lost(self) -> TrialResult:
        """The record of a trial that could not start, or was lost with its host."""
        seen, has_logs = Observed(), self.started  # else what lies there is of an earlier run
        error, why = self._error, self.why or "not wanted any more"
        if error is None or isinstance(error, LeaseCancelled | ZygoteUnwanted):
            seen.lost = interruption(self._phase(), why)
        elif isinstance(error, HostLost):
            what = "the host that ran this trial died" if self.started else "there is no host left to run it"
            seen.lost = {"phase": self._phase(), "kind": "exception", "message": f"{what}: {error}"}
        elif isinstance(error, START_FAILURES):
            has_logs = has_logs or self.make_room()
            see_start_failure(seen, error, self.spec.workload.target, self.folder if has_logs else None)
        else:
            trace = "".join(traceback.format_exception(error))
            kind, text = type(error).__name__, str(error)
            seen.lost = {"phase": self._phase(), "kind": "exception", "type": kind, "message": text, "traceback": trace}
        if self.cancelled and was_terminated(seen.lost):  # a batch system sends its signals to all processes of a job
            seen.lost = interruption(self._phase(), why)
        logs = logs_in(self.folder) if has_logs else {}
        if isinstance(error, START_FAILURES) and own_rank() > 0 and (failure := conclude(seen)[1]) is not None:
            with contextlib.suppress(OSError):
                report_unstarted(self.folder, own_rank(), failure)
        return build_record(
            self.spec,
            seen,
            started_at=self._submitted_at,
            artifacts=logs,
            stacks=logs.get("stacks"),
            request=request_of(self.spec, self.order.inherited, timeout=self.order.timeout),
        )


class ResumedTrial:
    """Ends every phase as the record has it; the record gets the name that the trial has in this plan."""

    resumed = True
    #: It never takes a slot.
    started = False

    def __init__(self, spec: TrialSpec, record: TrialResult) -> None:
        self.spec = spec
        self._record = record.model_copy(update={"trial_id": spec.trial_id})

    def wait(self, phase: str) -> bool:
        """Whether the trial got through ``phase`` (``setup``, ``run``)."""
        return self.got_through(phase)

    def got_through(self, phase: str) -> bool:
        """Whether ``phase`` has ended well."""
        record = self._record
        if record.exit_status == "ok":
            return True
        if phase == "run":
            return False
        # A rank may have failed in its setup while rank 0, whose phases count, was in its run.
        failed_here = record.failure is not None and record.failure.phase == "setup" and "run" not in record.phases_sec
        return "setup" in record.phases_sec and not failed_here

    def failed(self) -> bool:
        """Whether it has failed."""
        return self._record.exit_status != "ok"

    def interrupt(self, why: str) -> None:
        """Nothing runs."""

    def finish(self) -> TrialResult:
        """The record."""
        return self._record

    def take_warnings(self) -> list[str]:
        """None: the earlier run has shown them."""
        return []
