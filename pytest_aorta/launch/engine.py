"""Runs trials on the slots of this host, or of several hosts that execnet reaches.

A pool has a queue of jobs, and a thread for each slot that has something to do. A job is a trial, or the check of a
cell.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from pytest_aorta.common.interrupts import pieces
from pytest_aorta.launch.environment import Inherited, PreparedCell
from pytest_aorta.launch.host.local_host import LocalHost, Slot
from pytest_aorta.launch.host.trial_files import node_folder
from pytest_aorta.launch.job import TrialJob
from pytest_aorta.launch.launch_mode import (
    EngineUnusable,
    LaunchModeError,
    endpoint,
    free_port,
    is_multi_node,
    node_rank,
)
from pytest_aorta.trials.execution import GRACE, ElasticOptions, Resources
from pytest_aorta.trials.loading import ConfigError
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.trials.spec import TrialSpec

#: Seconds beyond the grace that trials have to end when the engine is closed.
_PATIENCE = 10.0

#: Port of the rendezvous on a host that cannot be asked for a free one; torchrun's default.
_PORT = 29400


class JobPool:
    """Runs urgent jobs first and the others in their order, except where cells need balancing over slots. Thread-safe.

    A slot has a thread only while it has a job: while nothing runs, no thread of the pool can be lost in a fork.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._changed = threading.Condition()
        self._slots = slots
        #: Number of jobs of each cell that each host and slot has taken.
        self._taken: Counter[tuple[object, ...]] = Counter()
        self._waiting: list[TrialJob] = []
        self._running: dict[Slot, TrialJob] = {}
        self._dead: dict[int, Exception] = {}
        self._closed = False

    def submit(self, job: TrialJob) -> None:
        job.pool = self
        with self._changed:
            runs = not (self._closed or job.host in self._dead or len(self._dead) > self._slots[-1].number)
            if runs:
                self._waiting.append(job)
                self._waiting.sort(key=attrgetter("urgent"), reverse=True)
                for slot in self._slots:
                    if slot not in self._running and self._take_next(slot):
                        name = f"aorta-{slot.name.replace(' ', '-')}"
                        threading.Thread(target=self._work, args=(slot,), name=name, daemon=True).start()
        if not runs:
            job.give_up(next(iter(self._dead.values()), None))

    def choose(self, waiting: Iterable[TrialJob], slot: Slot) -> TrialJob | None:
        """Choose the waiting job that a slot takes, so that each host and slot runs equally many jobs of each cell.

        Otherwise cells and slots may fall into step, and a bad device of one slot looks like the effect of a cell.
        Candidates are the first job and those of other cells in about the same round, up to the second job of any cell.
        No job overtakes an urgent one.
        """
        first = chosen = None
        cells, fewest = set(), (0, 0)
        for job in waiting:
            if job.host not in (None, slot.number):
                continue
            keeps_its_place = job.urgent or job.cell is None or len(self._slots) == 1
            if first is not None and (keeps_its_place or job.cell in cells or abs(job.round - first.round) > 1):
                break
            first = first or job
            cells.add(job.cell)
            times = self._taken[job.cell, slot.number], self._taken[job.cell, slot.number, slot.index]
            if chosen is None or times < fewest:
                chosen, fewest = job, times
            if keeps_its_place:
                break
        if chosen is not None:
            self._taken.update([(chosen.cell, slot.number), (chosen.cell, slot.number, slot.index)])
        return chosen

    def _take_next(self, slot: Slot) -> bool:
        self._running.pop(slot, None)
        job = None if slot.number in self._dead else self.choose(self._waiting, slot)
        if job is None:
            self._changed.notify_all()
            return False
        self._waiting.remove(job)
        self._running[slot] = job
        return True

    def _work(self, slot: Slot) -> None:
        more = True
        while more:
            self._running[slot].run(slot)
            with self._changed:
                more = self._take_next(slot)

    def cancel(self, job: TrialJob, why: str) -> None:
        with self._changed:
            waited = job in self._waiting
            if waited:
                self._waiting.remove(job)
        job.cancel(why)
        if waited:
            job.give_up()

    def lose_host(self, number: int, error: Exception) -> None:
        with self._changed:
            self._dead.setdefault(number, error)
            lost = [job for job in self._waiting if job.host in self._dead or len(self._dead) > self._slots[-1].number]
            self._waiting = [job for job in self._waiting if job not in lost]
        for job in lost:
            job.give_up(error)

    def close(self, patience: float) -> bool:
        """Cancel all jobs; return whether the running ones ended within ``patience`` seconds."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            running = list(self._running.values())
        for job in (*running, *waiting):
            job.cancel("the run has ended")
        for job in waiting:
            job.give_up()
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, patience)


def meeting_point(options: ElasticOptions, hosts: Sequence[str]) -> str:
    """``HOST:PORT`` at which the first of the hosts keeps the store of trials with several nodes.

    Raises:
        LaunchModeError: there are fewer hosts than nodes.
    """
    least, most = options.nnodes
    if len(hosts) < least:
        raise LaunchModeError(f"nnodes={least}:{most} needs {least} hosts, but --aorta-host names {len(hosts)}")
    if options.rdzv_endpoint is not None:
        return options.rdzv_endpoint
    import execnet

    first = execnet.XSpec(hosts[0])
    host = str(first.ssh).split()[-1].rpartition("@")[2]
    return f"localhost:{free_port()}" if first.popen else f"{host}:{_PORT}"


class SlotEngine:
    """Runs trials in the order in which they are launched; starts hosts and threads with the first one.

    Args:
        resources: slots, devices, cores and hosts of the run.
        identity: digests, by name, of the source files that must be the same on all hosts.
        grace: seconds between SIGTERM and SIGKILL.
        results: the results directory of this host.
        elastic: options of trials with several nodes; the nodes are this one and others, or the hosts.
        run: name of the run, equal in all its processes.
    """

    def __init__(
        self,
        *,
        resources: Resources,
        identity: Mapping[str, str] | None = None,
        grace: float = GRACE,
        results: Path | None = None,
        elastic: ElasticOptions | None = None,
        run: str = "",
    ) -> None:
        self._run = run
        self._resources = resources
        self._identity = identity or {}
        self._grace = grace
        self._results = results
        #: Elastic options where the nodes of a trial are the hosts of this run.
        self._nodes: ElasticOptions | None = None
        #: Where the nodes meet, if node 0 is this process or one of its hosts.
        self._node_store: tuple[str, int] | None = None
        if elastic is not None and resources.hosts and is_multi_node(elastic):
            least, most = elastic.nnodes
            at = meeting_point(elastic, resources.hosts)
            self._nodes = replace(elastic, nnodes=(least, min(most, len(resources.hosts))), rdzv_endpoint=at)
            self._node_store = endpoint(self._nodes)
        elif elastic is not None and not resources.hosts:
            where = endpoint(elastic)
            self._node_store = where if node_rank(elastic) == 0 else None
        self._lock = threading.Lock()
        self._pool: JobPool | None = None
        self._hosts: list[Any] = []
        self._unusable: Exception | None = None
        self._variables: dict[str, str] = {}
        self._cells: dict[str, _CellCheck] = {}

    @property
    def pool(self) -> JobPool:
        """The pool, started with the first trial; raises the same error each time if it cannot start."""
        with self._lock:
            if self._unusable is not None:
                raise self._unusable
            if self._pool is None:
                resources, store, run = self._resources, self._node_store, self._run
                try:
                    if not resources.hosts:
                        self._hosts.append(LocalHost(resources, node_store=store, run=run))
                    else:
                        from pytest_aorta.launch.remote_host import RemoteHost, start_hosts  # and with it execnet

                        for number, spec in enumerate(resources.hosts):
                            died = partial(self._lose_host, number)
                            of_host = resources, len(resources.hosts), store if number == 0 else None, number, run
                            self._hosts.append(RemoteHost(spec, of_host, self._identity, died))
                        start_hosts(self._hosts)
                except (LaunchModeError, EngineUnusable) as error:
                    self._unusable = error
                    raise
                slots: list[Slot] = []
                for number, host in enumerate(self._hosts):
                    for index in range(resources.slots):
                        slots.append(Slot(host, index, host.name if resources.hosts else f"slot {index}", number))
                self._pool = JobPool(slots)
            return self._pool

    def _lose_host(self, number: int, error: Exception) -> None:
        if self._pool is not None:
            self._pool.lose_host(number, error)

    def check(
        self, spec: TrialSpec, timeout: float | None = None, patience: float | None = None
    ) -> PreparedCell | None:
        """Prepare a cell once, and raise what would prevent every trial of it.

        Returns ``None`` if the preparation fails for another reason than those below; every trial then records it.

        Args:
            spec: one of its trials.
            timeout: deadline in seconds that overrides the spec's.
            patience: seconds to wait; ``None`` waits until the cell is prepared. If it is not prepared by then, this
                returns ``None``, and an error shows in the trials.

        Raises:
            ConfigError: an option that the workload does not have, or a value that does not fit.
            LaunchModeError: the workload cannot be launched this way, or needs more devices than there are.
            EngineUnusable: no trial can be run.
        """
        check = _CellCheck(*self._job(spec, Path(), timeout).asked)
        pool = self.pool
        if check.key not in self._cells:
            self._cells[check.key] = check
            pool.submit(check)
        prepared = self._cells[check.key].prepared
        for seconds in pieces(patience):
            try:
                return prepared.result(seconds)
            except FutureTimeout:
                continue
        return None

    def launch(
        self,
        spec: TrialSpec,
        folder: Path,
        timeout: float | None = None,
        *,
        urgent: bool = True,
        on_start: Callable[[TrialJob], object] = lambda trial: None,
        on_result: Callable[[TrialJob, TrialResult], TrialResult] = lambda trial, result: result,
        on_packages: Callable[[dict[str, Any]], object] = lambda listing: None,
        make_room: Callable[[], bool] = lambda: True,
    ) -> TrialJob:
        """Queue a trial for the next free slot. Raises only ``EngineUnusable``: all other failures are in its record.

        Args:
            spec: what to run.
            folder: for its artifacts; created when it starts.
            timeout: deadline in seconds that overrides the spec's.
            urgent: run it before jobs that are not urgent, because the caller waits for it.
            on_start: called just before it starts, with its ``place``.
            on_result: makes another record of the one that it has ended with.
            on_packages: called with a list of the installed distributions that is new in this run.
            make_room: called before anything is put into the folder of a trial that could not start; whether it may be.
        """
        parts: list[TrialJob] = []
        if self._nodes is None:
            parts.append(self._job(spec, folder, timeout))
            parts[0].cell, parts[0].round = (spec.workload.name, spec.cell), spec.trial_index
        else:  # no balancing: all hosts must run the parts of the same trial
            for node in range(self._nodes.nnodes[1]):
                nnodes, at = self._nodes.nnodes, self._nodes.rdzv_endpoint
                elastic = replace(spec.execution.elastic, nnodes=nnodes, rdzv_endpoint=at, node_rank=node)
                own = replace(spec.execution, elastic=elastic)
                its = folder if node == 0 else node_folder(folder, node)
                parts.append(self._job(replace(spec, execution=own), its, timeout))
                parts[node].host = node
        trial, *trial.others = parts
        trial.on_start, trial.on_packages, trial.make_room = on_start, on_packages, make_room
        trial.on_result = on_result
        for job in parts:
            job.urgent = urgent
            self.pool.submit(job)
        return trial

    def _job(self, spec: TrialSpec, folder: Path, timeout: float | None) -> TrialJob:
        now = Inherited.now(self._results, spec.origin)
        if self._variables != now.variables:  # one copy for all trials
            self._variables = dict(now.variables)
        return TrialJob(spec, folder.absolute(), replace(now, variables=self._variables), timeout, self._run)

    def close(self) -> None:
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


class _CellCheck(TrialJob):
    """Prepares a cell, on behalf of one of its trials, and runs no trial."""

    def __init__(self, *asked: Any) -> None:
        super().__init__(*asked)
        self.urgent = True
        self.prepared: Future[PreparedCell | None] = Future()

    def run(self, slot: Slot) -> None:
        try:
            self.prepared.set_result(slot.host.prepare_cell(self, slot.index))
        except (ConfigError, LaunchModeError) as error:
            self.prepared.set_exception(error)
        except BaseException:
            self.prepared.set_result(None)

    def give_up(self, error: Exception | None = None) -> None:
        self.prepared.set_result(None)
