"""The zygotes of one host, from which the trials of each cell are forked."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_aorta.launch.environment import PreparedCell, WorkloadInfo, of_start, zygote_spec
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.host.starts import StartPlan, ZygoteStart
from pytest_aorta.launch.job import TrialJob
from pytest_aorta.launch.launch_mode import is_command, resolve_launch
from pytest_aorta.runtime.zygote import StartLimits, Zygote, ZygoteError, ZygoteSpec, ZygoteTimeout, ZygoteUnwanted
from pytest_aorta.runtime.zygote_pool import ZygotePool
from pytest_aorta.trials.execution import Resources
from pytest_aorta.trials.loading import ConfigError
from pytest_aorta.trials.outcome import Observation
from pytest_aorta.trials.seeding import rank_hash_seed

_log = logging.getLogger(__name__)

#: Zygotes kept warm per slot.
_WARM = 8

#: Seconds that imports in advance may take.
_LEARNING = 60.0

#: Returns whether the caller has stopped waiting.
Cancelled = Callable[[], bool]


class CellZygotes:
    """The zygotes of all cells; shared by the slots of the host. Thread-safe.

    Args:
        resources: of the run.
        hosts: number of hosts that share the trials, of which this one is ``number``.
    """

    def __init__(self, resources: Resources, hosts: int = 1, number: int = 0) -> None:
        self.pool = ZygotePool(_WARM * resources.slots)
        self.lock = threading.Lock()
        self._first = number * resources.workers + resources.worker
        self._step = hosts * resources.workers
        # A zygote may be started before its trial on a core that no slot has.
        free = len(os.sched_getaffinity(0)) - resources.slots * resources.workers
        self._free_cores = threading.Semaphore(free) if free > 0 else None
        self._closed = False
        self._cells: dict[str, CellZygote] = {}
        self._plans: dict[str, StartPlan] = {}
        #: All warnings; and those not taken yet.
        self._warnings: set[str] = set()
        self._new: list[str] = []

    def of(self, job: TrialJob, allocation: Allocation) -> CellZygote:
        """The zygotes of a trial's cell for its devices. Raises ``EnvironmentUnusable``."""
        spec, execution = job.zygote, job.spec.execution
        if allocation.threads or allocation.devices:
            spec = zygote_spec(job.spec, job.inherited, allocation.threads, allocation.devices)
        isolation = execution.isolation
        if isolation == "auto" and is_command(job.spec.workload.target):
            isolation = "fork"  # of the process that watches the command; the command itself starts as typed
        with self.lock:
            plan = self._plans.get(job.key)
            if plan is None:
                trials = job.spec.cell_trials
                plan = StartPlan(isolation, trials, self._first, self._step, execution.zygotes)
                self._plans[job.key] = plan
            key = f"{isolation} {execution.isolation} {spec.key}"
            return self._cells.setdefault(key, CellZygote(self, spec, plan))

    def run_ahead(self, begin: Callable[[Cancelled], object]) -> None:
        """Call ``begin`` on a thread of its own once a core is free that no slot and no other start uses."""
        free = self._free_cores
        if free is None:
            return

        def wait_and_begin() -> None:
            with free:
                if not self._closed:
                    begin(lambda: self._closed)

        threading.Thread(target=wait_and_begin, name="aorta-start", daemon=True).start()

    def warn(self, text: str) -> None:
        with self.lock:  # once: a workload is imported again for every cell, and for every set of devices
            if text not in self._warnings:
                self._warnings.add(text)
                self._new.append(text)

    def take_warnings(self) -> list[str]:
        """Warnings since the last call, such as which module cannot be forked, and why."""
        with self.lock:
            new, self._new = self._new, []
        return new

    def close(self) -> None:
        self._closed = True
        self.pool.close()


@dataclass(eq=False)
class Source:
    """A zygote of a cell from which trials are forked, and its start in the plan.

    ``learned``: modules that it imports in advance. ``users``: number of its running trials. ``ranks``: specifications
    of the zygotes of ranks 1 and up; each has a hash seed of its own, as ranks that are programs have.
    """

    start: ZygoteStart
    learned: tuple[str, ...] = ()
    spec: ZygoteSpec | None = None
    zygote: Zygote | None = None
    users: int = 0
    ranks: tuple[ZygoteSpec, ...] = ()

    def has_no_further_trial(self, job: TrialJob) -> bool:
        """Whether a trial is the last one from this source: then its process may exit as an interpreter does."""
        spec = job.spec
        is_last = plan_step(job) == 1 and spec.trial_index + 1 == spec.cell_trials
        return self.start.is_spent or (is_last and spec.execution.isolation == "auto")


class CellZygote:
    """The zygotes of the trials of a cell with equal devices."""

    def __init__(self, zygotes: CellZygotes, spec: ZygoteSpec, plan: StartPlan) -> None:
        self._zygotes = zygotes
        self._plan = plan
        #: After the preparation, it has the variables that the workload declares for the start of its process.
        self._spec = spec
        self._info: WorkloadInfo | None = None
        #: Facts of machine and software from the first start, handed to the later ones.
        self._static: dict[str, Any] | None = None
        self._error: ZygoteError | None = None
        self._is_forkable = True
        #: Number of ranks with zygotes of their own.
        self._nproc = 1
        #: The source that several trials share now, and the one that waits for a trial, perhaps still starting.
        self._shared: Source | None = None
        self._waiting: Source | None = None
        #: Modules that trials imported and that later zygotes import in advance; whether the list is complete.
        self._learned: tuple[str, ...] = ()
        self.has_learned = False
        self._note: str | None = None

    @property
    def reason(self) -> str:
        return self._plan.reason

    def prepare_cell(self, job: TrialJob, allocation: Allocation, cancelled: Cancelled) -> PreparedCell:
        """Import the workload if no zygote has yet, and plan the launch of its trials.

        Raises ``ConfigError``, ``LaunchModeError`` or a ``ZygoteError``, which is ``ZygoteUnwanted`` once it is
        cancelled.
        """
        workload, limits, pool, warn = job.spec.workload, start_limits(job), self._zygotes.pool, self._zygotes.warn
        longest, spec = min(limits.load or limits.total, limits.total), self._spec
        while self._info is None:
            error = self._error
            if error is not None and not (isinstance(error, ZygoteTimeout) and error.limit < longest):
                raise error
            with self._zygotes.lock:
                if self._waiting is None:
                    self._waiting = Source(self._plan.new_start())
                first = self._waiting
            first.spec = self._numbered(spec, job, first)
            try:
                zygote = pool.acquire(first.spec, limits, cancelled)
            except ZygoteUnwanted:
                raise
            except ZygoteError as failed:
                self._error = failed
                continue
            info = WorkloadInfo.model_validate(zygote.info)
            pool.release(zygote)
            missing = dict(info.startup_variables)
            for name in missing.keys() & spec.environ.keys():
                del missing[name]
            if missing:
                spec = replace(spec, environ={**missing, **spec.environ})
                continue
            first.zygote, self._static = zygote, zygote.info.get("static")
            _log.info("the first zygote of %s is ready, after %.2f s", workload.name, zygote.start_sec)
            self._plan.start_sec.append(zygote.start_sec)
            self._plan.start_cpu_sec = zygote.start_cpu_sec
            for path, digest in info.data_files.items():
                if digest is None:
                    warn(f"data_files of {workload.name} names {path!r}, which is not there")
            self._is_forkable = not zygote.against_forking
            if zygote.against_forking and job.spec.execution.isolation in ("auto", "fork"):
                warn(
                    f"importing {info.source or workload.target} {', '.join(zygote.against_forking)}; a fork would not "
                    f"be safe, so every trial of {workload.name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
            for text in info.config_warnings:
                warn(text)
            around = dict(info.surroundings)
            around["variables"] = variables = dict(around.get("variables", {}))
            for name in allocation.imposed(job.inherited.variables, {}).variables.keys() & variables.keys():
                del variables[name]
            self._spec, self._info = spec, info.model_copy(update={"surroundings": around})
        if self._info.config_error is not None:
            raise ConfigError(self._info.config_error)
        plan = resolve_launch(job.spec, self._info.launch_mode, self._info.min_world_size)
        return PreparedCell(self._info, plan, allocation.imposes)

    def _numbered(self, spec: ZygoteSpec, job: TrialJob, source: Source) -> ZygoteSpec:
        """Specify a start; it gets a hash seed unless it only watches a command."""
        if is_command(job.spec.workload.target) and job.spec.execution.isolation == "auto":
            return spec
        if self._static is not None:
            spec = replace(spec, argument={**spec.argument, "static": self._static})
        return of_start(spec, source.start.index, job.hash_seed(source.start.index))

    def _take(self, trial: int) -> Source:
        """Choose the source of a trial; the caller holds the lock."""
        quota = self._plan.quota(trial)
        shared, learned = self._shared, self._learned if quota > 1 else ()
        if quota == 1 and not self._plan.is_sentinel(trial):
            self._shared = None
        has_room = quota > 1 and shared is not None and shared.start.given < min(quota, shared.start.quota)
        if (
            has_room
            and shared is not None
            and shared.learned == learned
            and (shared.zygote is None or shared.zygote.alive())
        ):
            shared.start.given += 1
            shared.users += 1
            return shared
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.learned != learned:
            self._waiting, waiting = waiting, Source(self._plan.new_start(), learned)
        waiting.start.quota, waiting.start.given, waiting.users = quota, 1, 1
        if quota > 1:
            self._shared = waiting
        return waiting

    def acquire(self, job: TrialJob, allocation: Allocation, seed: int, cancelled: Cancelled) -> Source:
        """Get the source of a trial of the prepared cell; a ``fresh`` one if the workload cannot be forked.

        Imports in advance may take as long as the timeout of the trial that showed them.
        """
        spec, limits, trial = job.spec, start_limits(job), job.spec.trial_index
        if spec.execution.isolation == "spawn" or not self._is_forkable:
            with self._zygotes.lock:
                source = Source(self._plan.new_start(), users=1)
                source.start.given = 1
            fresh = zygote_spec(spec, job.inherited, allocation.threads, allocation.devices, seed)
            source.spec = self._numbered(replace(fresh, environ=self._spec.environ), job, source)
            source.zygote = Zygote(source.spec)
            source.zygote.wait_ready(cancelled=cancelled)
            return source
        with self._zygotes.lock:
            before = self._shared
            source = self._take(trial)
        try:
            self._start(source, job, allocation, limits, cancelled)
        except BaseException:
            with self._zygotes.lock:
                source.users -= 1
                if self._shared is source:
                    self._shared = None
            raise
        if before is not None and before is not source:
            self._retire(before)
        self._start_ahead(job, allocation, limits)
        return source

    def _start(
        self, source: Source, job: TrialJob, allocation: Allocation, limits: StartLimits, cancelled: Cancelled
    ) -> None:
        """Start the zygote of a source if it has none yet."""
        pool = self._zygotes.pool
        own = _LEARNING if job.timeout is None else min(job.timeout, _LEARNING)
        learning = replace(limits, grace=0.0, total=min(limits.total, own + (limits.load or _LEARNING)))
        while True:
            if source.spec is None:
                spec, modules = self._spec, source.learned
                if modules:
                    cores = None if allocation.cores is None else sorted(allocation.cores)
                    spec = replace(spec, argument={**spec.argument, "learned": list(modules), "cores": cores})
                source.spec = self._numbered(spec, job, source)
            modules = source.learned
            try:
                zygote = pool.acquire(source.spec, learning if modules else limits, cancelled)
                break
            except ZygoteUnwanted:
                raise
            except ZygoteError as error:  # what must not be imported is forgotten
                if not modules:
                    raise
                said = str(error) if error.error is None else error.error["message"]
                culprit, _, why = said.partition("\n")[0].partition(": its import in advance ")
                known = why and culprit in modules
                source.learned, source.spec = modules[: modules.index(culprit)] if known else (), None
                with self._zygotes.lock:
                    if self._learned == modules:
                        self._learned = source.learned
                        named = culprit if known else ", ".join(modules)
                        self._note = f"{named}: its import in advance {why or culprit}"
        with self._zygotes.lock:
            if source.zygote is not zygote:
                _log.info("zygote of %s is ready, after %.2f s", job.spec.workload.name, zygote.start_sec)
                source.zygote = zygote
                self._plan.start_sec.append(zygote.start_sec)
                if modules:
                    zygote.load_sec = None  # the trial that showed what to import has that time in its record

    def acquire_ranks(self, source: Source, job: TrialJob, nproc: int, cancelled: Cancelled) -> list[Zygote]:
        """Get the zygotes of the ranks of a source, the source's own first; the caller gives the others back.

        They are started side by side.
        """
        pool, limits, index = self._zygotes.pool, start_limits(job), source.start.index
        with self._zygotes.lock:
            self._nproc = nproc
            is_new = not source.ranks
            if is_new:
                of_ranks = []
                for rank in range(1, nproc):
                    argument = {**self._spec.argument, "rank": rank, "static": self._static}
                    seed = rank_hash_seed(job.hash_seed(index), rank)
                    of_ranks.append(of_start(replace(self._spec, argument=argument, rehearse=None), index, seed))
                source.ranks = tuple(of_ranks)
        started: list[Zygote | ZygoteError] = [ZygoteUnwanted("not started")] * (nproc - 1)

        def start(number: int, spec: ZygoteSpec) -> None:
            try:
                started[number] = pool.acquire(spec, limits, cancelled)
            except ZygoteError as error:
                started[number] = error

        began = time.monotonic()
        # A thread has to live until its zygote is ready.
        threads = [threading.Thread(target=start, args=each, name="aorta-start") for each in enumerate(source.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        zygotes = [each for each in started if isinstance(each, Zygote)]
        for error in started:
            if isinstance(error, ZygoteError):
                for zygote in zygotes:
                    pool.release(zygote)
                raise error
        assert source.zygote is not None
        with self._zygotes.lock:
            if is_new and self._plan.start_sec:
                self._plan.start_sec[-1] += time.monotonic() - began
        return [source.zygote, *zygotes]

    def _start_ahead(self, job: TrialJob, allocation: Allocation, limits: StartLimits) -> None:
        """Start the source of the next trial while this one runs, if a core is free."""
        following, plan = job.spec.trial_index + plan_step(job), self._plan
        with self._zygotes.lock:
            if self._waiting is not None or plan.isolation != "auto" or 0 < plan.trials <= following:
                return
            quota, shared = plan.quota(following), self._shared
            if quota > 1:
                room = shared is not None and shared.start.given < min(quota, shared.start.quota)
                if not self.has_learned or (room and shared is not None and shared.learned == self._learned):
                    return
            source = Source(plan.new_start(), self._learned if quota > 1 else ())
            self._waiting = source

        def begin(cancelled: Cancelled) -> None:
            with contextlib.suppress(ZygoteError):  # which the trial will meet
                self._start(source, job, allocation, limits, cancelled)
                assert source.zygote is not None
                self._zygotes.pool.release(source.zygote)
                if self._nproc > 1:
                    for zygote in self.acquire_ranks(source, job, self._nproc, cancelled)[1:]:
                        self._zygotes.pool.release(zygote)

        self._zygotes.run_ahead(begin)

    def _retire(self, source: Source) -> None:
        """Close the zygotes of a source that gets no more trials, once none of its trials runs."""
        if source.spec is not None and source.users == 0 and self._shared is not source:
            for spec in (source.spec, *source.ranks):
                self._zygotes.pool.discard(spec)

    def release(
        self,
        source: Source,
        seen: Observation,
        *,
        ranks: Sequence[Zygote] = (),
        forked: bool,
        passed: bool | None = None,
        sec: float = 0.0,
    ) -> None:
        """Give back a source when its trial is over, and note in ``seen`` which modules were imported in advance.

        ``forked``: whether the trial was forked, so that its imports can be learned. ``passed``, ``sec``: see
        ``StartPlan.ended``.
        """
        zygote = source.zygote
        assert zygote is not None
        with self._zygotes.lock:
            source.users -= 1
            self._plan.ended(source.start, passed, sec)
        if zygote.spec.fresh:
            zygote.close()
            return
        if forked:
            before = zygote.spec.argument["learned"]
            seen.preloaded = [*zygote.spec.argument["preload"], *before]
            with self._zygotes.lock:
                if (seen.imported or seen.imports_over) and not self.has_learned and self._learned == tuple(before):
                    self._learned += tuple(seen.imported)
                    self.has_learned, self._note = seen.imports_over, seen.not_preloaded
                seen.not_preloaded = self._note
        for used in (zygote, *ranks[1:]):
            self._zygotes.pool.release(used)
        with self._zygotes.lock:
            if self._shared is source and source.start.is_spent:
                self._shared = None
        self._retire(source)


def plan_step(job: TrialJob) -> int:
    """Distance between two trials of a cell on one slot, if slots, workers and hosts take turns."""
    resources = job.spec.resources
    return resources.slots * resources.workers * max(1, len(resources.hosts))


def start_limits(job: TrialJob) -> StartLimits:
    """Limits of a start. Its import may take as long as a trial; the workload's own timeout is known only after it."""
    limits = job.spec.limits
    return StartLimits(load=limits.timeout if job.timeout is None else job.timeout, grace=limits.grace)
