"""What builds the graph of a run: submits tasks, allocates memory, opens scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.engine.sigint import INTERRUPTS
from pytest_aorta.runtime.engine.tasks import Job, Kind, Member, Preparation, Work
from pytest_aorta.runtime.graph.args import Tag, TaskArgs
from pytest_aorta.runtime.records import TaskRecord

if TYPE_CHECKING:
    import torch

    from pytest_aorta.runtime.engine.engine import Engine
    from pytest_aorta.runtime.engine.runs import Run
    from pytest_aorta.runtime.graph.nodes import Node, State
    from pytest_aorta.runtime.memory.callables import CallableHandle, Definition
    from pytest_aorta.runtime.memory.heap import Heap

#: Scopes within each other.
MAX_SCOPES = 64


class TaskRef:
    """A task that was submitted."""

    def __init__(self, engine: Engine, node: Node) -> None:
        self._engine = engine
        self._node = node

    @property
    def id(self) -> int:
        """Its number; later tasks have greater ones."""
        return self._node.id

    @property
    def state(self) -> State:
        """Where it stands now."""
        return self._node.state

    @property
    def record(self) -> TaskRecord | None:
        """What became of it; ``None`` while it has not settled."""
        record: TaskRecord | None = self._node.payload.record
        return record

    def wait(self, timeout: float | None = None) -> TaskRecord:
        """Block until it has settled. A failure is in the record, not an exception.

        Raises:
            TimeoutError: ``timeout`` seconds have passed first.
        """
        return self._engine.wait(self._node, timeout)

    def cancel(self, why: str = "cancelled") -> None:
        """Do not start it; when it runs, end it."""
        self._engine.cancel(self._node, why)

    def when_settled(self, callback: Callable[[TaskRecord], None]) -> None:
        """Call with the record once there is one, on any thread."""
        self._engine.when_settled(self._node, callback)


class Orchestrator:
    """Handed to ``orch_fn``; usable until that has returned.

    ``after`` takes tasks that have to succeed first, besides those that follow from the tensors' tags. ``timeout`` is
    the task's deadline in seconds, from its start; then it is ended, and the place where it ran gets a new process.
    """

    def __init__(
        self,
        engine: Engine,
        run: Run,
        heap: Heap,
        resolve: Callable[[CallableHandle, Iterable[int]], tuple[Definition, frozenset[int] | None]],
    ) -> None:
        self._engine = engine
        self._run = run
        self._heap = heap
        self._resolve = resolve
        self._scopes: list[list[Node]] = [[]]
        self._preparations: dict[str, Node] = {}

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
        self._check_size("sub", 1)
        return self._submit("sub", [Member(definition, args)], after, timeout)

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
        self._check_size("sub", len(args_list))
        return self._submit("sub", [Member(definition, args) for args in args_list], after, timeout)

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
            config: anything that can be pickled; slots find it as ``args.config``.
            worker: the id of the worker that must run it; without, any idle one does.
            affinity: the id of the worker that had better run it, when it is idle.
            after: see above.
            timeout: see above.
        """
        wished = [] if affinity is None else [self._check_id(affinity)]
        exact = [] if worker is None else [self._check_id(worker)]
        definition, eligible = self._resolve(handle, exact + wished)
        self._check_size("next", 1)
        member = Member(definition, args, config, worker=worker, affinity=affinity, eligible=eligible)
        return self._submit("next", [member], after, timeout)

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
        if len(workers) != len(args_list):
            raise ValueError(f"{len(args_list)} members, but {len(workers)} workers")
        ids = [self._check_id(worker) for worker in workers]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a worker is named twice: {ids}")
        definition, _ = self._resolve(handle, ids)
        self._check_size("next", len(ids))
        members = [Member(definition, args, config, worker=worker) for args, worker in zip(args_list, ids, strict=True)]
        return self._submit("next", members, after, timeout)

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
        self._check_size("job", 1)
        before = self._nodes(after)
        if job.preparation is not None and self._engine.level == 3:
            before.append(self._prepared(job.preparation, urgent))
        eligible = None if worker is None else frozenset({self._check_id(worker, "job")})
        ref = self._submit("job", [Member(job=job, eligible=eligible)], (), timeout, urgent=urgent, before=before)
        self._scopes[-1].remove(ref._node)  # nothing depends on it, and a session may have very many
        self._engine.release_scope([ref._node])
        return ref

    def _prepared(self, preparation: Preparation, urgent: bool) -> Node:
        """The task that prepares this host for jobs of a key."""
        if preparation.key not in self._preparations:
            job = Job(preparation.target, preparation.payload)
            ref = self._submit("job", [Member(job=job)], (), None, urgent=urgent)
            self._preparations[preparation.key] = ref._node
        return self._preparations[preparation.key]

    def alloc(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor in shared memory that belongs to the runtime; its content is undefined (default: float32).

        It lives until the scope in which it was allocated has ended and all tasks that use it have.

        Raises:
            RuntimeError: its ring stays full for ten seconds.
            ValueError: it is larger than a ring (``heap_ring_size``).
        """
        import torch

        self._check_open()
        tensor, slab = self._heap.allocate(tuple(shape), dtype or torch.float32, len(self._scopes) - 1)
        try:
            from pytest_aorta.runtime.graph.footprint import footprint_of

            work = Work("slab", [], self._run, slab=slab)
            node = self._engine.submit(work, [(footprint_of(tensor), Tag.OUTPUT)])
        except BaseException:
            self._heap.release(slab)
            raise
        self._scopes[-1].append(node)
        return tensor

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Tasks and memory of a scope are let go when it ends, as soon as nobody uses them; does not wait for that."""
        self._check_open()
        if len(self._scopes) >= MAX_SCOPES:
            raise RuntimeError(f"at most {MAX_SCOPES} scopes within each other")
        self._scopes.append([])
        try:
            yield
        finally:
            if self._scopes:  # the whole graph may have ended meanwhile
                self._engine.release_scope(self._scopes.pop())

    def end(self) -> None:
        """The graph is complete: the outermost scope ends."""
        while self._scopes:
            self._engine.release_scope(self._scopes.pop())

    def _submit(
        self,
        kind: Kind,
        members: list[Member],
        after: Iterable[TaskRef],
        timeout: float | None,
        *,
        urgent: bool = False,
        before: Sequence[Node] = (),
    ) -> TaskRef:
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        self._check_open()
        accesses = []
        for member in members:
            if member.args is not None:
                member.args = member.args.snapshot()
                member.args.check()
                accesses += member.args.accesses()
        work = Work(kind, members, self._run, timeout=timeout, urgent=urgent)
        wanted = [*before, *self._nodes(after)]
        INTERRUPTS.hold()  # a task belongs to its scope, or is not there
        try:
            node = self._engine.submit(work, accesses, wanted)
            self._scopes[-1].append(node)
        finally:
            INTERRUPTS.release()
        return TaskRef(self._engine, node)

    def _check_open(self) -> None:
        if not self._scopes:
            raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")

    def _nodes(self, after: Iterable[TaskRef]) -> list[Node]:
        nodes = []
        for ref in after:
            if not isinstance(ref, TaskRef) or ref._engine is not self._engine:
                raise ValueError(f"after: {ref!r} is not a task of this worker")
            nodes.append(ref._node)
        return nodes

    def _check_id(self, worker: object, kind: Kind = "next") -> int:
        known = self._engine.placement.pools[kind]
        if isinstance(worker, bool) or not isinstance(worker, int) or worker not in known:
            valid = ", ".join(map(str, known)) or "none: there are no workers of the next level"
            raise ValueError(f"{worker!r} is not the id of a worker of the next level; valid: {valid}")
        return worker

    def _check_size(self, kind: Kind, needed: int) -> None:
        there = len(self._engine.placement.pools[kind])
        if not needed:
            raise ValueError("a group has at least one member")
        if needed > there:
            what = {"sub": "SUB workers", "next": "workers of the next level", "job": "slots", "slab": ""}[kind]
            raise ValueError(f"{needed} {what} needed at a time, but there are {there}")
