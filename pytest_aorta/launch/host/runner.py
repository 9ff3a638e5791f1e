"""Starting trials on this host: which zygote, which launch mode, which process.

``TrialRunner.launch(spec, folder)`` gives a ``ProcessTrial``; ``wait(phase)`` follows its life, ``finish()`` ends it
and gives the complete record. Thread-safe: every slot of the host runs one trial at a time.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

from pytest_aorta.launch import environment
from pytest_aorta.launch.environment import Inherited, Seat
from pytest_aorta.launch.host.process_trial import ProcessTrial
from pytest_aorta.launch.launch_mode import Launch, LaunchModeError, resolve_launch
from pytest_aorta.runtime.zygotes.pool import ZygotePool
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError, ZygoteUnwanted
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.spec import GRACE, TrialSpec

#: Zygotes kept warm per slot.
_WARM = 8

_ANYWHERE = Seat()


class TrialRunner:
    """Starts trials and keeps what they share: warm zygotes and descriptions of workloads."""

    def __init__(self, grace: float = GRACE, slots: int = 1) -> None:
        self.grace = grace
        self._pool = ZygotePool(_WARM * slots)
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._broken: dict[str, ZygoteError] = {}
        self._lock = threading.Lock()
        self._warnings: list[str] = []
        self._told: set[str] = set()

    def take_warnings(self) -> list[str]:
        """Those that nobody has shown yet: which module cannot be forked, and why."""
        with self._lock:
            taken, self._warnings = self._warnings, []
        return taken

    def check(
        self, spec: TrialSpec, inherited: Inherited | None = None, seat: Seat = _ANYWHERE
    ) -> tuple[dict[str, Any], Launch]:
        """What would be run and how; prepares the cell's zygote.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way.
            ZygoteError, EnvironmentUnusable: its process cannot be started, or cannot import it.
        """
        description = self._description(spec, inherited or Inherited.now(), seat)
        if description["config_error"] is not None:
            raise ConfigError(description["config_error"])
        return description, resolve_launch(spec, description)

    def launch(
        self,
        spec: TrialSpec,
        folder: Path,
        timeout: float | None = None,
        inherited: Inherited | None = None,
        seat: Seat = _ANYWHERE,
    ) -> ProcessTrial:
        """Start a trial; never raises for what is the trial's own fault.

        Args:
            spec: what to run.
            folder: for its artifacts; created.
            timeout: deadline in seconds that overrides the spec's.
            inherited: what it has of the process that asks for it; of this one, if not given.
            seat: where.
        """
        folder.mkdir(parents=True, exist_ok=True)
        trial = ProcessTrial(spec, folder, self.grace)
        inherited = inherited or Inherited.now()
        try:
            description, launch = self.check(spec, inherited, seat)
            trial.describe(description, launch, timeout)
            server, fresh = self._server(spec, description, inherited, seat)
            trial.start(server, fresh, seat, self._give_back)
        except ZygoteError as error:
            trial.lose(error)
        except (environment.EnvironmentUnusable, ConfigError, LaunchModeError) as error:
            trial.lose(ZygoteError(str(error)))
        return trial

    def abandon(self, spec: TrialSpec, inherited: Inherited | None, seat: Seat) -> None:
        """A trial is not wanted any more that may wait for the import of its workload."""
        with contextlib.suppress(environment.EnvironmentUnusable):
            self._pool.abandon(specification(spec, inherited or Inherited.now(), seat))

    def _description(self, spec: TrialSpec, inherited: Inherited, seat: Seat) -> dict[str, Any]:
        """Of the spec's workload, from a process that has imported it."""
        wanted = specification(spec, inherited, seat)
        key = wanted.key()
        if key in self._broken:
            raise self._broken[key]
        if key not in self._descriptions:
            try:
                server = self._pool.acquire(wanted)
            except ZygoteUnwanted:
                raise
            except ZygoteError as error:
                self._broken[key] = error
                raise
            self._describe(spec, key, server)
        return self._descriptions[key]

    def _describe(self, spec: TrialSpec, key: str, server: Server) -> None:
        description = dict(server.info)
        with self._lock:
            if server.against_forking and spec.isolation == "fork":
                reasons = ", ".join(server.against_forking)
                where = description["source"] or spec.workload.target
                self._warn(
                    f"importing {where} {reasons}; a fork would not be safe, so every trial of "
                    f"{spec.workload.name} starts a fresh interpreter (as with --aorta-isolation spawn)"
                )
            if spec.isolation == "spawn" or server.against_forking:
                description["fresh"] = True
            self._descriptions.setdefault(key, description)
        if description.get("fresh"):
            self._pool.discard(server)
        else:
            self._pool.release(server)

    def _warn(self, text: str) -> None:
        """Once: a workload is imported again for every cell, and for every set of devices."""
        if text not in self._told:
            self._told.add(text)
            self._warnings.append(text)

    def _server(
        self, spec: TrialSpec, description: dict[str, Any], inherited: Inherited, seat: Seat
    ) -> tuple[Server, bool]:
        if spec.isolation == "spawn" or description.get("fresh"):
            zygote = Zygote(specification(spec, inherited, seat, fresh=True))
            zygote.wait_ready()
            return zygote, True
        return self._pool.acquire(specification(spec, inherited, seat)), False

    def _give_back(self, server: Server, fresh: bool) -> None:
        """The trial is over."""
        if fresh:
            server.close()
        else:
            self._pool.release(server)

    def close(self) -> None:
        """End all processes; from any thread."""
        self._pool.close()


def specification(spec: TrialSpec, inherited: Inherited, seat: Seat = _ANYWHERE, fresh: bool = False) -> ZygoteSpec:
    """The zygote that a trial is forked from. Its key is that of the cell: equal for all that can share one.

    Raises:
        EnvironmentUnusable: the environment names something that is not there.
    """
    return ZygoteSpec(
        command=environment.command(spec.environment),
        environ=environment.environ(spec.environment, spec.overlay, inherited.variables, seat),
        prepare="pytest_aorta.launch.child.main:prepare",
        argument={
            "target": spec.workload.target,
            "overrides": dict(spec.overrides),
            "steps": spec.steps,
            "launcher": spec.launcher,
        },
        run="pytest_aorta.launch.child.main:run",
        sys_path=() if spec.environment.venv is not None else inherited.sys_path,
        cwd=inherited.cwd,
        fresh=fresh,
        rehearse="pytest_aorta.launch.child.workload_main:rehearse",
    )
