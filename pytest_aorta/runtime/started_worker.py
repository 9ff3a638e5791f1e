"""What a worker consists of from its start to its end: dispatcher, memory, child processes, service, runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.endpoints.child_processes import ChildProcesses
from pytest_aorta.runtime.endpoints.job_slot import JobSlot, Slot
from pytest_aorta.runtime.engine.dispatcher import Dispatcher
from pytest_aorta.runtime.engine.runs import GraphRun
from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD
from pytest_aorta.runtime.handles import RunHandle
from pytest_aorta.runtime.memory.heap import Heap
from pytest_aorta.runtime.orchestrator import Orchestrator

if TYPE_CHECKING:
    from pytest_aorta.runtime.memory.callables import Callables
    from pytest_aorta.runtime.worker_spec import WorkerSpec


class StartedWorker:
    """Built before ``start``, so that a start that fails can be closed.

    Args:
        describe: gives the worker's specification, with all that is registered at the moment.
        callables: that are registered, as they change.
    """

    def __init__(self, describe: Callable[[], WorkerSpec], callables: Callables) -> None:
        self._spec = describe()
        self._callables = callables
        self.dispatcher = Dispatcher(f"level {self._spec.level} worker", self._spec.level, self._spec.grace)
        self.heap = Heap(self._spec.heap_ring_size)
        self.child_processes = ChildProcesses(self.dispatcher, describe)
        self.dispatcher.release_slab = self.heap.release
        self.dispatcher.run_ended = self.child_processes.run_ended
        self._service: Any = None
        #: Held while a graph is built, and by which thread.
        self._building = threading.Lock()
        self.building_thread: int | None = None
        self._session_lock = threading.Lock()
        self._session: tuple[GraphRun, Orchestrator] | None = None

    def start(self, slots: Sequence[Slot], give_up: float) -> None:
        """Start the service and every child process; returns when all are ready, raises ``StartupError``."""
        if slots and self._spec.service is not None:
            self._service = import_target(self._spec.service)(self._spec.service_argument)
        for slot in slots:
            self.dispatcher.placement.add(JobSlot(self.dispatcher, slot, self._service))
        self.child_processes.start(give_up)

    def submit(
        self,
        orch_fn: Callable[..., Any],
        args: Any,
        config: Any,
        *,
        fail_fast: bool,
        owner: object,
        opened: Callable[[RunHandle, Callable[[], None]], None] | None = None,
    ) -> RunHandle:
        """Build the graph of a run; see ``Worker.submit``, ``Worker.submit_below``. ``owner`` lives until it ends."""
        installed = SIGINT_GUARD.begin()
        try:
            run = self.dispatcher.open_run(
                GraphRun(fail_fast=fail_fast, keeps=(orch_fn, args, config, owner), ring_size=self._spec.ring_size)
            )
            orchestrator = self._orchestrator(run)
            if opened is not None:
                abandon = partial(self._abandon, run, orchestrator, threading.get_ident())
                opened(RunHandle(self.dispatcher, run), abandon)
            try:
                with self._building:
                    self.building_thread = threading.get_ident()
                    try:
                        with SIGINT_GUARD.allowed():
                            orch_fn(orchestrator, args, config)
                    finally:
                        if self.building_thread == threading.get_ident():  # not left behind
                            self.building_thread = None
            except BaseException:
                self.dispatcher.cancel_run(run, "the graph could not be built", running=False)
                raise
            finally:
                orchestrator.end()
                self.dispatcher.close_run(run)
            return RunHandle(self.dispatcher, run)
        finally:
            SIGINT_GUARD.end(installed)

    def _abandon(self, run: GraphRun, orchestrator: Orchestrator, thread: int) -> None:
        """End a run although its graph is still being built on ``thread``, and have others built meanwhile."""
        if self.building_thread == thread:
            self.building_thread = None
            self._building = threading.Lock()
        orchestrator.end()
        self.dispatcher.close_run(run)

    @property
    def session(self) -> Orchestrator:
        """The run for jobs that stays open for as long as the worker."""
        with self._session_lock:
            if self._session is None:
                run = self.dispatcher.open_run(GraphRun(is_session=True))
                self._session = (run, self._orchestrator(run))
            return self._session[1]

    def _orchestrator(self, run: GraphRun) -> Orchestrator:
        return Orchestrator(self.dispatcher, run, self.heap, self._callables, self._spec.ring_timeout)

    def cancel_runs(self, why: str) -> None:
        """End the tasks of all runs but the session."""
        with self.dispatcher.lock:
            runs = list(self.dispatcher.runs)
        for run in runs:
            self.dispatcher.cancel_run(run, why, running=True)

    def drain(self, timeout: float) -> bool:
        """Cancel all jobs, accept no run any more, and wait for the open ones; whether they have ended in time."""
        if self._session is not None:
            run, orchestrator = self._session
            orchestrator.end()
            self.dispatcher.cancel_run(run, "the worker is closed", running=True)
            self.dispatcher.close_run(run)
            self._close_service()  # which ends what its jobs wait for
        return self.dispatcher.drain(timeout)

    def abandon(self, grace: float) -> None:
        """As ``close``, from the garbage collector: takes no lock, and does not wait."""
        self.dispatcher.loop.abandon(lambda: self.close(grace))

    def close(self, grace: float) -> None:
        """End every process; each has ``grace`` seconds to end in order."""
        self.dispatcher.closing = True
        try:
            self.child_processes.close(grace)
            self._close_service()
        finally:
            self.dispatcher.callbacks.close(grace)
            self.heap.close()
            self.dispatcher.loop.close()

    def _close_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close()
