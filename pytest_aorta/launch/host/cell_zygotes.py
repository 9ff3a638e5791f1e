"""The zygotes of one host: which one the trials of a cell are forked from, and its description of the workload."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_aorta.launch.environment import TrialOrder, zygote_spec
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.launch_mode import resolve_launch
from pytest_aorta.launch.workload_info import PreparedCell, WorkloadInfo
from pytest_aorta.runtime.zygote import (
    StartLimits,
    Zygote,
    ZygoteError,
    ZygoteSpec,
    ZygoteTimeout,
    ZygoteUnwanted,
)
from pytest_aorta.runtime.zygote_pool import ZygotePool
from pytest_aorta.trials.loading import ConfigError
from pytest_aorta.trials.outcome import Observation
from pytest_aorta.trials.spec import TrialSpec

#: Zygotes kept warm per slot.
_WARM = 8

#: Seconds that imports in advance may take.
_LEARNING = 60.0

#: Whether something is still waited for.
Wanted = Callable[[], bool]


@dataclass
class _Learned:
    modules: tuple[str, ...] = ()
    complete: bool = False
    note: str | None = None


class CellZygotes:
    """Thread-safe: the trials of all slots of the host share it."""

    def __init__(self, slots: int = 1) -> None:
        self._pool = ZygotePool(_WARM * slots)
        # All by the key of a zygote's specification.
        self._infos: dict[str, WorkloadInfo] = {}
        self._broken: dict[str, ZygoteError] = {}
        self._unforkable: set[str] = set()
        self._learned: dict[str, _Learned] = {}
        #: Variables that a workload declares for the start of its process, and that are not set.
        self._startup: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        #: Warnings, and whether each has been taken.
        self._warnings: dict[str, bool] = {}

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
            ZygoteError, EnvironmentUnusable: its process cannot be started, or cannot import it.
        """
        spec, inherited = order.spec, order.inherited
        plain = zygote_spec(spec, inherited, allocation.threads, allocation.devices)
        info = self._info(order, self._with_startup(spec, plain), allocation, wanted)
        missing = {name: value for name, value in info.startup_variables.items() if name not in plain.environ}
        if missing and _key(spec, plain) not in self._startup:
            self._startup[_key(spec, plain)] = missing
            info = self._info(order, self._with_startup(spec, plain), allocation, wanted)
        if info.config_error is not None:
            raise ConfigError(info.config_error)
        plan = resolve_launch(spec, info.launch_mode, info.min_world_size)
        return PreparedCell(info, plan, allocation.imposes)

    def _with_startup(self, spec: TrialSpec, plain: ZygoteSpec) -> ZygoteSpec:
        missing = self._startup.get(_key(spec, plain)) if self._startup else None
        return plain if missing is None else replace(plain, environ={**missing, **plain.environ})

    def _info(self, order: TrialOrder, wanted_spec: ZygoteSpec, allocation: Allocation, wanted: Wanted) -> WorkloadInfo:
        spec, limits = order.spec, start_limits(order)
        key = _key(spec, wanted_spec)
        while key not in self._infos:
            if key in self._broken and not _may_take_longer(limits, self._broken[key]):
                raise self._broken[key]
            try:
                info = self._read_info(spec, key, self._pool.acquire(wanted_spec, limits, wanted))
            except ZygoteUnwanted:
                raise
            except ZygoteError as error:
                self._broken[key] = error
            else:
                for text in info.config_warnings:
                    self._warn(text)
                imposed = allocation.imposed(order.inherited.variables, {})
                self._infos[key] = info.without_variables(imposed.variables)
        return self._infos[key]

    def _read_info(self, spec: TrialSpec, key: str, zygote: Zygote) -> WorkloadInfo:
        info = WorkloadInfo.model_validate(zygote.info)
        self._pool.release(zygote)
        for path in (path for path, digest in info.data_files.items() if digest is None):
            self._warn(f"data_files of {spec.workload.name} names {path!r}, which is not there")
        if zygote.against_forking:
            self._unforkable.add(key)
            if spec.execution.isolation == "fork":
                self._warn(
                    f"importing {info.source or spec.workload.target} {', '.join(zygote.against_forking)}; a fork "
                    f"would not be safe, so every trial of {spec.workload.name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
        return info

    def _warn(self, text: str) -> None:
        with self._lock:  # once: a workload is imported again for every cell, and for every set of devices
            self._warnings.setdefault(text, False)

    def acquire(self, order: TrialOrder, allocation: Allocation, seed: int, wanted: Wanted) -> Zygote:
        """What a trial of a prepared cell is forked from; a ``fresh`` one where the workload cannot be forked.

        What a trial has imported within its timeout has as long to be imported in advance.

        Raises:
            ZygoteError: there is none.
        """
        spec, inherited = order.spec, order.inherited
        plain = zygote_spec(spec, inherited, allocation.threads, allocation.devices)
        wanted_spec = self._with_startup(spec, plain)
        if spec.execution.isolation == "spawn" or _key(spec, wanted_spec) in self._unforkable:
            fresh = zygote_spec(spec, inherited, allocation.threads, allocation.devices, seed)
            zygote = Zygote(replace(fresh, environ=wanted_spec.environ))
            zygote.wait_ready(wanted=wanted)
            return zygote
        learned = self._learned.get(wanted_spec.key())
        while learned is not None and learned.modules:
            if (further := self._prepared_further(wanted_spec, learned, order, allocation, wanted)) is not None:
                return further
        return self._pool.acquire(wanted_spec, start_limits(order), wanted)

    def _prepared_further(
        self, plain: ZygoteSpec, learned: _Learned, order: TrialOrder, allocation: Allocation, wanted: Wanted
    ) -> Zygote | None:
        """One that has imported what was learned; if it cannot, what must not be imported is forgotten."""
        modules, cores = learned.modules, allocation.cores
        limits = start_limits(order)
        own = _LEARNING if order.timeout is None else min(order.timeout, _LEARNING)
        limits = replace(limits, grace=0.0, total=min(limits.total, own + (limits.load or _LEARNING)))
        argument = {**plain.argument, "learned": list(modules), "cores": None if cores is None else sorted(cores)}
        try:
            zygote = self._pool.acquire(replace(plain, argument=argument), limits, wanted)
        except ZygoteUnwanted:
            raise
        except ZygoteError as error:
            said = str(error) if error.error is None else error.error["message"]
            culprit, _, why = said.partition("\n")[0].partition(": its import in advance ")
            with self._lock:
                if learned.modules == modules:
                    known = why and culprit in modules
                    learned.modules = modules[: modules.index(culprit)] if known else ()
                    learned.note = f"{culprit if known else ', '.join(modules)}: its import in advance {why or culprit}"
            return None
        zygote.load_sec = None  # the trial that showed what to import has that time in its record
        return zygote

    def watches(self, spec: TrialSpec, zygote: Zygote) -> bool:
        """Whether a trial is to show what could be imported in advance for the next ones."""
        learned = self._learned.get(_plain_key(zygote))
        return spec.execution.preload == "auto" and not zygote.spec.fresh and (learned is None or not learned.complete)

    def learn_imports(self, zygote: Zygote, seen: Observation, *, forked: bool) -> None:
        """Take in what a trial has imported, and note in ``seen`` what was imported for it."""
        if zygote.spec.fresh or not forked:
            return
        before = zygote.spec.argument["learned"]
        seen.preloaded = [*zygote.spec.argument["preload"], *before]
        with self._lock:
            learned = self._learned.setdefault(_plain_key(zygote), _Learned())
            if (seen.imported or seen.imports_over) and not learned.complete and learned.modules == tuple(before):
                learned.modules += tuple(seen.imported)
                learned.complete, learned.note = seen.imports_over, seen.not_preloaded
            seen.not_preloaded = learned.note

    def take_import(self, zygote: Zygote) -> tuple[float, float] | None:
        """For the first trial from a zygote: the seconds that its import took, and when that ended."""
        with self._lock:
            sec, zygote.load_sec = zygote.load_sec, None
        return None if sec is None else (sec, zygote.loaded_at)

    def release(self, zygote: Zygote) -> None:
        """Give back what was acquired when the trial is over."""
        if zygote.spec.fresh:
            zygote.close()
        else:
            self._pool.release(zygote)

    def take_warnings(self) -> list[str]:
        """Warnings since the last call: which module cannot be forked, and why."""
        with self._lock:
            new = [text for text, taken in self._warnings.items() if not taken]
            self._warnings |= dict.fromkeys(new, True)
        return new

    def close(self) -> None:
        """End all processes; from any thread."""
        self._pool.close()


def _plain_key(zygote: Zygote) -> str:
    spec = zygote.spec
    return replace(spec, argument={**spec.argument, "learned": [], "cores": None}).key()


def start_limits(order: TrialOrder) -> StartLimits:
    """An import has a trial's deadline for itself; what the workload gives as its own is known only after it."""
    limits = order.spec.limits
    return StartLimits(load=limits.timeout if order.timeout is None else order.timeout, grace=limits.grace)


def _may_take_longer(limits: StartLimits, error: ZygoteError) -> bool:
    return isinstance(error, ZygoteTimeout) and error.limit < min(limits.load or limits.total, limits.total)


def _key(spec: TrialSpec, wanted: ZygoteSpec) -> str:
    return f"{spec.execution.isolation} {wanted.key()}"
