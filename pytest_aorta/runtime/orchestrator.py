"""The orchestrator, which a graph is built with: it submits tasks, allocates memory, opens scopes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.arguments import expect, given, listed, seconds, whole_number
from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD
from pytest_aorta.runtime.engine.task_ring import RingFull
from pytest_aorta.runtime.engine.tasks import GraphTask, Job, Member, Preparation, TaskKind
from pytest_aorta.runtime.graph.args import TaskArgs
from pytest_aorta.runtime.graph.footprint import footprint_of
from pytest_aorta.runtime.handles import MapRef, TaskRef
from pytest_aorta.runtime.task_memory import TaskMemory

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.engine.runs import GraphRun
    from pytest_aorta.runtime.graph.args import Tag
    from pytest_aorta.runtime.graph.footprint import Footprint
    from pytest_aorta.runtime.graph.nodes import Node
    from pytest_aorta.runtime.memory.callables import CallableHandle, Definition
    from pytest_aorta.runtime.memory.heap import Heap
    from pytest_aorta.runtime.memory.rings import Slab

    #: The callable of a handle, and the ids of the workers that may run it; raises for workers that may not.
    Resolve = Callable[[CallableHandle, Iterable[int]], tuple[Definition, frozenset[int] | None]]

#: Tasks per SUB worker that ``map`` makes: as many as ``multiprocessing.Pool.map``, whose items may differ as much.
CHUNKS = 4

#: Scopes within each other.
MAX_SCOPES = 64

_MEMBERS = "a list of TaskArgs, one per member"
_AFTER = "a list of tasks, as submissions return them"


class Orchestrator:
    """Handed to ``orch_fn``; usable until that has returned.

    ``after`` takes tasks that have to succeed first, besides those that follow from the tensors' tags. ``timeout`` is
    the task's deadline in seconds from its start; then it is ended, and the slot where it ran gets a new process.
    """

    def __init__(
        self, dispatcher: Dispatcher, run: GraphRun, heap: Heap, resolve: Resolve, ring_timeout: float | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._placement = dispatcher.placement
        self._run = run
        self._heap = heap
        self._resolve = resolve
        self._ring_timeout = ring_timeout
        self._scopes: list[list[Node]] = [[]]
        self._preparations: dict[str, TaskRef] = {}

    def __repr__(self) -> str:
        depth = len(self._scopes)
        return f"<Orchestrator of a {self._dispatcher.name}: {f'{depth} scopes open' if depth else 'closed'}>"

    def submit_sub(
        self,
        handle: CallableHandle,
        args: TaskArgs | None = None,
        *,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable as ``fn(args)`` on any idle SUB worker."""
        definition, _ = self._resolve(handle, ())
        self._placement.check_size(TaskKind.SUB, 1)
        return self._submit(GraphTask(definition, args, kind=TaskKind.SUB, timeout=timeout), after)

    def submit_sub_group(
        self,
        handle: CallableHandle,
        args_list: Sequence[TaskArgs | None],
        *,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable once per entry, all at the same time, as one task."""
        definition, _ = self._resolve(handle, ())
        args_list = listed("args_list", args_list, _MEMBERS)
        self._placement.check_size(TaskKind.SUB, len(args_list))
        members = tuple([Member(definition, args) for args in args_list])
        return self._submit(GraphTask(kind=TaskKind.SUB, group=members, timeout=timeout), after)

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
        found, before = list(items), tuple(after)
        if chunksize is None:
            chunksize = max(1, math.ceil(len(found) / (CHUNKS * self._placement.size(TaskKind.SUB))))
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise ValueError(f"chunksize must be a whole number from 1, not {chunksize!r}")
        tasks = []
        for first in range(0, len(found), chunksize):
            chunk = found[first : first + chunksize]
            task = GraphTask(definition, config=chunk, first_item=first, kind=TaskKind.SUB, timeout=timeout)
            tasks.append(self._submit(task, before))
        return MapRef(tasks)

    def submit_next_level(
        self,
        handle: CallableHandle,
        args: TaskArgs | None = None,
        config: Any = None,
        *,
        worker: int | None = None,
        affinity: int | None = None,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
    ) -> TaskRef:
        """Run a callable one level below: on a slot as ``fn(args)``, on a worker as ``orch_fn(orch, args, config)``.

        Args:
            handle: from ``register``.
            args: tensors and scalars.
            config: any object that can be pickled; slots find it as ``args.config``.
            worker: the id of the worker that must run it; without, any idle one does.
            affinity: the id of the worker that runs it if it is idle.
            after: see above.
            timeout: see above.
        """
        named = [self._placement.check_id(TaskKind.NEXT_LEVEL, id) for id in (affinity, worker) if id is not None]
        definition, eligible = self._resolve(handle, named)
        self._placement.check_size(TaskKind.NEXT_LEVEL, 1)
        task = GraphTask(
            definition,
            args,
            config,
            worker=worker,
            affinity=affinity,
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
        ids = [self._placement.check_id(TaskKind.NEXT_LEVEL, worker) for worker in workers]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a worker is named twice: {ids}")
        definition, _ = self._resolve(handle, ids)
        self._placement.check_size(TaskKind.NEXT_LEVEL, len(ids))
        members = tuple(
            Member(definition, args, config, worker=worker) for args, worker in zip(args_list, ids, strict=True)
        )
        return self._submit(GraphTask(kind=TaskKind.NEXT_LEVEL, group=members, timeout=timeout), after)

    def submit_job(
        self,
        job: Job,
        *,
        after: Iterable[TaskRef] = (),
        timeout: float | None = None,
        urgent: bool = False,
        worker: int | None = None,
    ) -> TaskRef:
        """Run a job on any idle slot of this host, or of any host below; an ``urgent`` one before those that wait.

        ``worker`` is the id of the worker below that has to run it, if only one may.
        """
        expect("job", job, Job, "a Job")
        self._placement.check_size(TaskKind.JOB, 1)
        before = listed("after", after, _AFTER)
        if job.preparation is not None and self._dispatcher.level == 3:
            before.append(self._prepared(job.preparation, urgent))
        eligible = None if worker is None else frozenset({self._placement.check_id(TaskKind.JOB, worker)})
        task = GraphTask(job=job, eligible=eligible, kind=TaskKind.JOB, timeout=timeout, urgent=urgent)
        ref = self._submit(task, before, scoped=False)  # nothing depends on it, and a session may have very many
        self._dispatcher.release_scope([ref._node])
        return ref

    def submit_preparation(self, preparation: Preparation) -> TaskRef:
        """Prepare this host, or any host below, for jobs of a key, before what waits. Once on this host."""
        if self._dispatcher.level == 3:
            return self._prepared(preparation, urgent=True)
        return self.submit_job(Job(preparation.target, preparation.payload), urgent=True)

    def _prepared(self, preparation: Preparation, urgent: bool) -> TaskRef:
        """The task that prepares this host for jobs of a key."""
        if preparation.key not in self._preparations:
            job = Job(preparation.target, preparation.payload)
            self._preparations[preparation.key] = self._submit(GraphTask(job=job, kind=TaskKind.JOB, urgent=urgent))
        return self._preparations[preparation.key]

    def alloc(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor in shared memory that belongs to the runtime; its content is undefined (default: float32).

        It lives until the scope in which it was allocated has ended and all tasks that use it have.

        Raises:
            RuntimeError: its ring stays full for ten seconds.
            ValueError: it is larger than a ring (``heap_ring_size``).
        """
        self._check_open()
        sizes = listed("shape", shape, "a list of whole numbers")
        for size in sizes:
            whole_number("a size of the shape", size)
        _check_dtype(dtype)
        tensor, slab = self._heap.allocate(tuple(sizes), dtype, len(self._scopes) - 1)
        self._scopes[-1].append(self._keep(tensor, slab))
        return tensor

    def _keep(self, tensor: torch.Tensor, slab: Slab) -> Node:
        """The node of memory that was just allocated; without one, the memory is released."""
        SIGINT_GUARD.hold()
        try:
            return self._dispatcher.add_memory(self._run, slab, footprint_of(tensor))
        except BaseException:
            self._heap.release(slab)
            raise
        finally:
            SIGINT_GUARD.release()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Tasks and memory of a scope are released when it ends, once no task uses them; does not wait for that."""
        self._check_open()
        if len(self._scopes) >= MAX_SCOPES:
            raise RuntimeError(f"at most {MAX_SCOPES} scopes within each other")
        self._scopes.append([])
        try:
            yield
        finally:
            if self._scopes:  # the whole graph may have ended meanwhile
                self._dispatcher.release_scope(self._scopes.pop())

    def end(self) -> None:
        """The graph is complete: the outermost scope ends."""
        while self._scopes:
            self._dispatcher.release_scope(self._scopes.pop())

    def _submit(self, task: GraphTask, after: Iterable[TaskRef] = (), *, scoped: bool = True) -> TaskRef:
        if task.timeout is not None:
            seconds("timeout", task.timeout)
        self._check_open()
        producers = self._producers(after) if after != () else []
        if task.args is None and not task.group:  # what there are most of
            return TaskRef(self._dispatcher, self._add(task, [], producers, scoped))
        memory = TaskMemory(self._heap, self._keep, len(self._scopes) - 1)
        try:
            accesses = self._accesses(task, memory)
            node = self._add(task, accesses, producers, scoped)
            self._scopes[-1].extend(memory.output_nodes)
        except BaseException:
            memory.copy_nodes += memory.output_nodes
            raise
        finally:
            if memory.copy_nodes:
                self._dispatcher.release_scope(memory.copy_nodes)
        return TaskRef(self._dispatcher, node, tuple(memory.outputs))

    @staticmethod
    def _accesses(task: GraphTask, memory: TaskMemory) -> list[tuple[Footprint, Tag]]:
        """What the task does to which memory; its arguments are from now on what they are now."""
        accesses = []
        for member in task.members:
            if member.args is not None:
                if not isinstance(member.args, TaskArgs):
                    raise TypeError(
                        f"the arguments of a task must be TaskArgs or None, not {given(member.args)}; build them with"
                        " TaskArgs().add(tensor).add_scalar(1)"
                    )
                member.args = member.args.snapshot()
                member.args.replace(memory.output, memory.copy)
                accesses += member.args.check()
        return accesses

    def _producers(self, after: Iterable[TaskRef]) -> list[Node]:
        producers = []
        for ref in listed("after", after, _AFTER):
            expect("after", ref, TaskRef, _AFTER)
            if ref._dispatcher is not self._dispatcher:
                raise ValueError(f"after: {ref!r} is not a task of this worker")
            producers.append(ref._node)
        return producers

    def _add(self, task: GraphTask, accesses: list[tuple[Footprint, Tag]], producers: list[Node], scoped: bool) -> Node:
        """Add a task to the graph, when the ring has a slot for it."""
        give_up = None if self._ring_timeout is None else time.monotonic() + self._ring_timeout
        while True:
            SIGINT_GUARD.hold()  # a task belongs to its scope, or does not exist
            try:
                node = self._dispatcher.submit(self._run, task, accesses, producers)
                if scoped:
                    self._scopes[-1].append(node)
                return node
            except RingFull:
                if give_up is not None and time.monotonic() >= give_up:
                    raise
            finally:
                SIGINT_GUARD.release()
            left = None if give_up is None else max(0.0, give_up - time.monotonic())
            self._dispatcher.wait_for_room(self._run, left)
            self._check_open()

    def _check_open(self) -> None:
        if not self._scopes:
            raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")


def _check_dtype(dtype: object) -> None:
    import torch

    if dtype is not None:
        expect("dtype", dtype, torch.dtype, "a torch.dtype or None")
