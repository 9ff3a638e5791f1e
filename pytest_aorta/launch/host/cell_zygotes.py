"""The zygotes of one host: what the trials of each cell are forked from, and its description of the workload."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from pytest_aorta.launch.environment import PreparedCell, TrialOrder, WorkloadInfo, zygote_spec
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.launch_mode import resolve_launch
from pytest_aorta.runtime.zygote import StartLimits, Zygote, ZygoteError, ZygoteSpec, ZygoteTimeout, ZygoteUnwanted
from pytest_aorta.runtime.zygote_pool import ZygotePool
from pytest_aorta.trials.loading import ConfigError
from pytest_aorta.trials.outcome import Observation

#: Zygotes kept warm per slot.
_WARM = 8

#: Seconds that imports in advance may take.
_LEARNING = 60.0

#: Whether something is not waited for any more.
Cancelled = Callable[[], bool]


class CellZygotes:
    """Thread-safe: the trials of all slots of the host share it."""

    def __init__(self, slots: int = 1) -> None:
        self.pool = ZygotePool(_WARM * slots)
        self.lock = threading.Lock()
        self._cells: dict[str, CellZygote] = {}
        #: All warnings, and those that were not taken.
        self._warnings: set[str] = set()
        self._new: list[str] = []

    def of(self, order: TrialOrder, allocation: Allocation) -> CellZygote:
        """What a trial is forked from; raises ``EnvironmentUnusable``."""
        spec = order.zygote
        if allocation.threads or allocation.devices:
            spec = zygote_spec(order.spec, order.inherited, allocation.threads, allocation.devices)
        with self.lock:
            return self._cells.setdefault(f"{order.spec.execution.isolation} {spec.key}", CellZygote(self, spec))

    def warn(self, text: str) -> None:
        with self.lock:  # once: a workload is imported again for every cell, and for every set of devices
            if text not in self._warnings:
                self._warnings.add(text)
                self._new.append(text)

    def take_warnings(self) -> list[str]:
        """Warnings since the last call: which module cannot be forked, and why."""
        with self.lock:
            new, self._new = self._new, []
        return new

    def close(self) -> None:
        self.pool.close()


class CellZygote:
    """The zygote of the trials of a cell that have equal devices."""

    def __init__(self, zygotes: CellZygotes, spec: ZygoteSpec) -> None:
        self._zygotes = zygotes
        #: Once it is prepared, with the variables that the workload declares for the start of its process.
        self._spec = spec
        self._info: WorkloadInfo | None = None
        self._error: ZygoteError | None = None
        self._is_forkable = True
        #: What trials have imported, so that it is imported in advance for those that follow; whether that is all.
        self._learned: tuple[str, ...] = ()
        self.has_learned = False
        self._note: str | None = None

    def prepare(self, order: TrialOrder, allocation: Allocation, cancelled: Cancelled) -> PreparedCell:
        """Import the workload, unless that has been done, and plan the launch of its trials.

        Raises ``ConfigError``, ``LaunchModeError``, or a ``ZygoteError``: ``ZygoteUnwanted`` once it is cancelled.
        """
        workload, limits, pool, warn = order.spec.workload, start_limits(order), self._zygotes.pool, self._zygotes.warn
        longest, spec = min(limits.load or limits.total, limits.total), self._spec
        while self._info is None:
            error = self._error
            if error is not None and not (isinstance(error, ZygoteTimeout) and error.limit < longest):
                raise error
            try:
                zygote = pool.acquire(spec, limits, cancelled)
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
            for path, digest in info.data_files.items():
                if digest is None:
                    warn(f"data_files of {workload.name} names {path!r}, which is not there")
            self._is_forkable = not zygote.against_forking
            if zygote.against_forking and order.spec.execution.isolation == "fork":
                warn(
                    f"importing {info.source or workload.target} {', '.join(zygote.against_forking)}; a fork would not "
                    f"be safe, so every trial of {workload.name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
            for text in info.config_warnings:
                warn(text)
            around = dict(info.surroundings)
            around["variables"] = variables = dict(around.get("variables", {}))
            for name in allocation.imposed(order.inherited.variables, {}).variables.keys() & variables.keys():
                del variables[name]
            self._spec, self._info = spec, info.model_copy(update={"surroundings": around})
        if self._info.config_error is not None:
            raise ConfigError(self._info.config_error)
        plan = resolve_launch(order.spec, self._info.launch_mode, self._info.min_world_size)
        return PreparedCell(self._info, plan, allocation.imposes)

    def acquire(self, order: TrialOrder, allocation: Allocation, seed: int, cancelled: Cancelled) -> Zygote:
        """What a trial of the prepared cell is forked from; a ``fresh`` one where the workload cannot be forked.

        What a trial has imported within its timeout has as long to be imported in advance.
        """
        spec, limits, pool = order.spec, start_limits(order), self._zygotes.pool
        if spec.execution.isolation == "spawn" or not self._is_forkable:
            fresh = zygote_spec(spec, order.inherited, allocation.threads, allocation.devices, seed)
            zygote = Zygote(replace(fresh, environ=self._spec.environ))
            zygote.wait_ready(cancelled=cancelled)
            return zygote
        own = _LEARNING if order.timeout is None else min(order.timeout, _LEARNING)
        learning = replace(limits, grace=0.0, total=min(limits.total, own + (limits.load or _LEARNING)))
        while modules := self._learned:
            cores = None if allocation.cores is None else sorted(allocation.cores)
            argument = {**self._spec.argument, "learned": list(modules), "cores": cores}
            try:
                zygote = pool.acquire(replace(self._spec, argument=argument), learning, cancelled)
                zygote.load_sec = None  # the trial that showed what to import has that time in its record
                return zygote
            except ZygoteUnwanted:
                raise
            except ZygoteError as error:  # what must not be imported is forgotten
                said = str(error) if error.error is None else error.error["message"]
                culprit, _, why = said.partition("\n")[0].partition(": its import in advance ")
                with self._zygotes.lock:
                    if self._learned == modules:
                        known = why and culprit in modules
                        self._learned = modules[: modules.index(culprit)] if known else ()
                        named = culprit if known else ", ".join(modules)
                        self._note = f"{named}: its import in advance {why or culprit}"
        return pool.acquire(self._spec, limits, cancelled)

    def release(self, zygote: Zygote, seen: Observation, *, forked: bool) -> None:
        """Give back what was acquired when the trial is over, and note in ``seen`` what was imported for it.

        ``forked``: whether the trial has shown what could be.
        """
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
        self._zygotes.pool.release(zygote)


def start_limits(order: TrialOrder) -> StartLimits:
    """An import has a trial's deadline for itself; what the workload gives as its own is known only after it."""
    limits = order.spec.limits
    return StartLimits(load=limits.timeout if order.timeout is None else order.timeout, grace=limits.grace)
