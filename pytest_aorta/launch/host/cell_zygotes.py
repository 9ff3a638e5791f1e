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

#: Whether something is still waited for.
Wanted = Callable[[], bool]


class CellZygotes:
    """Thread-safe: the trials of all slots of the host share it."""

    def __init__(self, slots: int = 1) -> None:
        self.pool = ZygotePool(_WARM * slots)
        self.lock = threading.Lock()
        self._cells: dict[str, CellZygote] = {}
        #: Warnings, and whether each has been taken.
        self._warnings: dict[str, bool] = {}

    def of(self, order: TrialOrder, allocation: Allocation) -> CellZygote:
        """What a trial is forked from; raises ``EnvironmentUnusable``."""
        spec = order.zygote
        if allocation.threads or allocation.devices:
            spec = zygote_spec(order.spec, order.inherited, allocation.threads, allocation.devices)
        with self.lock:
            return self._cells.setdefault(f"{order.spec.execution.isolation} {spec.key}", CellZygote(self, spec))

    def warn(self, text: str) -> None:
        with self.lock:  # once: a workload is imported again for every cell, and for every set of devices
            self._warnings.setdefault(text, False)

    def take_warnings(self) -> list[str]:
        """Warnings since the last call: which module cannot be forked, and why."""
        with self.lock:
            new = [text for text, taken in self._warnings.items() if not taken]
            self._warnings |= dict.fromkeys(new, True)
        return new

    def close(self) -> None:
        self.pool.close()


class CellZygote:
    """The zygote of the trials of a cell that have equal devices."""

    def __init__(self, zygotes: CellZygotes, plain: ZygoteSpec) -> None:
        self._zygotes = zygotes
        self._plain = plain
        #: With the variables that the workload declares for the start of its process.
        self._spec = plain
        self._info: WorkloadInfo | None = None
        self._error: ZygoteError | None = None
        self._is_forkable = True
        #: What trials have imported, so that it is imported in advance for those that follow; whether that is all.
        self._learned: tuple[str, ...] = ()
        self._has_learned = False
        self._note: str | None = None

    def prepare(self, order: TrialOrder, allocation: Allocation, wanted: Wanted) -> PreparedCell:
        """Import the workload, unless that has been done, and plan the launch of its trials.

        Args:
            order: the first trial.
            allocation: where it runs.
            wanted: whether it is still waited for.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way.
            ZygoteTimeout: the import took too long.
            ZygoteUnwanted: it was not wanted any more.
            ZygoteError: its process cannot be started, or cannot import it.
        """
        info = self._info
        if info is None:
            spec = self._plain
            info = self._import(order, spec, allocation, wanted)
            missing = {name: value for name, value in info.startup_variables.items() if name not in spec.environ}
            if missing:
                spec = replace(spec, environ={**missing, **spec.environ})
                info = self._import(order, spec, allocation, wanted)
            self._spec, self._info = spec, info
        if info.config_error is not None:
            raise ConfigError(info.config_error)
        plan = resolve_launch(order.spec, info.launch_mode, info.min_world_size)
        return PreparedCell(info, plan, allocation.imposes)

    def _import(self, order: TrialOrder, spec: ZygoteSpec, allocation: Allocation, wanted: Wanted) -> WorkloadInfo:
        name, limits, pool = order.spec.workload.name, start_limits(order), self._zygotes.pool
        while True:
            error = self._error
            longest = min(limits.load or limits.total, limits.total)
            if error is not None and not (isinstance(error, ZygoteTimeout) and error.limit < longest):
                raise error
            try:
                zygote = pool.acquire(spec, limits, wanted)
                break
            except ZygoteUnwanted:
                raise
            except ZygoteError as failed:
                self._error = failed
        info = WorkloadInfo.model_validate(zygote.info)
        pool.release(zygote)
        for path, digest in info.data_files.items():
            if digest is None:
                self._zygotes.warn(f"data_files of {name} names {path!r}, which is not there")
        if zygote.against_forking:
            self._is_forkable = False
            if order.spec.execution.isolation == "fork":
                self._zygotes.warn(
                    f"importing {info.source or order.spec.workload.target} {', '.join(zygote.against_forking)}; a "
                    f"fork would not be safe, so every trial of {name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
        for text in info.config_warnings:
            self._zygotes.warn(text)
        return info.without_variables(allocation.imposed(order.inherited.variables, {}).variables)

    def acquire(self, order: TrialOrder, allocation: Allocation, seed: int, wanted: Wanted) -> Zygote:
        """What a trial of the prepared cell is forked from; a ``fresh`` one where the workload cannot be forked.

        What a trial has imported within its timeout has as long to be imported in advance.

        Raises:
            ZygoteError: there is none.
        """
        spec, limits, pool = order.spec, start_limits(order), self._zygotes.pool
        if spec.execution.isolation == "spawn" or not self._is_forkable:
            fresh = zygote_spec(spec, order.inherited, allocation.threads, allocation.devices, seed)
            zygote = Zygote(replace(fresh, environ=self._spec.environ))
            zygote.wait_ready(wanted=wanted)
            return zygote
        own = _LEARNING if order.timeout is None else min(order.timeout, _LEARNING)
        learning = replace(limits, grace=0.0, total=min(limits.total, own + (limits.load or _LEARNING)))
        while modules := self._learned:
            cores = None if allocation.cores is None else sorted(allocation.cores)
            argument = {**self._spec.argument, "learned": list(modules), "cores": cores}
            try:
                zygote = pool.acquire(replace(self._spec, argument=argument), learning, wanted)
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
        return pool.acquire(self._spec, limits, wanted)

    def watches(self, order: TrialOrder, zygote: Zygote) -> bool:
        """Whether a trial is to show what could be imported in advance for the next ones."""
        return order.spec.execution.preload == "auto" and not zygote.spec.fresh and not self._has_learned

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
                if (seen.imported or seen.imports_over) and not self._has_learned and self._learned == tuple(before):
                    self._learned += tuple(seen.imported)
                    self._has_learned, self._note = seen.imports_over, seen.not_preloaded
                seen.not_preloaded = self._note
        self._zygotes.pool.release(zygote)


def start_limits(order: TrialOrder) -> StartLimits:
    """An import has a trial's deadline for itself; what the workload gives as its own is known only after it."""
    limits = order.spec.limits
    return StartLimits(load=limits.timeout if order.timeout is None else order.timeout, grace=limits.grace)
