"""The zygotes of one host: which one the trials of a cell are forked from, and its description of the workload."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import replace

from pytest_aorta.launch.environment import EnvironmentUnusable, Inherited, zygote_spec
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.launch_mode import resolve_launch
from pytest_aorta.launch.workload_info import PreparedCell, WorkloadInfo
from pytest_aorta.runtime.zygotes.pool import ZygotePool
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError, ZygoteUnwanted
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.spec import TrialSpec

#: Zygotes kept warm per slot.
_WARM = 8


class CellZygotes:
    """Thread-safe: the trials of all slots of the host share it."""

    def __init__(self, slots: int = 1) -> None:
        self._pool = ZygotePool(_WARM * slots)
        # All by the key of a zygote's specification.
        self._infos: dict[str, WorkloadInfo] = {}
        self._broken: dict[str, ZygoteError] = {}
        self._unforkable: set[str] = set()
        self._lock = threading.Lock()
        #: Warnings, and whether each has been taken.
        self._warnings: dict[str, bool] = {}

    def prepare(self, spec: TrialSpec, inherited: Inherited, allocation: Allocation) -> PreparedCell:
        """Import the workload in a zygote, unless that has been done, and plan the launch of its trials.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way.
            ZygoteError, EnvironmentUnusable: its process cannot be started, or cannot import it.
        """
        wanted = _specification(spec, inherited, allocation)
        info = self._info(spec, wanted)
        if (complete := self._complete(wanted)) is not wanted:
            info = self._info(spec, complete)
        if info.config_error is not None:
            raise ConfigError(info.config_error)
        return PreparedCell(info, resolve_launch(spec, info.launch_mode, info.min_world_size))

    def _complete(self, wanted: ZygoteSpec) -> ZygoteSpec:
        """With the variables that the workload declares for the start of its process, where they are not set."""
        info = self._infos.get(wanted.key())
        missing = {} if info is None else _missing(info, wanted)
        return replace(wanted, environ={**missing, **wanted.environ}) if missing else wanted

    def _info(self, spec: TrialSpec, wanted: ZygoteSpec) -> WorkloadInfo:
        key = wanted.key()
        if key in self._broken:
            raise self._broken[key]
        if key not in self._infos:
            try:
                server = self._pool.acquire(wanted)
            except ZygoteUnwanted:
                raise
            except ZygoteError as error:
                self._broken[key] = error
                raise
            self._infos[key] = self._read_info(spec, wanted, server)
        return self._infos[key]

    def _read_info(self, spec: TrialSpec, wanted: ZygoteSpec, server: Server) -> WorkloadInfo:
        info, key = WorkloadInfo.model_validate(server.info), wanted.key()
        for text in info.config_warnings:
            self._warn(text)
        if server.against_forking:
            self._unforkable.add(key)
            if spec.execution.isolation == "fork":
                self._warn(
                    f"importing {info.source or spec.workload.target} {', '.join(server.against_forking)}; a fork "
                    f"would not be safe, so every trial of {spec.workload.name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
        if self._needs_fresh(spec, key) or _missing(info, wanted):
            self._pool.discard(server)
        else:
            self._pool.release(server)
        return info

    def _warn(self, text: str) -> None:
        with self._lock:  # once: a workload is imported again for every cell, and for every set of devices
            self._warnings.setdefault(text, False)

    def _needs_fresh(self, spec: TrialSpec, key: str) -> bool:
        return spec.execution.isolation == "spawn" or key in self._unforkable

    def acquire(
        self, spec: TrialSpec, inherited: Inherited, allocation: Allocation, seed: int, place: Mapping[str, str]
    ) -> Server:
        """A server for one trial of a prepared cell; of a ``fresh`` one where the workload cannot be forked.

        ``place`` holds the variables of the trial's place, with which a fresh interpreter starts.

        Raises:
            ZygoteError: there is none.
        """
        wanted = self._complete(_specification(spec, inherited, allocation))
        if not self._needs_fresh(spec, wanted.key()):
            return self._pool.acquire(wanted)
        fresh = _specification(spec, inherited, allocation, seed)
        zygote = Zygote(replace(fresh, environ={**wanted.environ, **place}))
        zygote.wait_ready()
        return zygote

    def release(self, server: Server) -> None:
        """Give back a server when the trial is over."""
        if server.spec.fresh:
            server.close()
        else:
            self._pool.release(server)

    def abandon(self, spec: TrialSpec, inherited: Inherited, allocation: Allocation) -> None:
        """Stop waiting in ``prepare`` or ``acquire`` for the import of a workload."""
        with contextlib.suppress(EnvironmentUnusable):
            wanted = _specification(spec, inherited, allocation)
            self._pool.abandon(wanted)
            if (complete := self._complete(wanted)) is not wanted:
                self._pool.abandon(complete)

    def take_warnings(self) -> list[str]:
        """Warnings since the last call: which module cannot be forked, and why."""
        with self._lock:
            new = [text for text, taken in self._warnings.items() if not taken]
            self._warnings |= dict.fromkeys(new, True)
        return new

    def close(self) -> None:
        """End all processes; from any thread."""
        self._pool.close()


def _missing(info: WorkloadInfo, wanted: ZygoteSpec) -> dict[str, str]:
    return {name: value for name, value in info.startup_variables.items() if name not in wanted.environ}


def _specification(
    spec: TrialSpec, inherited: Inherited, allocation: Allocation, fresh_seed: int | None = None
) -> ZygoteSpec:
    return zygote_spec(spec, inherited, allocation.threads, allocation.devices, fresh_seed)
