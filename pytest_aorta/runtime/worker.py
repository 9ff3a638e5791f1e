"""A worker: children that run tasks, and an engine that decides which runs what and when."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.import_target import import_target
from pytest_aorta.runtime.arguments import check_arguments, worker_ids
from pytest_aorta.runtime.endpoints.child_processes import ChildProcesses
from pytest_aorta.runtime.endpoints.job_slot import JobSlot, Slot
from pytest_aorta.runtime.engine.dispatcher import Dispatcher
from pytest_aorta.runtime.engine.runs import GraphRun
from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD
from pytest_aorta.runtime.handles import RunHandle
from pytest_aorta.runtime.memory.callables import CallableHandle, Callables, CallableTable, Definition, define
from pytest_aorta.runtime.memory.heap import Heap
from pytest_aorta.runtime.orchestrator import Orchestrator
from pytest_aorta.runtime.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that ``close`` waits for the runs that were accepted.
DRAIN = 10.0

#: Seconds that a child has to end in order.
CLOSE_GRACE = 5.0


class Worker:
    """One node of the hierarchy: a host (level 3) with its slots, or a group of workers (level 4 and up).

    Nothing happens before ``init``, which the first ``submit`` or ``run`` implies. Usable as a context manager.

    Args:
        level: 3 for a host, more for a worker of workers.
        device_ids: level 3 only: one slot per device, a process that sees only this device; worker ids 0, 1, ... in
            this order. On a host without GPUs they are names of slots that share the cores.
        num_sub_workers: processes for ``submit_sub``.
        slots: places for jobs, level 3 only; at higher levels the children have them.
        heap_ring_size: bytes of each of the four rings that ``alloc`` takes memory from.
        startup_timeout_s: seconds until the whole tree must be ready.
        prepare: called without arguments in every slot process before it is ready.
        service: ``module:function``, called once with ``service_argument`` where jobs run; jobs find the result as
            ``job.service``, and its ``close()`` is called at the end.
        service_argument: JSON value, or anything that can be pickled.
        grace: seconds between asking and killing.
    """

    def __init__(
        self,
        level: int,
        *,
        device_ids: Sequence[int] = (),
        num_sub_workers: int = 0,
        slots: int | Sequence[Slot] = 0,
        heap_ring_size: int = 2**30,
        startup_timeout_s: float = 300.0,
        prepare: Callable[[], object] | None = None,
        service: str | None = None,
        service_argument: Any = None,
        grace: float = 5.0,
    ) -> None:
        check_arguments(level, device_ids, num_sub_workers, slots, heap_ring_size, startup_timeout_s)
        self.level = level
        self.device_ids = tuple(device_ids)
        self.num_sub_workers = num_sub_workers
        self.slots = tuple(Slot(index) for index in range(slots)) if isinstance(slots, int) else tuple(slots)
        self.heap_ring_size = heap_ring_size
        self.startup_timeout_s = float(startup_timeout_s)
        self.prepare = define(prepare) if prepare is not None else None
        self.service = service
        self.service_argument = service_argument
        self.grace = grace
        self.callables = Callables(uuid.uuid4().hex)
        #: Workers below, with the host that each is on: an execnet specification, or ``None`` for this one.
        self.children: list[tuple[Worker, str | None]] = []
        #: Files that must be the same on every host, by name; see ``hosts.identity``.
        self.identity: Mapping[str, str] = {}
        #: Ids of the workers that may run a callable, by its handle's serial, where not all may.
        self.eligible: dict[int, frozenset[int]] = {}
        #: NEW, INITIALIZING, READY, FAILED, CLOSED; or ABOVE: started by the worker above, in another process.
        self._state = "NEW"
        self._attached = False
        self._owner: int | None = None
        self._lifecycle = threading.RLock()
        self._building = threading.Lock()
        self._builder: int | None = None
        self._session: tuple[GraphRun, Orchestrator] | None = None
        self._job_service: Any = None
        self._teardown_reached = False

    @property
    def total_slots(self) -> int:
        """Places for jobs here and below."""
        return len(self.slots) + sum(child.total_slots for child, _ in self.children)

    def spec(self, above: CallableTable | None = None) -> WorkerSpec:
        """What another process needs to build this worker, as of now; ``above`` is of the worker above it."""
        callables = self.callables.table(above)
        return WorkerSpec(
            level=self.level,
            callables=callables,
            device_ids=self.device_ids,
            num_sub_workers=self.num_sub_workers,
            slots=len(self.slots),
            heap_ring_size=self.heap_ring_size,
            startup_timeout_s=self.startup_timeout_s,
            prepare=self.prepare,
            service=self.service,
            service_argument=self.service_argument,
            grace=self.grace,
            identity=dict(self.identity),
            eligible=dict(self.eligible),
            children=tuple((child.spec(callables), host) for child, host in self.children),
        )

    @classmethod
    def from_spec(cls, spec: WorkerSpec) -> Worker:
        """The reverse of ``spec``: a worker that is not started."""
        worker = cls(
            spec.level,
            device_ids=spec.device_ids,
            num_sub_workers=spec.num_sub_workers,
            slots=spec.slots,
            heap_ring_size=spec.heap_ring_size,
            startup_timeout_s=spec.startup_timeout_s,
            service=spec.service,
            service_argument=spec.service_argument,
            grace=spec.grace,
        )
        worker.prepare = spec.prepare
        worker.callables = Callables.from_table(spec.callables)
        worker.identity = spec.identity
        worker.eligible = dict(spec.eligible)
        for child, host in spec.children:
            worker.add_worker(cls.from_spec(child), host)
        return worker

    # Before init

    def add_worker(self, child: Worker, host: str | None = None) -> int:
        """Put a worker below this one; its id.

        Args:
            child: of a lower level, not started, and nobody else's.
            host: where it runs, as execnet spells it (``popen``, ``ssh=...``, ``socket=...``); here, if not given.
        """
        if self.level < 4:
            raise ValueError(f"level {self.level} has no workers below it; level 4 and up have")
        if self._state != "NEW":
            raise RuntimeError("add_worker after init")
        if child is self or child.level >= self.level:
            raise ValueError(f"a worker of level {child.level} cannot be below one of level {self.level}")
        if child._state != "NEW" or child._attached:
            raise RuntimeError("the child has been started, or is another worker's")
        child._attached = True
        self.children.append((child, host))
        return len(self.children) - 1

    def register(self, target: Callable[..., Any] | str, workers: Iterable[int] | None = None) -> CallableHandle:
        """Make a callable known to every process below that could run it.

        Args:
            target: a function, or ``module:qualname``.
            workers: ids of the next level's workers that may run it; all, if not given.

        Raises:
            TypeError: not a callable, or one that cannot be pickled.
            ValueError: after ``init``: there is no process that could run it.
            RuntimeError: after ``init``: one of the processes could not load it; it is registered nowhere.
        """
        definition = define(target)
        allowed = None if workers is None else worker_ids(workers)
        with self._lifecycle:
            if self._state in ("CLOSED", "FAILED"):
                raise RuntimeError(f"register with a worker that is {self._state}")
            if self._state == "ABOVE":
                raise RuntimeError("this worker was started by the one above it: register there")
            if self._state == "READY":
                self._require_children(ValueError)
                if allowed is not None:
                    self._require_workers(allowed, ValueError)
                new = definition.digest not in self.callables.definitions
                handle = self.callables.add(definition)
                try:
                    if new:
                        self._child_processes.broadcast(definition)
                except BaseException:
                    self.callables.remove(handle)
                    raise
            else:
                handle = self.callables.add(definition)
        if allowed is not None:
            self.eligible[handle.serial] = allowed
        return handle

    def unregister(self, handle: CallableHandle) -> None:
        """Drop a handle; with the last one of a callable, the processes below forget it."""
        with self._lifecycle:
            digest = self.callables.remove(handle)
            self.eligible.pop(handle.serial, None)
            if digest is not None and self._state == "READY":
                self._child_processes.withdraw(digest)

    def accept(self, definition: Definition) -> None:
        """Take in what a worker above has registered."""
        definition.load()
        with self._lifecycle:
            known = definition.digest in self.callables.definitions
            self.callables.accept(definition)
            try:
                self._child_processes.broadcast(definition)
            except BaseException:
                if not known:
                    self.callables.definitions.pop(definition.digest, None)
                raise

    def withdraw(self, digest: str) -> None:
        """Forget what a worker above has registered."""
        with self._lifecycle:
            if not self.callables.count(digest):
                self.callables.definitions.pop(digest, None)
                self._child_processes.withdraw(digest)

    # Lifecycle

    def init(self) -> None:
        """Start the whole tree; returns when every process in it is ready.

        Raises:
            StartupError: a process failed, died or hung while it started; nothing is left of the others.
            RuntimeError: already closed, or a callable is registered that nobody could run.
        """
        if self._state == "READY":  # also while a callable is being registered, which may take long
            return
        with self._lifecycle:
            if self._state == "READY":
                return
            if self._attached:
                raise RuntimeError("this worker is started by the one above it")
            if self._state != "NEW":
                raise RuntimeError(f"init of a worker that is {self._state}")
            if self.callables.definitions:
                self._require_children(RuntimeError)
            for allowed in self.eligible.values():
                self._require_workers(allowed, RuntimeError)
            self._state = "INITIALIZING"
            if self._owner is None:
                self._owner = threading.get_ident()
            give_up = time.monotonic() + self.startup_timeout_s
            try:
                self._start(give_up)
            except BaseException:
                self._state = "FAILED"
                raise
            self._state = "READY"

    def _start(self, give_up: float) -> None:
        self._engine = Dispatcher(f"level {self.level} worker", self.level, self.grace)
        self._heap = Heap(self.heap_ring_size)
        self._engine.release_slab = self._heap.release
        self._child_processes = ChildProcesses(self._engine, self.spec)
        self._engine.run_ended = self._child_processes.run_ended
        for child, _ in self.children:
            child._state = "ABOVE"
        try:
            if self.slots:
                if self.service is not None:
                    self._job_service = import_target(self.service)(self.service_argument)
                for slot in self.slots:
                    self._engine.placement.add(JobSlot(self._engine, slot, self._job_service))
            self._child_processes.start(give_up)
        except BaseException:
            self._tear_down()
            raise

    def _require_children(self, error: type[Exception]) -> None:
        if not (self.device_ids or self.num_sub_workers or self.children):
            raise error("there is no process that could run a callable: no device_ids, no SUB workers, no children")

    def _require_workers(self, allowed: frozenset[int], error: type[Exception]) -> None:
        there = set(range(len(self.device_ids) or len(self.children)))
        if not allowed or not allowed <= there:
            raise error(f"a callable is registered for workers {sorted(allowed)}, but there are {sorted(there)}")

    def close(self) -> None:
        """Wait up to ten seconds for the runs that were accepted, then end every process. Twice is harmless.

        Raises:
            RuntimeError: from another thread than that of ``init``, or from within a graph that is being built.
            TimeoutError: the runs have not ended; nothing was ended, and ``close`` can be called again.
        """
        if self._state in ("CLOSED", "NEW", "FAILED", "ABOVE"):
            self._state = "CLOSED"
            return
        if self._builder == threading.get_ident():
            raise RuntimeError("close within a run: the graph is still being built")
        if self._owner != threading.get_ident():
            raise RuntimeError("close from another thread than the one that called init")
        if not self._teardown_reached:
            if self._session is not None:
                self._end_session()
            if not self._engine.drain(DRAIN):
                raise TimeoutError(f"there are runs that have not ended within {DRAIN:g} s; close can be called again")
        self._tear_down()
        self._state = "CLOSED"

    def _end_session(self) -> None:
        assert self._session is not None
        run, orchestrator = self._session
        orchestrator.end()
        self._engine.cancel_run(run, "the worker is closed", running=True)
        self._engine.close_run(run)
        self._close_service()  # which ends what its jobs wait for

    def _tear_down(self) -> None:
        self._teardown_reached = True
        self._engine.closing = True
        try:
            self._child_processes.close(CLOSE_GRACE)
            self._close_service()
        finally:
            self._heap.close()
            self._engine.loop.close()

    def _close_service(self) -> None:
        service, self._job_service = self._job_service, None
        if service is not None:
            service.close()

    def __enter__(self) -> Worker:
        self._owner = threading.get_ident()  # it is the one that leaves, whoever implies ``init``
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._state == "READY":
            with self._engine.lock:
                runs = list(self._engine.runs)
            for run in runs:
                self._engine.cancel_run(run, "the worker is closed after an exception", running=True)
        self.close()

    # Runs

    def submit(
        self,
        orch_fn: Callable[..., Any],
        args: Any = None,
        config: Any = None,
        *,
        fail_fast: bool = False,
    ) -> RunHandle:
        """Build the graph of a run: calls ``orch_fn(orch, args, config)``, and returns when that has returned.

        Tasks start while the graph is still being built. Of two runs, the earlier one comes first as a whole; a third
        one is not built before one of them has ended.

        Args:
            orch_fn: submits tasks through ``orch``. What it raises is raised here; tasks that have not started then
                never do.
            args: for ``orch_fn``.
            config: for ``orch_fn``.
            fail_fast: once a task has failed, have every further submission of this run raise that failure.
        """
        self.init()
        if self._builder == threading.get_ident():
            raise RuntimeError("submit within the graph of another run: submit tasks through orch")
        mine = SIGINT_GUARD.begin()
        try:
            run = self._engine.open_run(GraphRun(fail_fast=fail_fast, keeps=(orch_fn, args, config)))
            orchestrator = self._orchestrator(run)
            try:
                with self._build():
                    orch_fn(orchestrator, args, config)
            except BaseException:
                self._engine.cancel_run(run, "the graph could not be built", running=False)
                raise
            finally:
                orchestrator.end()
                self._engine.close_run(run)
            return RunHandle(self._engine, run)
        finally:
            SIGINT_GUARD.end(mine)

    def run(
        self, orch_fn: Callable[..., Any], args: Any = None, config: Any = None, *, fail_fast: bool = False
    ) -> None:
        """``submit``, and wait: raises ``TaskError`` when a task has failed."""
        self.submit(orch_fn, args, config, fail_fast=fail_fast).wait()

    @property
    def session(self) -> Orchestrator:
        """The run for jobs that stays open for as long as the worker; it holds up no other run."""
        self.init()
        with self._lifecycle:
            if self._session is None:
                run = self._engine.open_run(GraphRun(is_session=True))
                self._session = (run, self._orchestrator(run))
            return self._session[1]

    @contextmanager
    def _build(self) -> Iterator[None]:
        with self._building:
            self._builder = threading.get_ident()
            try:
                with SIGINT_GUARD.allowed():
                    yield
            finally:
                self._builder = None

    def _orchestrator(self, run: GraphRun) -> Orchestrator:
        return Orchestrator(self._engine, run, self._heap, self._resolve)

    def _resolve(self, handle: CallableHandle, workers: Iterable[int]) -> tuple[Definition, frozenset[int] | None]:
        """The callable, and the ids of those that may run it, when not all may."""
        definition = self.callables.resolve(handle)
        eligible = self.eligible.get(handle.serial) if handle.owner == self.callables.owner else None
        if eligible is not None:
            for worker in workers:
                if worker not in eligible:
                    raise ValueError(f"{handle.name} is registered for workers {sorted(eligible)}, not for {worker}")
        return definition, eligible
