"""A trial from the queue to its result, whichever slot, host or earlier run the result comes from."""

from __future__ import annotations

import contextlib
import functools
import logging
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from threading import Event
from typing import Any, Literal

from pytest_aorta.common.interrupts import PIECE
from pytest_aorta.common.texts import utc_now
from pytest_aorta.launch.child.rank_files import report_unstarted
from pytest_aorta.launch.diagnosis.traces import see_import_hang
from pytest_aorta.launch.environment import EnvironmentUnusable, Inherited, zygote_spec
from pytest_aorta.launch.launch_mode import LaunchModeError, own_rank
from pytest_aorta.launch.record import build_record, logs_in, request_of
from pytest_aorta.runtime.resources.leases import LeaseCancelled
from pytest_aorta.runtime.zygote import ZygoteError, ZygoteSpec, ZygoteTimeout, ZygoteUnwanted
from pytest_aorta.trials.loading import ConfigError
from pytest_aorta.trials.outcome import (
    HOST_DIED,
    NO_HOST,
    Observation,
    conclude,
    exit_failure,
    interruption,
    was_terminated,
)
from pytest_aorta.trials.records import Failure, Phase
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.seeding import hash_seed
from pytest_aorta.trials.spec import TrialSpec

_log = logging.getLogger(__name__)


class HostLost(Exception):
    """The host of a trial died, or no host is left to run it."""


class DevicesQuarantined(Exception):
    """Processes that cannot be ended hold so many devices that too few are left."""


#: Errors that prevent every trial of a cell: each trial has the error in its record.
START_FAILURES = (ZygoteError, EnvironmentUnusable, ConfigError, LaunchModeError, DevicesQuarantined)


def see_start_failure(seen: Observation, error: Exception, target: str, folder: Path | None) -> None:
    """Note why a trial of ``target`` could not start; stacks of an import that hung go into its ``folder``."""
    if isinstance(error, ZygoteTimeout):
        see_import_hang(seen, target, folder, error.limit, error.stacks, error.output)
        return
    lost = error if isinstance(error, ZygoteError) else ZygoteError(str(error))
    seen.phase = lost.phase
    seen.lost = exit_failure(lost.phase, lost.returncode, lost.error or {"message": str(lost)})


class TrialJob:
    """A trial that is queued, runs, or has ended.

    The thread of its slot calls ``run``, ``phase_ended`` and ``warn``; the thread that wants its result calls ``wait``
    and ``finish``; any thread may call ``interrupt``.

    Attributes:
        spec: what to run.
        folder: for its artifacts.
        inherited: what it has from the process that asks for it; this process, now, if not given.
        timeout: deadline in seconds; replaces the one of ``spec``.
        run_name: name of the run, from which seeds are drawn that are not given.
        resumed: whether its result is the one of an earlier run.
        started: whether a slot has taken it.
        place: name of the slot, or of the host.
        others: the same trial on the other nodes, where it has several.
        pool: the pool in whose queue it is.
        host: number of the host that has to run it; ``None`` for any.
        urgent: whether it comes before jobs that are not urgent.
        cell: each slot takes equally many jobs of each cell; a job without a cell keeps its place in the queue.
        round: index of the trial in its cell.
        cancelled: why it was cancelled, once it was.
        on_start: called just before it starts.
        on_result: makes another record of the one that it has ended with; not of an earlier run's.
        on_packages: called with the list of installed distributions, once for each host and list.
        make_room: called before anything is put into the folder of a trial that could not start; whether it may be.
    """

    def __init__(
        self,
        spec: TrialSpec,
        folder: Path,
        inherited: Inherited | None = None,
        timeout: float | None = None,
        run_name: str = "",
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.inherited = inherited or Inherited.now(origin=spec.origin)
        self.timeout = timeout
        self.run_name = run_name
        self.resumed = self.started = self.urgent = False
        self.place = ""
        self.others: list[TrialJob] = []
        self.pool: Any = None
        self.host: int | None = None
        self.cell: tuple[str, str] | None = None
        self.round = 0
        self.cancelled: Future[str] = Future()
        self.on_start: Callable[[TrialJob], object] = lambda job: None
        self.on_result: Callable[[TrialJob, TrialResult], TrialResult] = lambda job, result: result
        self.on_packages: Callable[[dict[str, Any]], object] = lambda listing: None
        self.make_room: Callable[[], bool] = lambda: True
        self._queued_at = utc_now()
        #: Phases that have ended, and whether well; events for those who wait for them.
        self._ended: dict[str, bool] = {}
        self._until = {"setup": Event(), "run": Event()}
        self._over = Event()
        self._warnings: deque[str] = deque()
        self._error: BaseException | None = None
        self._result: TrialResult | None = None

    @classmethod
    def of_earlier_run(cls, spec: TrialSpec, folder: Path, result: TrialResult) -> TrialJob:
        """A job that has ended with the result of an earlier run; the result gets the trial's name in this plan."""
        job = cls(spec, folder)
        job.resumed = True
        # A rank may have failed in its setup while rank 0, whose phases count, was in its run.
        failed_here = result.failure is not None and result.failure.phase == "setup" and "run" not in result.phases_sec
        is_ok = result.exit_status == "ok"
        job._ended = {"setup": is_ok or ("setup" in result.phases_sec and not failed_here), "run": is_ok}
        job._settle(result.model_copy(update={"trial_id": spec.trial_id}))
        return job

    # What hosts need to know of it

    @property
    def asked(self) -> tuple[TrialSpec, Path, Inherited, float | None, str]:
        """The arguments that make an equal job, in this or another process."""
        return self.spec, self.folder, self.inherited, self.timeout, self.run_name

    def with_spec(self, spec: TrialSpec) -> TrialJob:
        """A job that differs in its spec; it is not queued."""
        return TrialJob(spec, *self.asked[1:])

    def hash_seed(self, number: int) -> int:
        """``PYTHONHASHSEED`` of a start, or of a command, with this number in its cell."""
        origin, seed = self.spec.origin, self.spec.execution.seed
        if origin is not None and origin.hash_seed is not None:
            return origin.hash_seed
        return hash_seed(self.run_name if seed is None else seed, number)

    @functools.cached_property
    def zygote(self) -> ZygoteSpec:
        """What it is forked from where nothing is imposed; raises ``EnvironmentUnusable``."""
        return zygote_spec(self.spec, self.inherited)

    @functools.cached_property
    def key(self) -> str:
        """Cells with equal keys are prepared once. The key has the launch options and the limit of the import too."""
        try:
            key = self.zygote.key
        except EnvironmentUnusable as error:
            key = str(error)  # and the preparation fails with it, on its host
        limit = self.spec.limits.timeout if self.timeout is None else self.timeout
        return f"{key} {self.spec.execution} {limit} {','.join(self.spec.collect)}"

    # On the slot's thread

    def run(self, slot: Any) -> None:
        """Run it on a ``Slot``; never raises."""
        if self._over.is_set():  # it was cancelled meanwhile
            return
        try:
            slot.host.prepare_cell(self, slot.index)
            self.place = slot.name
            self.on_start(self)
            self.started = True
            _log.info("%s takes %s", slot.name or "the slot", self.spec.item_name)
            self._settle(self.on_result(self, slot.host.run(self, slot.index)))
            status = None if self._result is None else self._result.exit_status
            _log.info("%s is over: %s", self.spec.item_name, status)
        except HostLost as error:
            if self.started:
                self._settle(error=error)
            else:
                self.urgent = True
                self.pool.submit(self)  # to another host
        except BaseException as error:
            self._settle(error=error)

    def give_up(self, error: Exception | None = None) -> None:
        """It will not run: it was cancelled before it began, or no host is left, as ``error`` says."""
        self._settle(error=error)

    def phase_ended(self, phase: Literal["setup", "run"], failed: bool) -> None:
        """A phase has ended, or the trial during it."""
        self._ended[phase] = not failed
        self._until[phase].set()

    def warn(self, text: str) -> None:
        """Keep a warning for the user, who gets it from ``take_warnings``."""
        self._warnings.append(text)

    def _settle(self, result: TrialResult | None = None, error: BaseException | None = None) -> None:
        self._result, self._error = result, error
        for event in (self._over, *self._until.values()):
            event.set()

    # On any thread

    def on_cancel(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, on any thread, once it is cancelled; at once, if it was already."""
        self.cancelled.add_done_callback(lambda done: callback(done.result()))

    def cancel(self, why: str) -> None:
        """Call what was registered with ``on_cancel``; once."""
        _log.info("%s is cancelled: %s", self.spec.item_name, why)
        with contextlib.suppress(InvalidStateError):  # again
            self.cancelled.set_result(why)

    def interrupt(self, why: str) -> None:
        """End it, wherever it is; without a result it is ``infrastructure_failed``."""
        for job in (self, *self.others):
            if job.pool is not None:
                job.pool.cancel(job, why)

    # On the caller's thread

    def wait(self, phase: str) -> bool:
        """Block until ``phase`` has ended, or the trial has; whether the phase has succeeded."""
        while not self._until[phase].wait(PIECE):
            pass
        return self._ended.get(phase, False)

    def got_through(self, phase: str) -> bool:
        """Whether ``phase`` has ended well so far."""
        return self._ended.get(phase, False)

    def failed(self) -> bool:
        """Whether it has failed already, or ended."""
        return self._over.is_set() or not all(self._ended.values())

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def take_warnings(self) -> list[str]:
        """Warnings since the last call."""
        taken = []
        while self._warnings:
            taken.append(self._warnings.popleft())
        return taken

    def finish(self) -> TrialResult:
        """Block until its processes are gone; the result. Each further call returns the same."""
        while not self._over.wait(PIECE):
            pass
        if self._result is None:
            self._result = self._lost_result()
        for other in self.others:
            if self._result.failure is not None:
                other.interrupt("the first node has ended")
        for other in self.others:
            other.finish()
        return self._result

    def _phase(self) -> Phase:
        if not self.started:
            return "launch"
        return "cleanup" if "run" in self._ended else "run" if "setup" in self._ended else "setup"

    def _lost_result(self) -> TrialResult:
        seen, has_logs = Observation(), self.started  # else what lies there is of an earlier run
        error, why = self._error, self.cancelled.result() if self.cancelled.done() else "not wanted any more"
        if error is None or isinstance(error, LeaseCancelled | ZygoteUnwanted):
            seen.lost = interruption(self._phase(), why)
        elif isinstance(error, HostLost):
            what = HOST_DIED if self.started else NO_HOST
            seen.lost = Failure(self._phase(), "exception", f"{what}{error}")
        elif isinstance(error, START_FAILURES):
            has_logs = has_logs or self.make_room()
            see_start_failure(seen, error, self.spec.workload.target, self.folder if has_logs else None)
        else:
            trace = "".join(traceback.format_exception(error))
            seen.lost = Failure(self._phase(), "exception", str(error), type(error).__name__, trace)
        # A batch system sends its signals to all processes of a job.
        if self.cancelled.done() and was_terminated(seen.lost):
            seen.lost = interruption(self._phase(), why)
        logs = logs_in(self.folder) if has_logs else {}
        if isinstance(error, START_FAILURES) and own_rank() > 0 and (failure := conclude(seen)[1]) is not None:
            with contextlib.suppress(OSError):
                report_unstarted(self.folder, own_rank(), failure)
        result = build_record(
            self.spec,
            seen,
            started_at=self._queued_at,
            artifacts=logs,
            stacks=logs.get("stacks"),
            request=request_of(self.spec, self.inherited, timeout=self.timeout),
        )
        if isinstance(error, HostLost):  # this process is on another one
            result = result.model_copy(update={"host": None})
        return result
