"""The zygotes of one host: which one the trials of a cell are forked from, and its description of the workload."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import replace

from pytest_aorta.launch.environment import EnvironmentUnusable, Inherited, zygote_spec
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.host.held_process import HeldProcess
from pytest_aorta.launch.host.preloads import Preloads
from pytest_aorta.launch.launch_mode import LaunchModeError, resolve_launch
from pytest_aorta.launch.trial_payload import Extension
from pytest_aorta.launch.workload_info import PreparedCell, WorkloadInfo
from pytest_aorta.runtime.zygote import (
    EXTENSION_TIMEOUT,
    Branch,
    ExtensionFailed,
    Server,
    StartLimits,
    Zygote,
    ZygoteError,
    ZygotePool,
    ZygoteSpec,
    ZygoteTimeout,
    ZygoteUnwanted,
)
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.outcome import Observed
from pytest_aorta.trials.seeding import random_seed
from pytest_aorta.trials.spec import TrialSpec

#: Zygotes kept warm per slot, and processes held.
_WARM = 8


class CellZygotes:
    """Thread-safe: the trials of all slots of the host share it."""

    def __init__(self, slots: int = 1) -> None:
        self._limit = _WARM * slots
        self._pool = ZygotePool(self._limit)
        # All by the key of a zygote's specification.
        self._infos: dict[str, WorkloadInfo] = {}
        self._broken: dict[str, ZygoteError] = {}
        self._unforkable: set[str] = set()
        self._preloads = Preloads()
        #: Variables that a workload declares for the start of its process, and that are not set.
        self._startup: dict[str, dict[str, str]] = {}
        #: Those that wait for the first trial of their cell, and those that still import.
        self._held: OrderedDict[str, tuple[int, HeldProcess]] = OrderedDict()
        self._importing: list[tuple[str, HeldProcess]] = []
        self._closed = False
        self._lock = threading.Lock()
        #: Warnings, and whether each has been taken.
        self._warnings: dict[str, bool] = {}

    def prepare(
        self, spec: TrialSpec, inherited: Inherited, allocation: Allocation, timeout: float | None = None
    ) -> PreparedCell:
        """Import the workload, unless that has been done, and plan the launch of its trials.

        Args:
            spec: the first trial.
            inherited: what it has of the process that asks for it.
            allocation: where it runs.
            timeout: of the trial, in seconds; overrides the spec's.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way.
            ZygoteTimeout: the import took too long.
            ZygoteError, EnvironmentUnusable: its process cannot be started, or cannot import it.
        """
        limits = start_limits(spec, timeout)
        info = self._info(spec, inherited, allocation, limits)
        if missing := _missing(info, self._wanted(spec, inherited, allocation)) if info.startup_variables else {}:
            self.close_held(spec, inherited, allocation)
            self._startup[_key(spec, _specification(spec, inherited, allocation))] = missing
            info = self._info(spec, inherited, allocation, limits)
        try:
            if info.config_error is not None:
                raise ConfigError(info.config_error)
            plan = resolve_launch(spec, info.launch_mode, info.min_world_size)
            return PreparedCell(info, plan, allocation.imposes)
        except (ConfigError, LaunchModeError):  # of every trial of the cell
            self.close_held(spec, inherited, allocation)
            raise

    def _wanted(
        self, spec: TrialSpec, inherited: Inherited, allocation: Allocation, fresh_seed: int | None = None
    ) -> ZygoteSpec:
        """The process of a trial, with the variables that the workload declares for its start."""
        wanted = _specification(spec, inherited, allocation, fresh_seed)
        if not self._startup:
            return wanted
        missing = self._startup.get(_key(spec, _specification(spec, inherited, allocation)), {})
        return replace(wanted, environ={**missing, **wanted.environ})

    def _info(self, spec: TrialSpec, inherited: Inherited, allocation: Allocation, limits: StartLimits) -> WorkloadInfo:
        wanted = self._wanted(spec, inherited, allocation)
        key = _key(spec, wanted)
        while key not in self._infos:
            if key in self._broken and not _may_take_longer(limits, self._broken[key]):
                raise self._broken[key]
            try:
                if spec.execution.isolation == "spawn":
                    info = self._hold(key, spec, inherited, allocation, limits)
                else:
                    info = self._read_info(spec, key, self._pool.acquire(wanted, limits))
            except ZygoteUnwanted:
                raise
            except ZygoteError as error:
                self._broken[key] = error
            else:
                for text in info.config_warnings:
                    self._warn(text)
                imposed = allocation.imposed(inherited.variables, {})
                self._infos[key] = info.without_variables(imposed.variables)
        return self._infos[key]

    def _hold(
        self, key: str, spec: TrialSpec, inherited: Inherited, allocation: Allocation, limits: StartLimits
    ) -> WorkloadInfo:
        """The description from a fresh process, which is held for the first trial."""
        seed = random_seed() if spec.given_seed is None else spec.given_seed
        process = HeldProcess(self._wanted(spec, inherited, allocation, seed))
        with self._lock:
            self._importing.append((key, process))
            closed = self._closed
        try:
            if closed:
                process.interrupt()
            process.prepare(allocation.cores, limits)
        finally:
            with self._lock:
                self._importing.remove((key, process))
        surplus = []
        with self._lock:
            if key in self._held or self._closed:
                surplus.append(process)
            else:
                self._held[key] = seed, process
                if len(self._held) > self._limit:
                    surplus.append(self._held.popitem(last=False)[1][1])
        for held in surplus:
            held.close()
        return WorkloadInfo.model_validate(process.info)

    def take_held(
        self, spec: TrialSpec, inherited: Inherited, allocation: Allocation
    ) -> tuple[int, HeldProcess] | None:
        """The process that has imported the workload for the first trial, and its seed, if this is that trial."""
        with self._lock:
            if not self._held:
                return None
            key = _key(spec, self._wanted(spec, inherited, allocation))
            seed, _ = self._held.get(key, (None, None))
            return None if seed is None or spec.given_seed not in (None, seed) else self._held.pop(key)

    def _read_info(self, spec: TrialSpec, key: str, server: Server) -> WorkloadInfo:
        info = WorkloadInfo.model_validate(server.info)
        for path in (path for path, digest in info.data_files.items() if digest is None):
            self._warn(f"data_files of {spec.workload.name} names {path!r}, which is not there")
        if server.against_forking:
            self._unforkable.add(key)
            if spec.execution.isolation == "fork":
                self._warn(
                    f"importing {info.source or spec.workload.target} {', '.join(server.against_forking)}; a fork "
                    f"would not be safe, so every trial of {spec.workload.name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
        if key in self._unforkable or _missing(info, server.spec):
            self._pool.discard(server)
        else:
            self._pool.release(server)
        return info

    def _warn(self, text: str) -> None:
        with self._lock:  # once: a workload is imported again for every cell, and for every set of devices
            self._warnings.setdefault(text, False)

    def close_held(self, spec: TrialSpec, inherited: Inherited, allocation: Allocation) -> None:
        """End the process that waits for the first trial, if there is one."""
        if (held := self.take_held(spec, inherited, allocation)) is not None:
            held[1].close()

    def acquire(
        self,
        spec: TrialSpec,
        inherited: Inherited,
        allocation: Allocation,
        seed: int,
        timeout: float | None = None,
    ) -> Server:
        """A server for one trial of a prepared cell; of a ``fresh`` one where the workload cannot be forked.

        What a trial has imported within its ``timeout`` in seconds has as long to be imported in advance.

        Raises:
            ZygoteError: there is none.
        """
        wanted = self._wanted(spec, inherited, allocation)
        if spec.execution.isolation != "spawn" and _key(spec, wanted) not in self._unforkable:
            extension_limit = EXTENSION_TIMEOUT if timeout is None else min(timeout, EXTENSION_TIMEOUT)
            return self._acquire_preloaded(wanted, allocation, start_limits(spec, timeout), extension_limit)
        zygote = Zygote(self._wanted(spec, inherited, allocation, seed))
        zygote.wait_ready()
        return zygote

    def _acquire_preloaded(
        self, wanted: ZygoteSpec, allocation: Allocation, limits: StartLimits, extension_limit: float
    ) -> Server:
        key = wanted.key()
        modules = self._preloads.known(key).modules
        while modules:
            cores = None if allocation.cores is None else sorted(allocation.cores)
            extension: Extension = {"modules": list(modules), "cores": cores}
            try:
                return self._pool.acquire(wanted, limits, extension, extension_limit)
            except ExtensionFailed as failed:
                why = failed.refused.get("why", str(failed))
                modules = self._preloads.refuse(key, modules, failed.refused.get("module"), why)
            except ZygoteUnwanted:
                break
        return self._pool.acquire(wanted, limits)

    def watches(self, spec: TrialSpec, server: Server) -> bool:
        """Whether a trial on this server is to show what could be imported in advance for the next ones."""
        auto = spec.execution.preload == "auto" and not server.spec.fresh
        return auto and not self._preloads.known(server.spec.key()).complete

    def learn_imports(self, server: Server, seen: Observed, *, forked: bool) -> None:
        """Take in what a trial on this server has imported, and note in ``seen`` what was imported for it."""
        if server.spec.fresh or not forked:
            return
        key = server.spec.key()
        extension: Extension | None = server.extension
        before = [] if extension is None else extension["modules"]
        seen.preloaded = [*server.spec.argument["preload"], *before]
        if seen.imported or seen.imports_over:
            self._preloads.learn(key, before, seen.imported, seen.imports_over, seen.not_preloaded)
        seen.not_preloaded = self._preloads.known(key).note

    def take_import(self, server: Server) -> tuple[float, float] | None:
        """For the first trial from a zygote: the seconds that its import took, and when that ended."""
        zygote = server.zygote if isinstance(server, Branch) else server
        assert isinstance(zygote, Zygote)
        with self._lock:
            sec, zygote.load_sec = zygote.load_sec, None
        return None if sec is None else (sec, zygote.loaded_at)

    def release(self, server: Server) -> None:
        """Give back a server when the trial is over."""
        if server.spec.fresh:
            server.close()
        else:
            self._pool.release(server)

    def abandon(self, spec: TrialSpec, inherited: Inherited, allocation: Allocation) -> None:
        """Stop waiting in ``prepare`` or ``acquire`` for the import of a workload."""
        with contextlib.suppress(EnvironmentUnusable):
            wanted = self._wanted(spec, inherited, allocation)
            self._pool.abandon(wanted)
            own = _key(spec, wanted)
            with self._lock:
                importing = [process for key, process in self._importing if key == own]
            for process in importing:
                process.interrupt()

    def take_warnings(self) -> list[str]:
        """Warnings since the last call: which module cannot be forked, and why."""
        with self._lock:
            new = [text for text, taken in self._warnings.items() if not taken]
            self._warnings |= dict.fromkeys(new, True)
        return new

    def close(self) -> None:
        """End all processes; from any thread."""
        with self._lock:
            self._closed = True
            importing = [process for _, process in self._importing]
            held, self._held = [process for _, process in self._held.values()], OrderedDict()
        for process in importing:
            process.interrupt()
        for process in held:
            process.close()
        self._pool.close()


def _missing(info: WorkloadInfo, wanted: ZygoteSpec) -> dict[str, str]:
    return {name: value for name, value in info.startup_variables.items() if name not in wanted.environ}


def start_limits(spec: TrialSpec, timeout: float | None) -> StartLimits:
    """An import has a trial's deadline for itself; what the workload gives as its own is known only after it."""
    return StartLimits(load=spec.limits.timeout if timeout is None else timeout, grace=spec.limits.grace)


def _may_take_longer(limits: StartLimits, error: ZygoteError) -> bool:
    """Whether a start that has failed had less time than ``limits`` give."""
    return isinstance(error, ZygoteTimeout) and error.limit < min(limits.load or limits.total, limits.total)


def _key(spec: TrialSpec, wanted: ZygoteSpec) -> str:
    """What is known of an import, it is known for trials of the same isolation only: may it be forked?"""
    return f"{spec.execution.isolation} {wanted.key()}"


def _specification(
    spec: TrialSpec, inherited: Inherited, allocation: Allocation, fresh_seed: int | None = None
) -> ZygoteSpec:
    return zygote_spec(spec, inherited, allocation.threads, allocation.devices, fresh_seed)
