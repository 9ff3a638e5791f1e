"""A worker: its structure, registered callables, runs and processes."""

from __future__ import annotations

import enum
import itertools
import os
import socket
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.common.interrupts import SIGINT_HELD, pieces
from pytest_aorta.runtime.arguments import check_function, check_timeout, expect, listed, seconds, whole_number
from pytest_aorta.runtime.callables import MAX_RESULT, CallableHandle, Callables, WorkerSpec, define
from pytest_aorta.runtime.dispatcher import Dispatcher, GraphRun, TaskKind
from pytest_aorta.runtime.endpoint import Bulk, Message, ProcessEndpoint, ProcessLink
from pytest_aorta.runtime.graph import Hazards, HazardWarning
from pytest_aorta.runtime.orchestrator import Orchestrator, RunHandle
from pytest_aorta.runtime.orders import Order, compare
from pytest_aorta.runtime.process_tree import reasons_against_forking
from pytest_aorta.runtime.records import StartupError
from pytest_aorta.runtime.resources.devices import (
    are_named_only,
    choose_devices,
    core_shares,
    device_variables,
    devices_text,
    find_devices,
    threads_of,
)
from pytest_aorta.runtime.resources.leases import LeaseCancelled, LeaseError, Leases
from pytest_aorta.runtime.tensors import Heap
from pytest_aorta.runtime.zygote import Seed, ZygoteError, ZygoteSpec
from pytest_aorta.runtime.zygote_pool import ZygotePool

if TYPE_CHECKING:
    from pytest_aorta.runtime.endpoint import Link
    from pytest_aorta.runtime.resources.leases import Lease

#: Seconds that a child has to end in order.
CLOSE_GRACE = 5.0


class WorkerState(enum.Enum):
    NEW = enum.auto()
    #: Put below another worker, which has not started.
    ATTACHED = enum.auto()
    #: Started in another process, by the worker above.
    DELEGATED = enum.auto()
    INITIALIZING = enum.auto()
    READY = enum.auto()
    #: Its runs have ended, its processes are being ended.
    CLOSING = enum.auto()
    CLOSED = enum.auto()
    #: It could not be started.
    FAILED = enum.auto()


class Worker:
    """One node of the hierarchy: a host (level 3) with its slots, or a group of workers (level 4 and up).

    Nothing happens before ``init``, which the first ``submit`` or ``run`` implies. Usable as a context manager. One
    that is not closed ends its processes with this process.

    Args:
        level: 3 for a host, more for a worker of workers.
        device_ids: level 3 only: one slot per device, a process that sees only this device; worker ids 0, 1, ... in
            this order. On a host without GPUs they are names of slots that share the cores.
        num_sub_workers: processes for ``submit_sub``.
        heap_ring_size: bytes of each of the four rings that ``alloc`` takes memory from.
        ring_size: slots of the ring of each run: the most tasks of a run that were submitted and have not ended.
        ring_timeout: seconds that a submission waits for a free slot; then it raises ``RuntimeError``. ``None`` to wait
            as long as it takes, 0 to raise at once.
        startup_timeout_s: seconds until the whole tree must be ready.
        prepare: called without arguments in every slot process before it is ready.
        grace: seconds between asking and killing.
        max_deaths: processes of one slot that may die in a row, before it is out of service; ``None``: any number, each
            later one starts after a longer pause (at most five seconds).
        allowed_failures: slots in a row that tasks of one callable may kill in a run; then no more of its tasks start
            in this run. ``None``: any number.
        check: warn (``HazardWarning``) of writes that nothing orders after earlier accesses of the same bytes, and of
            tasks that change what they were given as ``INPUT``. Inputs are read twice more.
        pin: whether each slot has cores of its own. ``"auto"``: where these are two or more, until it has to wait for
            them because other processes use them.
        max_result: bytes that a task may return, pickled.
        replay_orders: ``run`` builds and runs its graph in this many legal orders, first as it is submitted (or in that
            one, and then in those with these numbers), each from the same content of the memory that it is given. What
            differs is a ``HazardWarning`` that names the tasks, the tensor and the missing tag.
    """

    def __init__(
        self,
        level: int,
        *,
        device_ids: Sequence[int] = (),
        num_sub_workers: int = 0,
        heap_ring_size: int = 2**30,
        ring_size: int = 2**17,
        ring_timeout: float | None = None,
        startup_timeout_s: float = 300.0,
        prepare: Callable[[], object] | None = None,
        grace: float = 5.0,
        max_deaths: int | None = None,
        allowed_failures: int | None = 3,
        check: bool = False,
        pin: bool | Literal["auto"] = "auto",
        max_result: int = MAX_RESULT,
        replay_orders: int | Sequence[int] = 0,
    ) -> None:
        orders = range(1, replay_orders) if isinstance(replay_orders, int) else replay_orders
        for order in orders:
            whole_number("an order", order)
        if pin not in (True, False, "auto"):
            raise ValueError(f"pin must be True, False or 'auto', not {pin!r}")
        whole_number("ring_size", ring_size, 1)
        if ring_timeout is not None:
            seconds("ring_timeout", ring_timeout, zero=True)
        for name, number in (("max_deaths", max_deaths), ("allowed_failures", allowed_failures)):
            if number is not None:
                whole_number(name, number, 1)
        expect("level", level, int, "3 (a host) or more")
        if level < 3:
            raise ValueError(f"level must be 3 (a host) or more, not {level!r}; slots (level 2) belong to a host")
        seconds("startup_timeout_s", startup_timeout_s)
        seconds("grace", grace, zero=True)
        devices = listed("device_ids", device_ids, "a list of numbers from 0")
        if level != 3 and devices:
            raise ValueError(f"device_ids belong to a host (level 3), not to level {level}")
        for device in devices:
            expect("device_ids", device, int, "numbers from 0")
            if device < 0:
                raise ValueError(f"device_ids must be numbers from 0, not {device!r}")
        if len(set(devices)) != len(devices):
            raise ValueError(f"a device is named twice: {devices}")
        for name, value in (("num_sub_workers", num_sub_workers), ("heap_ring_size", heap_ring_size)):
            whole_number(name, value)
        if prepare is not None and not isinstance(prepare, str):
            check_function("prepare", prepare, "without arguments")
        self.callables = Callables(uuid.uuid4().hex)
        #: Workers below, with the host of each: an execnet specification, or ``None`` for this one.
        self.children: list[tuple[Worker, str | None]] = []
        self._arguments = WorkerSpec(
            level=level,
            callables=self.callables,
            device_ids=tuple(devices),
            num_sub_workers=num_sub_workers,
            heap_ring_size=heap_ring_size,
            ring_size=ring_size,
            ring_timeout=ring_timeout,
            startup_timeout_s=float(startup_timeout_s),
            prepare=define(prepare) if prepare is not None else None,
            grace=grace,
            max_deaths=max_deaths,
            allowed_failures=allowed_failures,
            check=check,
            pin=pin,
            max_result=max_result,
            replay_orders=tuple(orders),
        )
        #: The orders of the last ``run``, with the hash of every output, and what differs between them.
        self.orders: list[Order] = []
        self.differences: list[str] = []
        #: In the process of a nested worker, or of a slot: the fork that becomes its zygote.
        self.seed: Seed | None = None
        self._state = WorkerState.NEW
        #: Held while processes are started, and while a callable is registered.
        self._lifecycle = threading.RLock()
        #: The thread that closes it, as long as it lives; the process that started it, and is to end it.
        self._owner: threading.Thread | None = None
        self._process: int | None = None
        #: The orchestrators of threads that build graphs.
        self._building: dict[int, Orchestrator] = {}

    def spec(self, above: Callables | None = None) -> WorkerSpec:
        """A specification from which another process builds this worker; ``above``: callables of the level above."""
        callables = self.callables.copy(above)
        children = tuple((child.spec(callables), host) for child, host in self.children)
        return replace(self._arguments, callables=callables, children=children)

    @classmethod
    def from_spec(cls, spec: WorkerSpec) -> Worker:
        """The reverse of ``spec``: a worker that is not started."""
        worker = cls(spec.level)
        worker._arguments = spec
        worker.callables = spec.callables
        for child, host in spec.children:
            worker.add_worker(cls.from_spec(child), host)
        return worker

    def add_worker(self, child: Worker, host: str | None = None) -> int:
        """Put a worker below this one; its id.

        Args:
            child: of a lower level, not started, and not below another worker.
            host: where it runs, as execnet spells it (``popen``, ``ssh=...``); here, if not given.
        """
        expect("child", child, Worker, "a Worker")
        if host is not None:
            expect("host", host, str, "an execnet specification such as 'popen' or 'ssh=node7', or None")
        level, below = self._arguments.level, child._arguments.level
        if level < 4:
            raise ValueError(f"level {level} has no workers below it; level 4 and up have")
        if self._state not in (WorkerState.NEW, WorkerState.ATTACHED):
            raise RuntimeError("add_worker comes before init")
        if child is self or below >= level:
            raise ValueError(f"a worker of level {below} cannot be below one of level {level}")
        if child._state is not WorkerState.NEW:
            raise RuntimeError("the child must be NEW: it has been started, or is another worker's")
        child._state = WorkerState.ATTACHED
        self.children.append((child, host))
        return len(self.children) - 1

    # Callables

    def register(self, target: Callable[..., Any] | str, workers: Iterable[int] | None = None) -> CallableHandle:
        """Make a callable known to every process below that could run it.

        It goes to a process with the first task that follows. One that cannot be loaded there fails its tasks.

        Args:
            target: a function, or ``module:qualname``.
            workers: ids of the next level's workers that may run it; all, if not given.

        Raises:
            TypeError: not a callable, or one that cannot be pickled.
            ValueError: after ``init``: there is no process that could run it.
        """
        definition = define(target)
        eligible = None
        if workers is not None:
            eligible = frozenset(listed("workers", workers, "a list of the ids of workers"))
            for worker in eligible:
                whole_number("the id of a worker", worker)
        with self._lifecycle:
            if self._state in (WorkerState.CLOSED, WorkerState.FAILED):
                raise RuntimeError(f"register with a worker that is {self._state.name}")
            if self._state is WorkerState.DELEGATED:
                raise RuntimeError("this worker was started by the one above it: register there")
            if self._has_started:
                self._check_children(ValueError)
                if eligible is not None:
                    self._check_eligible(eligible, ValueError)
            return self.callables.add(definition, eligible)

    def unregister(self, handle: CallableHandle) -> None:
        """Drop a handle; with the last one of a callable, the processes below forget it.

        Raises:
            RuntimeError: it is the last one, and tasks of the callable have not ended.
        """
        with self._lifecycle:
            if not self._has_started:
                self.callables.remove(handle)
                return
            with self._dispatcher.lock:  # a task is submitted before, or refused
                unsettled = self.callables.is_last(handle) and self._dispatcher.unsettled_with(handle.digest)
                if unsettled:
                    raise RuntimeError(f"{handle.name} cannot be unregistered: {unsettled} of its tasks have not ended")
                self.callables.remove(handle)

    def _check_children(self, error: type[Exception]) -> None:
        if not (self._arguments.device_ids or self._arguments.num_sub_workers or self.children):
            raise error("there is no process that could run a callable: no device_ids, no SUB workers, no children")

    def _check_eligible(self, eligible: frozenset[int], error: type[Exception]) -> None:
        known = set(range(len(self._arguments.device_ids) or len(self.children)))
        if not eligible or not eligible <= known:
            raise error(f"a callable is registered for workers {sorted(eligible)}, but there are {sorted(known)}")

    @property
    def unfinished(self) -> int:
        """Tasks of all runs that have not ended, or whose tensors are still kept for later ones."""
        return self._dispatcher.graph.live if self._process is not None else 0

    @property
    def memory_in_use(self) -> tuple[int, ...]:
        """Bytes in use of each ring of ``heap_ring_size``."""
        return self._heap.in_use() if self._process is not None else ()

    # Life cycle

    @property
    def _has_started(self) -> bool:
        return self._state in (WorkerState.READY, WorkerState.CLOSING)

    def init(self) -> None:
        """Start the whole tree; returns when every process in it is ready.

        Raises:
            StartupError: a process failed, died or hung while it started; nothing is left of the others.
            RuntimeError: already closed, or a callable is registered that no process could run.
        """
        if self._has_started:  # without the lock, which is held while a callable is registered
            return
        with self._lifecycle:
            if self._has_started:
                return
            if self._state in (WorkerState.ATTACHED, WorkerState.DELEGATED):
                raise RuntimeError("this worker is started by the one above it")
            if self._state is not WorkerState.NEW:
                raise RuntimeError(f"init of a worker that is {self._state.name}")
            if self.callables.definitions:
                self._check_children(RuntimeError)
            for eligible in self.callables.restrictions():
                self._check_eligible(eligible, RuntimeError)
            self._state = WorkerState.INITIALIZING
            if self._owner is None:
                self._owner = threading.current_thread()
            for child, _ in self.children:
                child._state = WorkerState.DELEGATED
            spec = self._arguments
            # In a task: its process has imported all that is needed.
            if Seed.of_slot and not reasons_against_forking():
                self.seed = Seed(*Seed.of_slot)
            self._dispatcher = Dispatcher(f"level {spec.level} worker", spec.grace, spec.allowed_failures)
            self._heap = Heap(spec.heap_ring_size)
            self._process = os.getpid()
            self._processes = ChildProcesses(self._dispatcher, self.callables, self.spec, self.seed)
            self._dispatcher.release_slab = self._heap.release
            self._dispatcher.run_ended = self._processes.run_ended
            try:
                self._processes.start(time.monotonic() + spec.startup_timeout_s)
            except BaseException:
                self._end()
                self._state = WorkerState.FAILED
                raise
            self._state = WorkerState.READY

    def close(self, timeout: float | None = None) -> None:
        """Wait for the runs that were accepted, then end every process. Twice is harmless.

        Args:
            timeout: seconds that the runs have; as long as they take, if not given.

        Raises:
            RuntimeError: called while the thread of ``init`` lives by another one, or within the building of a graph.
            TimeoutError: the runs have not ended; nothing was ended, and ``close`` can be called again.
        """
        check_timeout(timeout)
        if self._process not in (None, os.getpid()):
            return  # in a fork, which leaves the worker to the process that has started it
        if self._state is not WorkerState.INITIALIZING and not self._has_started:
            self._state = WorkerState.CLOSED
            return
        if threading.get_ident() in self._building:
            raise RuntimeError("close within a run: the graph is still being built")
        if self._owner is not threading.current_thread() and self._owner is not None and self._owner.is_alive():
            raise RuntimeError(f"close from another thread than {self._owner.name}, which called init and still lives")
        if self._state is not WorkerState.CLOSING and not self._dispatcher.drain(timeout):
            raise TimeoutError(f"there are runs that have not ended within {timeout:g} s; close can be called again")
        self._state = WorkerState.CLOSING
        self._end()
        self._state = WorkerState.CLOSED

    def get_orchestrator(self) -> Orchestrator:
        """The orchestrator of the graph that the calling thread builds; ``RuntimeError`` outside of ``orch_fn``."""
        orchestrator = self._building.get(threading.get_ident())
        if orchestrator is None:
            raise RuntimeError("there is no graph that this thread builds: an orchestrator belongs to a run")
        return orchestrator

    @property
    def dispatcher(self) -> Dispatcher:
        """What its tasks are submitted to, once it has started."""
        return self._dispatcher

    def disown(self) -> None:
        """Let any thread close it."""
        self._owner = None

    def revive(self) -> None:
        """Start processes again in slots that are out of service, as if none had died; now, where one waits to start.

        A host that was lost is connected to anew.
        """
        if self._has_started:
            self._processes.revive()

    def _end(self) -> None:
        self._dispatcher.closing = True
        try:
            self._processes.close(CLOSE_GRACE)
        finally:
            self._heap.close()
            self._dispatcher.loop.close()

    def __enter__(self) -> Worker:
        self._owner = threading.current_thread()  # the thread that leaves closes, even if another one implies ``init``
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._state is WorkerState.READY:
            self._dispatcher.cancel_runs("the worker is closed after an exception")
        self.close()

    # Runs

    def submit(
        self,
        orch_fn: Callable[..., Any],
        args: Any = None,
        config: Any = None,
        *,
        fail_fast: bool = False,
        priority: int = 0,
        block: bool = False,
        _order: Order | None = None,
        _opened: Callable[[RunHandle], object] = lambda handle: None,
    ) -> RunHandle:
        """Build the graph of a run: calls ``orch_fn(orch, args, config)``, and returns when that has returned.

        Tasks start while the graph is still being built. Any number of runs share the slots: where tasks of two could
        start, those of the earlier run do, and tasks that access the same bytes keep the order of their submission.

        Args:
            orch_fn: submits tasks through ``orch``. What it raises is raised here; tasks that have not started then
                never do.
            args: for ``orch_fn``.
            config: for ``orch_fn``.
            fail_fast: once a task has failed, have every further submission of this run raise that failure.
            priority: tasks of runs with a higher one start first.
            block: wait until fewer than two other runs are open, before the graph is built.
        """
        check_function("orch_fn", orch_fn, "orch_fn(orch, args, config)")
        expect("priority", priority, int, "a whole number")
        self.init()
        if self._process != os.getpid():
            raise RuntimeError(f"this worker is used by process {self._process}, of which this one is a fork")
        if threading.get_ident() in self._building:
            raise RuntimeError("submit within the graph of another run: submit tasks through orch")
        spec = self._arguments
        with SIGINT_HELD:
            run = self._dispatcher.open_run(
                GraphRun(
                    ring_size=spec.ring_size,
                    fail_fast=fail_fast,
                    priority=priority,
                    keeps=(orch_fn, args, config),
                    hazards=_order or (Hazards() if spec.check and not spec.replay_orders else None),
                    order=_order,
                ),
                block,
            )
            orchestrator = Orchestrator(self._dispatcher, run, self._heap, self.callables, spec.ring_timeout)
            handle = RunHandle(self._dispatcher, run)
            try:
                _opened(handle)
                self._building[threading.get_ident()] = orchestrator
                try:
                    with SIGINT_HELD.released():
                        orch_fn(orchestrator, args, config)
                finally:
                    self._building.pop(threading.get_ident(), None)
            except BaseException:
                self._dispatcher.cancel_run(run, "the graph could not be built", running=False)
                raise
            finally:
                orchestrator.end()
                self._dispatcher.close_run(run)
            return handle

    def run(
        self, orch_fn: Callable[..., Any], args: Any = None, config: Any = None, *, fail_fast: bool = False
    ) -> None:
        """``submit``, and wait: raises ``TaskError`` when a task has failed."""
        if not self._arguments.replay_orders:
            self.submit(orch_fn, args, config, fail_fast=fail_fast).wait()
            return
        self.orders, self.differences = [], []
        for place, number in enumerate((0, *self._arguments.replay_orders)):
            order = Order(number)
            self.submit(orch_fn, args, config, fail_fast=fail_fast, _order=order).wait()
            order.end()
            self.orders.append(order)
            if place:
                self.differences += compare(self.orders[0], order)
            order.restore(final=False)
        self.orders[0].restore(final=True)
        for text in self.differences:
            warnings.warn(text, HazardWarning, stacklevel=2)


#: Variables by which libraries learn how many threads to compute with. One that the user has set stays.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")

#: The fewest cores that a slot is pinned to without being asked. On a single one it would wait for whatever else runs
#: there, this process first of all.
PINNED = 2

#: Seconds that a start waits for devices; processes of a worker that was killed may still be ending.
PATIENCE = 5.0


class ChildProcesses:
    """All endpoints of a worker; ``describe`` returns its current specification."""

    def __init__(
        self, dispatcher: Dispatcher, callables: Callables, describe: Callable[[], WorkerSpec], seed: Seed | None
    ) -> None:
        self._dispatcher = dispatcher
        self._callables = callables
        self._describe = describe
        self._pool = ZygotePool(seed=seed)
        self._endpoints: list[ProcessEndpoint] = []
        self._starting: ThreadPoolExecutor | None = None
        self._lease: Lease | None = None
        # Taken now, so that the successor of a process that dies finds the same.
        self._spec = ZygoteSpec(
            command=(sys.executable,),
            environ=dict(os.environ),
            prepare="pytest_aorta.runtime.leaf:import_torch",
            argument={"torch": expects_tensors()},
            run="pytest_aorta.runtime.leaf:serve",
            sys_path=tuple(entry or os.getcwd() for entry in sys.path),
            cwd=os.getcwd(),
        )

    def start(self, give_up: float) -> None:
        """Start everything at once, and wait until all is ready; raises ``StartupError``."""
        worker = self._describe()
        locks = self._lease_devices(worker.device_ids, give_up)
        devices = find_devices()
        shares = _shares(worker)
        for index in range(worker.num_sub_workers):
            self._add_slot(TaskKind.SUB, index, f"sub_worker {index}", next(shares), {}, ())
        for index, device in enumerate(worker.device_ids):
            variables = device_variables([device], devices)
            self._add_slot(TaskKind.NEXT_LEVEL, index, f"slot {index}", next(shares), variables, (locks[device],))
        for index, (child, host) in enumerate(worker.children):
            self._add_child(index, child.level, host)
        if not self._endpoints:
            return
        # The first failure counts, even if others still start or hang: they end with the rest.
        self._starting = ThreadPoolExecutor(len(self._endpoints), "aorta-start")
        started = {self._starting.submit(endpoint.spawn, give_up): endpoint for endpoint in self._endpoints}
        self._starting.shutdown(wait=False)
        for piece in pieces(max(0.0, give_up - time.monotonic()) + 1):
            done, late = wait(started, piece, FIRST_EXCEPTION)
            if not late or any(attempt.exception() for attempt in done):
                break
        for attempt in done:
            attempt.result()
        if late:  # not even their zygote is there
            names = ", ".join(started[attempt].name for attempt in late)
            raise StartupError(f"{names}: not ready in time; startup_timeout_s is too short")

    def _lease_devices(self, devices: Sequence[int], give_up: float) -> dict[int, int]:
        """Lease all devices or none; return the descriptor of each device's lock, which its slot keeps open.

        Leases inherited from the parent process count.
        """
        if not devices:
            return {}
        until = min(give_up, time.monotonic() + PATIENCE)
        try:
            present = find_devices()
            if not are_named_only(present):
                choose_devices(tuple(devices), present)
            inherited = Leases(devices).inherited()
            leases = Leases([device for device in devices if device not in inherited])
            looks = itertools.count()  # at least one, however late it is
            self._lease = leases.acquire(
                len(leases.devices), cancelled=lambda: next(looks) > 0 and time.monotonic() > until
            )
        except LeaseCancelled:
            held = leases.holders() or dict.fromkeys(leases.devices, "other processes")
            holders = ", ".join(f"device {device} by {holder}" for device, holder in held.items())
            raise StartupError(
                f"device_ids {devices_text(devices)} are not free: {holders}; a device belongs to one worker at a time"
            ) from None
        except (LeaseError, OSError, ValueError) as error:
            raise StartupError(f"device_ids {devices_text(devices)}: {error}") from error
        return {**inherited, **dict(zip(self._lease.devices, self._lease.descriptors, strict=True))}

    def _add_slot(
        self,
        kind: TaskKind,
        index: int,
        name: str,
        cores: tuple[int, ...] | None,
        variables: dict[str, str],
        held: Sequence[int],
    ) -> None:
        def launch(endpoint: ProcessEndpoint) -> Link:
            worker = self._describe()
            check = "orders" if worker.replay_orders else worker.check
            what = (list(worker.callables.definitions.values()), worker.prepare, check, worker.max_result)
            payload = {"role": "slot", "variables": variables}
            has_room = cores is not None and len(cores) >= PINNED and not endpoint.crowded
            pinned = has_room if worker.pin == "auto" else worker.pin
            threads = _thread_variables(cores)
            return self._fork(endpoint, payload, what, threads, cores if pinned else None, held, worker.pin == "auto")

        self._add(kind, index, name, launch)

    def _add_child(self, index: int, level: int, host: str | None) -> None:
        def launch(endpoint: ProcessEndpoint) -> Link:
            child, _ = self._describe().children[index]
            if host is None:
                # Of the environment that the slots below need: their zygote is a fork of this one, too.
                threads = _threads_below(child)
                return self._fork(endpoint, {"role": "worker", "unset": list(threads)}, (child,), threads)
            from pytest_aorta.runtime.hosts import HostLink

            return HostLink(endpoint.received, endpoint.died, host, child)

        name = f"child_worker {index} level={level}"
        self._add(TaskKind.NEXT_LEVEL, index, name, launch, respawn=host is None, cancels=True)

    def _add(
        self, kind: TaskKind, index: int, name: str, launch: Callable[[ProcessEndpoint], Link], **how: bool
    ) -> None:
        deaths = self._describe().max_deaths
        endpoint = ProcessEndpoint(
            self._dispatcher, kind, index, name, launch, self._callables, max_deaths=deaths, **how
        )
        self._endpoints.append(endpoint)
        self._dispatcher.placement.add(endpoint)

    def _fork(
        self,
        endpoint: ProcessEndpoint,
        payload: dict[str, Any],
        what: Message,
        threads: Mapping[str, str],
        cores: tuple[int, ...] | None = None,
        held: Sequence[int] = (),
        lets_go: bool = False,
    ) -> ProcessLink:
        output = [fd for fd in (1, 2) if os.path.exists(f"/proc/self/fd/{fd}")]
        ours, theirs = socket.socketpair()
        stacks = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the link)
        bulk = Bulk(os.memfd_create("aorta-bulk"))
        try:
            zygote = self._pool.acquire(replace(self._spec, environ={**self._spec.environ, **threads}))
            if zygote.against_forking:
                reasons = "; ".join(zygote.against_forking)
                raise StartupError(f"{endpoint.name}: a process of this interpreter cannot be forked: {reasons}")
            # Shared memory that a task opens by its name belongs to whoever has made it: with a tracker of its own, the
            # slot would unlink it at its end. ``spawn`` hands the tracker on like this.
            trackers = sys.modules.get("multiprocessing.resource_tracker")
            tracker = None if trackers is None else trackers._resource_tracker._fd
            extra = () if tracker is None else (tracker,)
            payload = {**payload, "output": output, "owner": os.getpid(), "tracker": len(extra)}
            file = Path(f"/proc/{os.getpid()}/fd/{stacks.fileno()}")
            task = zygote.start_task(payload, stacks=file, cores=cores, descriptors=held)
            for fd in (theirs.fileno(), bulk.fd, *output, *extra):
                task.send_fd(fd)
        except BaseException as error:
            ours.close()
            stacks.close()
            bulk.close()
            if isinstance(error, ZygoteError | OSError):
                raise StartupError(f"{endpoint.name}: {error}") from error
            raise
        finally:
            theirs.close()
        all_cores = frozenset(os.sched_getaffinity(0)) if cores and lets_go else frozenset()
        link = ProcessLink(endpoint, self._dispatcher.loop, task, ours, stacks, bulk, all_cores)
        link.send(what)
        return link

    def run_ended(self) -> None:
        for endpoint in self._endpoints:
            endpoint.run_ended()

    def revive(self) -> None:
        for endpoint in self._endpoints:
            endpoint.revive()

    def close(self, grace: float) -> None:
        threads = [threading.Thread(target=endpoint.close, args=(grace,)) for endpoint in self._endpoints]
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + 2 * grace + 5
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        self._pool.close()
        # Nothing starts any more, so these are about to end, and must do so before their channels are closed.
        if self._starting is not None:
            self._starting.shutdown(wait=True)
        for endpoint in self._endpoints:
            endpoint.join(grace)
        if self._lease is not None:
            self._lease.release()


def expects_tensors() -> bool:
    """Whether zygotes import torch, which costs a second once instead of in every process."""
    return "torch" in sys.modules


def _thread_variables(cores: tuple[int, ...] | None) -> dict[str, str]:
    count = str(threads_of(cores)) if cores else "1"
    return {name: count for name in _THREADS if name not in os.environ}


def _threads_below(worker: WorkerSpec) -> dict[str, str]:
    if worker.children:
        return next((_threads_below(child) for child, host in worker.children if host is None), {})
    return _thread_variables(next(_shares(worker)))


def _shares(worker: WorkerSpec) -> Iterator[tuple[int, ...] | None]:
    """The cores of each slot; ``None`` for all, where slots have GPUs, or are more than there are cores."""
    slots = worker.num_sub_workers + len(worker.device_ids)
    has_gpus = worker.device_ids and not are_named_only(find_devices())
    if not slots or has_gpus or slots > len(os.sched_getaffinity(0)):
        return itertools.repeat(None)
    return iter(core_shares(slots))
