"""The zygotes of one host: which one the trials of a cell are forked from, and its description of the workload."""

from __future__ import annotations

import contextlib
import threading

from pytest_aorta.launch.environment import EnvironmentUnusable, Inherited, zygote_spec
from pytest_aorta.launch.host.allocation import Allocation
from pytest_aorta.launch.host.preloads import Preloads
from pytest_aorta.launch.launch_mode import resolve_launch
from pytest_aorta.launch.trial_payload import Extension
from pytest_aorta.launch.workload_info import PreparedCell, WorkloadInfo
from pytest_aorta.runtime.zygotes.branch import EXTENSION_TIMEOUT
from pytest_aorta.runtime.zygotes.pool import ZygotePool
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ExtensionFailed, ZygoteError, ZygoteUnwanted
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.outcome import Observed
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
        self._preloads = Preloads()
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
        info = self._info(spec, _specification(spec, inherited, allocation))
        if info.config_error is not None:
            raise ConfigError(info.config_error)
        return PreparedCell(info, resolve_launch(spec, info.launch_mode, info.min_world_size))

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
            self._infos[key] = self._read_info(spec, key, server)
        return self._infos[key]

    def _read_info(self, spec: TrialSpec, key: str, server: Server) -> WorkloadInfo:
        info = WorkloadInfo.model_validate(server.info)
        if server.against_forking:
            self._unforkable.add(key)
            if spec.execution.isolation == "fork":
                self._warn(
                    f"importing {info.source or spec.workload.target} {', '.join(server.against_forking)}; a fork "
                    f"would not be safe, so every trial of {spec.workload.name} starts a fresh interpreter (as with "
                    "--aorta-isolation spawn)"
                )
        if self._needs_fresh(spec, key):
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
        self, spec: TrialSpec, inherited: Inherited, allocation: Allocation, seed: int, timeout: float | None = None
    ) -> Server:
        """A server for one trial of a prepared cell; of a ``fresh`` one where the workload cannot be forked.

        What a trial has imported within its ``timeout`` in seconds has as long to be imported in advance.

        Raises:
            ZygoteError: there is none.
        """
        wanted = _specification(spec, inherited, allocation)
        key = wanted.key()
        if not self._needs_fresh(spec, key):
            limit = EXTENSION_TIMEOUT if timeout is None else min(timeout, EXTENSION_TIMEOUT)
            return self._acquire_preloaded(wanted, key, allocation, limit)
        zygote = Zygote(_specification(spec, inherited, allocation, seed))
        zygote.wait_ready()
        return zygote

    def _acquire_preloaded(self, wanted: ZygoteSpec, key: str, allocation: Allocation, limit: float) -> Server:
        modules = self._preloads.known(key).modules
        while modules:
            cores = None if allocation.cores is None else sorted(allocation.cores)
            extension: Extension = {"modules": list(modules), "cores": cores}
            try:
                return self._pool.acquire(wanted, extension, limit)
            except ExtensionFailed as failed:
                why = failed.refused.get("why", str(failed))
                modules = self._preloads.refuse(key, modules, failed.refused.get("module"), why)
            except ZygoteUnwanted:
                break
        return self._pool.acquire(wanted)

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

    def release(self, server: Server) -> None:
        """Give back a server when the trial is over."""
        if server.spec.fresh:
            server.close()
        else:
            self._pool.release(server)

    def abandon(self, spec: TrialSpec, inherited: Inherited, allocation: Allocation) -> None:
        """Stop waiting in ``prepare`` or ``acquire`` for the import of a workload."""
        with contextlib.suppress(EnvironmentUnusable):
            self._pool.abandon(_specification(spec, inherited, allocation))

    def take_warnings(self) -> list[str]:
        """Warnings since the last call: which module cannot be forked, and why."""
        with self._lock:
            new = [text for text, taken in self._warnings.items() if not taken]
            self._warnings |= dict.fromkeys(new, True)
        return new

    def close(self) -> None:
        """End all processes; from any thread."""
        self._pool.close()


def _specification(
    spec: TrialSpec, inherited: Inherited, allocation: Allocation, fresh_seed: int | None = None
) -> ZygoteSpec:
    return zygote_spec(spec, inherited, allocation.threads, allocation.devices, fresh_seed)
