"""The orchestrator, which a graph is built with: it submits tasks, allocates memory, opens scopes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.arguments import TaskArgs, expect, given, listed, seconds, whole_number
from pytest_aorta.runtime.callables import dump_argument
from pytest_aorta.runtime.event_loop import SIGINT_HELD
from pytest_aorta.runtime.handles import MapRef, TaskRef
from pytest_aorta.runtime.hazards import HazardWarning
from pytest_aorta.runtime.scheduling import GraphTask, Member, RingFull, TaskKind
from pytest_aorta.runtime.tensors import footprint_of, share

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.callables import CallableHandle, Callables
    from pytest_aorta.runtime.dispatcher import Dispatcher
    from pytest_aorta.runtime.graph import Footprint, Node, Tag
    from pytest_aorta.runtime.heap import Heap
    from pytest_aorta.runtime.scheduling import GraphRun
    from pytest_aorta.runtime.tensors import Slab

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

    ``after`` takes tasks that have to succeed first, besides those that follow from the tensors' tags. ``timeout`` is
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
        self._scopes: list[list[Node]] = [[]]

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
        found, before = list(items), tuple(after)
        if chunksize is None:
            chunksize = max(1, math.ceil(len(found) / (CHUNKS * len(self._placement.pools[TaskKind.SUB]))))
        if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
            raise ValueError(f"chunksize must be a whole number from 1, not {chunksize!r}")
        tasks = [
            GraphTask(definition, config=found[first : first + chunksize], first_item=first, timeout=timeout)
            for first in range(0, len(found), chunksize)
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
        sizes = listed("shape", shape, "a list of whole numbers")
        for size in sizes:
            whole_number("a size of the shape", size)
        _check_dtype(dtype)
        tensor, slab = self._heap.allocate(tuple(sizes), dtype, len(self._scopes) - 1)
        self._scopes[-1].append(self._keep(tensor, slab))
        return tensor

    def _keep(self, tensor: torch.Tensor, slab: Slab) -> Node:
        with SIGINT_HELD:
            try:
                return self._dispatcher.add_memory(self._run, slab, footprint_of(tensor))
            except BaseException:
                self._heap.release(slab)
                raise

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
            _check_arguments(task)
            producers += self._producers(_pack(task) if packed is None else packed)
        if task.args is None and not task.group:  # what there are most of
            return TaskRef(self._dispatcher, self._add(task, [], producers))
        outputs: list[torch.Tensor] = []
        output_nodes: list[Node] = []
        #: Copies are needed until the task has ended, and no longer: they belong to no scope.
        copy_nodes: list[Node] = []
        copies: dict[int, torch.Tensor] = {}

        def output(blank: torch.Tensor) -> torch.Tensor:
            tensor, slab = self._heap.allocate(tuple(blank.shape), blank.dtype, len(self._scopes) - 1)
            output_nodes.append(self._keep(tensor, slab))
            outputs.append(tensor)
            return tensor

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            """Made once per submission, however many members are given the tensor."""
            if id(tensor) not in copies:
                found = self._heap.copy(tensor)
                if found is None:
                    copies[id(tensor)] = share(tensor)  # a file of its own, which a process cannot have many of
                else:
                    copies[id(tensor)], slab = found
                    copy_nodes.append(self._keep(copies[id(tensor)], slab))
            return copies[id(tensor)]

        try:
            accesses: list[tuple[Footprint, Tag]] = []
            for member in task.members:
                if member.args is not None:
                    member.args = member.args.submitted(output, copy)
                    accesses += member.args.check()
            node = self._add(task, accesses, producers)
            self._scopes[-1].extend(output_nodes)
        except BaseException:
            copy_nodes += output_nodes
            raise
        finally:
            if copy_nodes:
                self._dispatcher.release_scope(copy_nodes)
        return TaskRef(self._dispatcher, node, tuple(outputs))

    def _producers(self, after: Iterable[TaskRef]) -> list[Node]:
        producers = []
        for ref in listed("after", after, _AFTER):
            expect("after", ref, TaskRef, _AFTER)
            if ref._dispatcher is not self._dispatcher:
                raise ValueError(f"after: {ref!r} is not a task of this worker")
            producers.append(ref._node)
        return producers

    def _add(self, task: GraphTask, accesses: list[tuple[Footprint, Tag]], producers: list[Node]) -> Node:
        give_up = None if self._ring_timeout is None else time.monotonic() + self._ring_timeout
        definition = task.members[0].definition
        assert definition is not None
        while True:
            try:
                with self._dispatcher.turn():  # without SIGINT: a task belongs to its scope, or does not exist
                    # In this lock, a callable is unregistered: it may have been since it was resolved.
                    if definition.digest not in self._callables.definitions:
                        raise ValueError(f"{definition.name} was unregistered while a task of it was submitted")
                    node = self._dispatcher.submit(self._run, task, definition.name, accesses, producers)
                    self._scopes[-1].append(node)
                    found = self._run.hazards.take() if self._run.hazards is not None else ()
                for text in found:
                    warnings.warn(text, HazardWarning, stacklevel=4)
                return node
            except RingFull:
                if give_up is not None and time.monotonic() >= give_up:
                    raise
            left = None if give_up is None else max(0.0, give_up - time.monotonic())
            self._dispatcher.wait_for_room(self._run, left)
            self._check_open()

    def _check_open(self) -> None:
        if not self._scopes:
            raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")


def _check_arguments(task: GraphTask) -> None:
    for member in task.members:
        if not isinstance(member.args, TaskArgs | None):
            raise TypeError(
                f"the arguments of a task must be TaskArgs or None, not {given(member.args)}; build them with"
                " TaskArgs().add(tensor).add_scalar(1)"
            )


def _check_dtype(dtype: object) -> None:
    import torch

    if dtype is not None:
        expect("dtype", dtype, torch.dtype, "a torch.dtype or None")
