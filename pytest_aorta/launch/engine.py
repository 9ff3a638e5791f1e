"""Runs trials on the slots of this host, or of several hosts that execnet reaches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_aorta.common.bounded_waits import pieces
from pytest_aorta.launch.environment import Inherited
from pytest_aorta.launch.host.service import TrialHost, TrialOrder, cell_key
from pytest_aorta.launch.launch_mode import EngineUnusable, LaunchModeError
from pytest_aorta.launch.multinode import MultiNodeTrial, plan_nodes
from pytest_aorta.launch.nodes.addressing import endpoint, node_rank
from pytest_aorta.launch.pool import Job, JobPool, Slot
from pytest_aorta.launch.slot_trial import SlotTrial
from pytest_aorta.launch.workload_info import PreparedCell
from pytest_aorta.trials.config import ConfigError
from pytest_aorta.trials.execution import GRACE, ElasticOptions, Resources
from pytest_aorta.trials.spec import TrialSpec

#: Seconds beyond the grace that trials have to end when the engine is closed.
_PATIENCE = 10.0


class TrialEngine:
    """Runs trials in the order in which they are launched; starts what it needs with the first one.

    Args:
        resources: slots, devices, cores and hosts of the run.
        identity: source files that have to be the same everywhere, by name, with their digests.
        grace: seconds between SIGTERM and SIGKILL.
        results: the folder that files of trials on this host are written to.
        elastic: options of trials that have several nodes: this one and others, or the hosts.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        identity: Mapping[str, str] | None = None,
        grace: float = GRACE,
        results: Path | None = None,
        elastic: ElasticOptions | None = None,
    ) -> None:
        self._resources = resources
        self._identity = identity or {}
        self._grace = grace
        self._results = results
        self._nodes = plan_nodes(elastic, resources.hosts)
        self._node_store = None if elastic is None or resources.hosts else _node_store(elastic)
        self._lock = threading.Lock()
        self._pool: JobPool | None = None
        self._hosts: list[Any] = []
        self._unusable: Exception | None = None
        self._variables: dict[str, str] = {}
        self._cells: dict[str, _CellCheck] = {}

    @property
    def pool(self) -> JobPool:
        """Started with the first trial; an engine that cannot be started raises the same error every time."""
        with self._lock:
            if self._unusable is not None:
                raise self._unusable
            if self._pool is None:
                try:
                    self._pool = self._start()
                except (LaunchModeError, EngineUnusable) as error:
                    self._unusable = error
                    raise
            return self._pool

    def _start(self) -> JobPool:
        slots = range(self._resources.slots)
        if not self._resources.hosts:
            here = TrialHost(self._resources, node_store=self._node_store)
            self._hosts.append(here)
            return JobPool([[Slot(here, index, f"slot {index}") for index in slots]])
        from pytest_aorta.launch.remote_host import RemoteHost, start_hosts

        pool: list[JobPool] = []

        def lose(number: int, error: Exception) -> None:
            if pool:
                pool[0].lose_host(number, error)

        specs = self._resources.hosts
        for number, spec in enumerate(specs):
            store = self._nodes.endpoint if self._nodes is not None and number == 0 else None
            died = partial(lose, number)
            self._hosts.append(RemoteHost(spec, self._resources, len(specs), store, self._identity, died))
        start_hosts(self._hosts)
        pool.append(JobPool([[Slot(host, index, host.name) for index in slots] for host in self._hosts]))
        return pool[0]

    def check(
        self, spec: TrialSpec, timeout: float | None = None, patience: float | None = None
    ) -> PreparedCell | None:
        """Prepare a cell, once, and find out what would prevent each of its trials.

        ``None`` where that is no mistake of the request: then every trial has it in its record.

        Args:
            spec: one of its trials.
            timeout: deadline in seconds that overrides the spec's.
            patience: seconds to wait, ``None`` for as long as it takes. After that, trials find it out as well.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way, or needs more devices than there are.
            EngineUnusable: no trial can be run.
        """
        order = self._order(spec, Path(), timeout)
        key = cell_key(order)
        pool = self.pool
        if key not in self._cells:
            self._cells[key] = _CellCheck(order)
            pool.submit(self._cells[key], urgent=True)
        return self._cells[key].wait(patience)

    def launch(
        self,
        spec: TrialSpec,
        folder: Path,
        timeout: float | None = None,
        *,
        urgent: bool = True,
        on_start: Callable[[SlotTrial], object] = lambda trial: None,
        on_packages: Callable[[dict[str, Any]], object] = lambda listing: None,
        make_room: Callable[[], bool] = lambda: True,
    ) -> SlotTrial:
        """Have a trial run as soon as there is a slot; raises only ``EngineUnusable``: its failures are in its record.

        Args:
            spec: what to run.
            folder: for its artifacts; created when it starts.
            timeout: deadline in seconds that overrides the spec's.
            urgent: before those that wait, because the caller waits for it.
            on_start: called just before it starts, with its ``place``.
            on_packages: called with a list of the installed distributions that is new in this run.
            make_room: called before anything is put into the folder of a trial that could not start; whether it may be.
        """
        nodes = self._nodes
        if nodes is None:
            trial = SlotTrial(self._order(spec, folder, timeout), folder, self.pool)
        else:
            first = self._order(nodes.spec_for(spec, 0), folder, timeout)
            trial = MultiNodeTrial(first, folder, self.pool)
            trial.host = 0
            for node in range(1, nodes.count):
                its_folder = folder.with_name(f"{folder.name}.node_{node}")
                order = self._order(nodes.spec_for(spec, node), its_folder, timeout)
                other = SlotTrial(order, its_folder, self.pool)
                other.host = node
                trial.others.append(other)
        trial.on_start, trial.on_packages, trial.make_room = on_start, on_packages, make_room
        for job in [trial, *trial.others] if isinstance(trial, MultiNodeTrial) else [trial]:
            self.pool.submit(job, urgent=urgent)
        return trial

    def _order(self, spec: TrialSpec, folder: Path, timeout: float | None) -> TrialOrder:
        now = Inherited.now(self._results, spec.origin)
        if self._variables != now.variables:  # one copy for all trials
            self._variables = dict(now.variables)
        return TrialOrder(spec, folder.absolute(), replace(now, variables=self._variables), timeout)

    def close(self) -> None:
        """End all processes; from any thread."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._unusable = self._unusable or RuntimeError("the engine has been closed")
        if pool is None:
            return
        over = pool.close(self._grace + _PATIENCE)
        for host in self._hosts:
            host.close()
        if not over:
            pool.close(_PATIENCE)


class _CellCheck(Job):
    """Prepares a cell, for whoever wants to know what it needs."""

    def __init__(self, order: TrialOrder) -> None:
        super().__init__()
        self._order = order
        self._found: Future[PreparedCell | None] = Future()

    def run(self, slot: Slot) -> None:
        """Prepare it."""
        try:
            self._found.set_result(slot.host.prepare(self._order, slot.index, self))
        except (ConfigError, LaunchModeError) as error:
            self._found.set_exception(error)
        except BaseException:
            self._found.set_result(None)

    def give_up(self, error: Exception | None = None) -> None:
        """Its trials find it out as well."""
        self._found.set_result(None)

    def wait(self, patience: float | None) -> PreparedCell | None:
        """What was found; ``None`` where it cannot be prepared, or not in time."""
        for seconds in pieces(patience):
            try:
                return self._found.result(seconds)
            except FutureTimeout:
                continue
        return None


def _node_store(elastic: ElasticOptions) -> tuple[str, int] | None:
    """Where this node keeps the run's store; raises ``LaunchModeError`` where that is unknown."""
    at = endpoint(elastic)
    return at if node_rank(elastic) == 0 else None
