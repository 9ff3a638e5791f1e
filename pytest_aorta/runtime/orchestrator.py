"""The orchestrator that builds graphs, and handles of tasks and runs."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.common.interrupts import SIGINT_HELD, wait_for
from pytest_aorta.runtime.arguments import (
    TaskArgs,
    blank_tensor,
    check_timeout,
    expect,
    given,
    listed,
    seconds,
)
from pytest_aorta.runtime.callables import dump_argument
from pytest_aorta.runtime.dispatcher import Dispatcher, GraphTask, Member, RingFull, TaskKind, record_of
from pytest_aorta.runtime.graph import HazardWarning, State
from pytest_aorta.runtime.records import Outcome, TaskError, TaskRecord
from pytest_aorta.runtime.tensors import slab_of, snapshot

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.callables import CallableHandle, Callables
    from pytest_aorta.runtime.dispatcher import GraphRun
    from pytest_aorta.runtime.graph import Footprint, GraphNode, Tag
    from pytest_aorta.runtime.tensors import ByValue, Heap, Slab


class TaskRef(Future[Any]):
    """A task that was submitted: a future, for ``as_completed``, ``add_done_callback``, ``await`` and ``gather``.

    Its outcome is that of ``result``. Cancelling the task that awaits it cancels it.
    """

    def __init__(self, dispatcher: Dispatcher, node: GraphNode, outputs: tuple[torch.Tensor, ...] = ()) -> None:
        # Not the base class's: most references need none of its lock and lists (``__getattr__``).
        self._dispatcher = dispatcher
        self._node = node
        #: Tensors allocated for ``TaskArgs.add_output``, in order, for all members of a group.
        self.outputs = outputs
        for tensor in outputs:
            if (slab := slab_of(tensor)) is not None:
                slab.reference = weakref.ref(self)

    def __repr__(self) -> str:
        record = self.record
        outcome = self.state.value if record is None else record.outcome.value
        return f"<TaskRef {self.id} {self._node.label}: {outcome}>"

    def __getattr__(self, name: str) -> Any:
        if name not in _FUTURE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._dispatcher.lock:
            if name not in vars(self):
                super().__init__()
                self._dispatcher.let_run(self._node.run)
                self._dispatcher.watch(self._node.payload, self._settle)
        return vars(self)[name]

    def _settle(self) -> None:
        record = record_of(self._node)
        if record.outcome is Outcome.CANCELLED:
            super().cancel()
            self.set_running_or_notify_cancel()
        elif record.ok:
            self.set_result(record.value)
        else:
            self.set_exception(_error_of(record))

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()

    def done(self) -> bool:
        """Whether it has settled."""
        has_settled: bool = self._node.payload.has_settled
        return has_settled

    def running(self) -> bool:
        """Whether it has started, and has not ended."""
        return self._node.state is State.RUNNING

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.done() and self._node.payload.outcome is Outcome.CANCELLED

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What ``result`` would raise; raises ``CancelledError`` if it was cancelled."""
        record = self.wait(timeout)
        if record.outcome is Outcome.CANCELLED:
            raise CancelledError(record.failure.message if record.failure is not None else "")
        return None if record.ok else _error_of(record)

    @property
    def id(self) -> int:
        """Its number; later tasks have greater ones."""
        return self._node.id

    slot_id = id  # upstream's name

    @property
    def state(self) -> State:
        """Its state at this moment."""
        return self._node.state

    @property
    def record(self) -> TaskRecord | None:
        """How it ended; ``None`` while it has not settled."""
        return record_of(self._node) if self._node.payload.has_settled else None

    def wait(self, timeout: float | None = None) -> TaskRecord:
        """Block until it has settled. A failure is in the record, not an exception.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
        """
        check_timeout(timeout)
        task: GraphTask = self._node.payload
        give_up = math.inf if timeout is None else time.monotonic() + timeout
        if not task.has_settled and timeout is None:
            self._dispatcher.loop.poll_until(lambda: task.has_settled)
        if not task.has_settled:
            self._dispatcher.let_run(self._node.run)
            with self._dispatcher.lock:
                task.awaited = True
                if not self._dispatcher.lock.wait_until(lambda: task.has_settled, give_up):
                    raise TimeoutError(f"task {self.id} has not ended within {timeout:g} s")
        return record_of(self._node)

    def result(self, timeout: float | None = None) -> Any:
        """The return value of its callable; for a group, the list of its members' return values.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
            Exception: what its callable has raised, with the traceback of its process as cause.
            TaskError: it failed otherwise, or with an exception that cannot be pickled.
        """
        record = self.wait(timeout)
        if record.ok:
            return record.value
        raise _error_of(record)

    def cancel(self, why: str = "cancelled") -> bool:
        """Do not start it; when it runs, end it. Whether it had not ended."""
        had_ended = self.done()
        self._dispatcher.cancel(self._node, why)
        return not had_ended


#: What the base class sets.
_FUTURE = frozenset(vars(Future()))


def _error_of(record: TaskRecord) -> BaseException:
    return (record.failure and record.failure.exception()) or TaskError(record)


class MapRef:
    """The tasks of ``Orchestrator.map``: each is a chunk of items, in their order."""

    def __init__(self, tasks: Sequence[TaskRef]) -> None:
        self.tasks = tuple(tasks)

    def wait(self, timeout: float | None = None) -> list[Any]:
        """What the callable has returned for each item, in the order of the items.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
            TaskError: an item failed; the text names it, and other chunks may still run.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        results: list[Any] = []
        for task in self.tasks:
            record = task.wait(None if give_up is None else max(0.0, give_up - time.monotonic()))
            if not record.ok:
                raise TaskError(record)
            results += record.payload
        return results

    def __await__(self) -> Generator[Any, None, list[Any]]:
        chunks = yield from asyncio.gather(*self.tasks).__await__()
        return [result for chunk in chunks for result in chunk]


class RunHandle:
    """A run that was submitted; it goes on whether or not a thread waits for it."""

    def __init__(self, dispatcher: Dispatcher, run: GraphRun) -> None:
        self._dispatcher = dispatcher
        self._run = run

    @property
    def done(self) -> bool:
        """Whether all its tasks have ended."""
        return self._run.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all tasks have ended; every call has the same outcome.

        Args:
            timeout: seconds; when they have passed, the run goes on.

        Raises:
            TimeoutError: it has not ended within ``timeout``.
            TaskError: the first task that failed.
        """
        check_timeout(timeout)
        if not wait_for(self._run.ended, timeout):
            raise TimeoutError(f"the run has not ended within {timeout:g} s")
        for text in self._run.hazards.take() if self._run.hazards is not None else ():
            warnings.warn(text, HazardWarning, stacklevel=2)
        if self._run.first_failure is not None:
            raise TaskError(self._run.first_failure)

    result = wait

    def future(self) -> Future[None]:
        """Its end as a future, with the outcome of ``wait``; cancelling that does not cancel the run."""
        future: Future[None] = Future()

        def end() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    self.wait()
                    future.set_result(None)
                except Exception as error:
                    future.set_exception(error)

        self._dispatcher.watch(self._run, end)
        return future

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self.future()).__await__()

    def add_done_callback(self, callback: Callable[[RunHandle], object]) -> None:
        """Call with this handle once all tasks have ended, on one of the worker's threads."""
        self.future().add_done_callback(lambda _: callback(self))

    @property
    def records(self) -> list[TaskRecord]:
        """The records of the tasks that have settled, in the order of their submission."""
        with self._dispatcher.lock:
            records = {node.id: record_of(node) for node in self._run.nodes if node.payload.has_settled}
            records.update(self._run.records)
        return [records[number] for number in sorted(records)]

    def trace(self, file: str | os.PathLike[str]) -> None:
        """Write when and where its tasks ran, as ``chrome://tracing`` and https://ui.perfetto.dev read it.

        One row per slot; tasks that have not started, or not ended yet, are left out.
        """
        rows: dict[str, int] = {}
        events: list[dict[str, Any]] = []
        for record in self.records:
            for part in record.members or (record,):
                if part.started is None or part.ended is None or part.worker is None:
                    continue
                told = {
                    "task": part.id,
                    "outcome": part.outcome.value,
                    "waited_ms": 1e3 * (part.started - part.submitted),
                }
                if part.failure is not None:
                    told["failure"] = part.failure.message
                row = rows.setdefault(part.worker, len(rows))
                where = {"ts": 1e6 * part.started, "dur": 1e6 * (part.ended - part.started), "pid": 0, "tid": row}
                events.append({"name": part.label, "cat": part.outcome.value, "ph": "X", **where, "args": told})
        for name, row in rows.items():
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}})
        Path(file).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def cancel(self, why: str = "cancelled", *, running: bool = False, grace: float | None = None) -> None:
        """Start no further task; with ``running``, end running ones within ``grace`` seconds (the worker's)."""
        self._dispatcher.cancel_run(self._run, why, running, grace)


#: Tasks per SUB worker that ``map`` makes: as many as ``multiprocessing.Pool.map``, whose items may differ as much.
CHUNKS = 4

#: Scopes within each other.
MAX_SCOPES = 64

_MEMBERS = "a list of TaskArgs, one per member"
_AFTER = "a list of tasks, as submissions return them"


def _pack(task: GraphTask) -> Sequence[TaskRef]:
    references: list[TaskRef] = []
    config = task.members[0].config  # the same one for all members
    if config is not None:
        config = dump_argument(config, "config cannot be sent to another process", references)
    for member in task.members:
        member.config = config
        scalars = () if member.args is None else member.args.scalars
        if not all(isinstance(value, int | float | str) for value in scalars):
            member.scalars = dump_argument(scalars, "a scalar cannot be sent to another process", references)
    for member in task.members if references else ():
        member.references = tuple(references)
    return references


class Orchestrator:
    """Handed to ``orch_fn``; usable until that has returned.

    ``after``: tasks that have to succeed first, in addition to the tensors' writers. ``timeout`` is
    the task's deadline in seconds from its start; then it is ended, and the slot where it ran gets a new process.
    """

    def __init__(
        self, dispatcher: Dispatcher, run: GraphRun, heap: Heap, callables: Callables, ring_timeout: float | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._placement = dispatcher.placement
        self._run = run
        self._heap = heap
        self._callables = callables
        self._resolve = callables.resolve
        self._ring_timeout = ring_timeout
        self._scopes: list[list[GraphNode]] = [[]]

    def submit_sub(
        self,
        handle: CallableHandle,
        args: TaskArgs | None = None,
        config: Any = None,
        *,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable as ``fn(args)`` on any idle SUB worker.

        Args:
            handle: from ``register``.
            args: tensors and values.
            config: any value that cloudpickle takes, as ``args.config``. In it, and among the scalars, a ``TaskRef`` or
                ``MapRef`` stands for what its tasks return: the new task waits for them.
            after: see above.
            timeout: see above.
        """
        definition, _ = self._resolve(handle, ())
        self._placement.check_size(TaskKind.SUB, 1)
        return self._submit(GraphTask(definition, args, config, timeout=timeout), after)

    def submit_sub_group(
        self,
        handle: CallableHandle,
        args_list: Sequence[TaskArgs | None],
        config: Any = None,
        *,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable once per entry, all at the same time, as one task."""
        definition, _ = self._resolve(handle, ())
        args_list = listed("args_list", args_list, _MEMBERS)
        self._placement.check_size(TaskKind.SUB, len(args_list))
        members = tuple([Member(definition, args, config) for args in args_list])
        return self._submit(GraphTask(group=members, timeout=timeout), after)

    def map(
        self,
        handle: CallableHandle,
        items: Iterable[Any],
        *,
        chunksize: int | None = None,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> MapRef:
        """Call ``fn(item)`` for each item, on the SUB workers, many items with one task.

        Args:
            handle: from ``register``.
            items: any objects that can be pickled.
            chunksize: items of one task; without, such that every SUB worker gets four tasks.
            after: see above; for all tasks.
            timeout: see above; for each task, which is a chunk.

        Raises:
            ValueError: ``chunksize`` is no number from 1.
        """
        definition, _ = self._resolve(handle, ())
        self._placement.check_size(TaskKind.SUB, 1)
        elements, before = list(items), tuple(after)
        if chunksize is None:
            chunksize = max(1, math.ceil(len(elements) / (CHUNKS * len(self._placement.pools[TaskKind.SUB]))))
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise ValueError(f"chunksize must be a whole number from 1, not {chunksize!r}")
        tasks = [
            GraphTask(definition, config=elements[first : first + chunksize], first_item=first, timeout=timeout)
            for first in range(0, len(elements), chunksize)
        ]
        packed = [_pack(task) for task in tasks]  # all of them, before there is a task
        return MapRef([self._submit(task, before, refs) for task, refs in zip(tasks, packed, strict=True)])

    def submit_next_level(
        self,
        handle: CallableHandle,
        args: TaskArgs | None = None,
        config: Any = None,
        *,
        worker: int | None = None,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable one level below: on a slot as ``fn(args)``, on a worker as ``orch_fn(orch, args, config)``.

        Args:
            handle: from ``register``.
            args: tensors and scalars.
            config: see ``submit_sub``.
            worker: the id of the worker that must run it; without, any idle one does.
            after: see above.
            timeout: see above.
        """
        named = [] if worker is None else [self._placement.check_id(worker)]
        definition, eligible = self._resolve(handle, named)
        self._placement.check_size(TaskKind.NEXT_LEVEL, 1)
        task = GraphTask(
            definition,
            args,
            config,
            worker=worker,
            eligible=eligible,
            kind=TaskKind.NEXT_LEVEL,
            timeout=timeout,
        )
        return self._submit(task, after)

    def submit_next_level_group(
        self,
        handle: CallableHandle,
        args_list: Sequence[TaskArgs | None],
        config: Any = None,
        *,
        workers: Sequence[int],
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable once per worker, member i on ``workers[i]``, all at the same time, as one task.

        When one member fails, the others get the worker's ``grace`` to end, and are then ended.
        """
        args_list, workers = listed("args_list", args_list, _MEMBERS), listed("workers", workers, "a list of ids")
        if len(workers) != len(args_list):
            raise ValueError(f"{len(args_list)} members, but {len(workers)} workers")
        ids = [self._placement.check_id(worker) for worker in workers]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a worker is named twice: {ids}")
        definition, _ = self._resolve(handle, ids)
        self._placement.check_size(TaskKind.NEXT_LEVEL, len(ids))
        members = tuple(
            Member(definition, args, config, worker=worker) for args, worker in zip(args_list, ids, strict=True)
        )
        return self._submit(GraphTask(kind=TaskKind.NEXT_LEVEL, group=members, timeout=timeout), after)

    def alloc(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor in shared memory that belongs to the runtime; its content is undefined (default: float32).

        It lives until the scope in which it was allocated has ended and all tasks that use it have.

        Raises:
            RuntimeError: its ring stays full for ten seconds.
            ValueError: it is larger than a ring (``heap_ring_size``).
        """
        self._check_open()
        tensor, slab = self._allocate(blank_tensor(shape, dtype))
        self._scopes[-1].append(self._keep(slab))
        return tensor

    def _allocate(self, blank: torch.Tensor) -> tuple[torch.Tensor, Slab]:
        tensor, slab = self._heap.allocate(blank, len(self._scopes) - 1)
        if self._run.order is not None:  # every order begins with the same content
            tensor.untyped_storage().fill_(0)  # type: ignore[attr-defined]
        return tensor, slab

    def _keep(self, slab: Slab) -> GraphNode:
        with SIGINT_HELD:
            try:
                return self._dispatcher.add_memory(self._run, slab)
            except BaseException:
                self._heap.release(slab)
                raise

    @contextmanager
    def scope(self) -> Iterator[Orchestrator]:
        """Tasks and memory of a scope are released when it ends, once no task uses them; does not wait for that."""
        self._check_open()
        if len(self._scopes) >= MAX_SCOPES:
            raise RuntimeError(f"at most {MAX_SCOPES} scopes within each other")
        self._scopes.append([])
        try:
            yield self
        finally:
            if self._scopes:  # the whole graph may have ended meanwhile
                self._dispatcher.release_scope(self._scopes.pop())

    def end(self) -> None:
        while self._scopes:
            self._dispatcher.release_scope(self._scopes.pop())

    def _submit(
        self, task: GraphTask, after: Iterable[TaskRef] = (), packed: Sequence[TaskRef] | None = None
    ) -> TaskRef:
        if task.timeout is not None:
            seconds("timeout", task.timeout)
        self._check_open()
        producers = self._producers(after) if after != () else []
        if task.args is not None or task.group or task.config is not None:
            for member in task.members:
                if not isinstance(member.args, TaskArgs | None):
                    raise TypeError(
                        f"the arguments of a task must be TaskArgs or None, not {given(member.args)}; build them with"
                        " TaskArgs().add(tensor).add_scalar(1)"
                    )
            producers += self._producers(_pack(task) if packed is None else packed)
        if task.args is None and not task.group:  # what there are most of
            return TaskRef(self._dispatcher, self._add(task, [], producers))
        outputs: list[torch.Tensor] = []
        output_nodes: list[GraphNode] = []
        copies: dict[int, torch.Tensor | ByValue] = {}

        def output(blank: torch.Tensor) -> torch.Tensor:
            tensor, slab = self._allocate(blank)
            output_nodes.append(self._keep(slab))
            outputs.append(tensor)
            return tensor

        def copy(tensor: torch.Tensor) -> torch.Tensor | ByValue:
            """Made once per submission, however many members are given the tensor."""
            if id(tensor) not in copies:
                copies[id(tensor)] = snapshot(tensor)
            return copies[id(tensor)]

        try:
            accesses: list[tuple[Footprint, Tag]] = []
            for member in task.members:
                if member.args is not None:
                    member.args, its_accesses = member.args.submitted(output, copy)
                    accesses += its_accesses
                    tensors = [tensor for tensor in member.args.tensors if not isinstance(tensor, tuple)]
                    if self._run.order is not None:
                        self._run.order.remember(tensors)
                    # Held, whatever the tag.
                    slabs = filter(None, map(slab_of, tensors))
                    producers += [slab.node for slab in slabs if slab.node is not None and slab.node.run is self._run]
            node = self._add(task, accesses, producers)
            self._scopes[-1].extend(output_nodes)
        except BaseException:
            self._dispatcher.release_scope(output_nodes)
            raise
        return TaskRef(self._dispatcher, node, tuple(outputs))

    def _producers(self, after: Iterable[TaskRef]) -> list[GraphNode]:
        producers = []
        for ref in listed("after", after, _AFTER):
            expect("after", ref, TaskRef, _AFTER)
            if ref._dispatcher is not self._dispatcher:
                raise ValueError(f"after: {ref!r} is not a task of this worker")
            producers.append(ref._node)
        return producers

    def _add(self, task: GraphTask, accesses: list[tuple[Footprint, Tag]], producers: list[GraphNode]) -> GraphNode:
        give_up = math.inf if self._ring_timeout is None else time.monotonic() + self._ring_timeout
        definition = task.members[0].definition
        assert definition is not None
        while True:
            try:
                with self._dispatcher.turn:  # without SIGINT: a task belongs to its scope, or does not exist
                    # In this lock, a callable is unregistered: it may have been since it was resolved.
                    if definition.digest not in self._callables.definitions:
                        raise ValueError(f"{definition.name} was unregistered while a task of it was submitted")
                    node = self._dispatcher.submit(self._run, task, definition.name, accesses, producers)
                    self._scopes[-1].append(node)
                    hazards = self._run.hazards.take() if self._run.hazards is not None else ()
                for text in hazards:
                    warnings.warn(text, HazardWarning, stacklevel=4)
                return node
            except RingFull:
                if time.monotonic() >= give_up:
                    raise
            self._dispatcher.wait_for_room(self._run, give_up)
            self._check_open()

    def _check_open(self) -> None:
        if not self._scopes:
            raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")
