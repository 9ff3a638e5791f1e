"""Dispatch of tasks to endpoints, the same at every level: a graph, open runs, endpoints; no processes.

One lock guards all of them. A change is made in a ``turn``. At its end, every task that can start is started, on the
thread that made the change: waking a scheduler thread would cost more than a short task.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
import itertools
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aorta.common.interrupts import SIGINT_HELD
from pytest_aorta.runtime.event_loop import EventLoop
from pytest_aorta.runtime.graph import UNSTARTED, Footprint, Graph, GraphNode, State, Tag
from pytest_aorta.runtime.records import (
    Completion,
    Outcome,
    TaskError,
    TaskFailure,
    TaskRecord,
    WorkerClosed,
    failure_of,
)
from pytest_aorta.runtime.tensors import Slab

if TYPE_CHECKING:
    from pytest_aorta.runtime.arguments import TaskArgs
    from pytest_aorta.runtime.callables import Definition
    from pytest_aorta.runtime.graph import Hazards
    from pytest_aorta.runtime.orders import Order


class TaskKind(enum.Enum):
    """Which pool of endpoints a task goes to; the value names its endpoints in messages."""

    SUB = "SUB workers"
    NEXT_LEVEL = "workers of the next level"


@dataclass(eq=False, slots=True)
class Member:
    """A callable to run at one endpoint: the only member of a task, or one of a group.

    ``worker``: id of the endpoint that must run it. ``eligible``: ids of endpoints that may; ``None``: any.
    ``config``: pickled on submission; with ``first_item``, a list of items, one call each, numbered from there.
    """

    definition: Definition | None = None
    args: TaskArgs | None = None
    config: Any = None
    #: The scalars, pickled, where one is neither a number nor a text.
    scalars: bytes | None = None
    #: Tasks (``TaskRef``) whose results stand in the config and the scalars.
    references: tuple[Any, ...] = ()
    worker: int | None = None
    eligible: frozenset[int] | None = None
    first_item: int | None = None
    completion: Completion | None = None
    ran_on: str | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(eq=False, slots=True)
class GraphTask(Member):
    """The payload of a node: a group, or a task of one member, which it is itself.

    There may be very many, and the garbage collector walks all of their containers time and again: what is empty is
    none, and a record is made when it is asked for.
    """

    kind: TaskKind = TaskKind.SUB
    group: tuple[Member, ...] = ()
    timeout: float | None = None
    submitted: float = field(default_factory=time.time)
    outcome: Outcome | None = None
    failure: TaskFailure | None = None
    running: tuple[Dispatch, ...] = ()
    #: Whether its outcome is final, and whether a thread waits for that.
    has_settled: bool = False
    awaited: bool = False
    #: Called once it has settled, outside of the lock.
    watchers: tuple[Callable[[], object], ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        return self.group or (self,)


@dataclass(eq=False, slots=True)
class Dispatch:
    id: int
    node: GraphNode
    member: Member
    endpoint: Endpoint
    #: Cancels its deadline.
    deadline: Callable[[], object] | None = None
    #: Its completion, if it is being ended early.
    stopping: Completion | None = None
    over: bool = False


class Endpoint(Protocol):
    """A process or a host that tasks are sent to. Called within turns of the dispatcher; nothing may block."""

    id: int
    kind: TaskKind
    name: str
    busy: int
    #: Whether it has started, and has not died since.
    ready: bool
    #: Why it is out of service for good.
    gone: TaskFailure | None

    def start(self, dispatch: Dispatch) -> None: ...

    def stop(self, dispatch: Dispatch, why: str, grace: float) -> None: ...


def record_of(node: GraphNode) -> TaskRecord:
    task: GraphTask = node.payload
    assert task.outcome is not None
    if len(task.group) < 2:
        return _member_record(node, task.group[0] if task.group else task, task.outcome, task.failure)
    members = []
    for member in task.group:
        completion = member.completion or Completion(Outcome.SKIPPED)
        members.append(_member_record(node, member, completion.outcome, completion.failure))
    return TaskRecord(
        id=node.id,
        label=node.label,
        outcome=task.outcome,
        failure=task.failure,
        submitted=task.submitted,
        started=min((member.started for member in members if member.started is not None), default=None),
        ended=max((member.ended for member in members if member.ended is not None), default=None),
        members=tuple(members),
    )


def _member_record(node: GraphNode, member: Member, outcome: Outcome, failure: TaskFailure | None) -> TaskRecord:
    payload = None if member.completion is None else member.completion.payload
    submitted = node.payload.submitted
    # By position, which is faster: there is one for every task.
    return TaskRecord(
        node.id, node.label, outcome, payload, failure, member.ran_on, submitted, member.started, member.ended
    )


# Queues

#: Tasks of one key can run at the same places: ``("sub", members)``, ``("worker", id)``, ``("any", eligible)`` and
#: ``("group", None)``.
Key = tuple[str, Any]

#: The rank of its run, its number among those that became ready, and the task.
_Ready = tuple[tuple[int, int], int, GraphNode]


def _key(task: GraphTask) -> Key:
    if task.kind is TaskKind.SUB:
        return "sub", len(task.group) or 1
    if len(task.group) > 1:
        return "group", None
    first = task.members[0]
    return ("any", first.eligible) if first.worker is None else ("worker", first.worker)


class ReadyQueues:
    """The ready tasks of all runs, with a queue for every key: by priority, by run, and as they became ready.

    Only the heads of the few queues are checked for whether they can start, now or ever. A busy worker delays only its
    own tasks.
    """

    def __init__(self) -> None:
        self._queues: dict[Key, list[_Ready]] = {}
        self._order = itertools.count()

    def push(self, node: GraphNode) -> None:
        heapq.heappush(self._queues.setdefault(_key(node.payload), []), (node.run.rank, next(self._order), node))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def heads(self) -> list[tuple[Key, GraphNode]]:
        heads: list[tuple[_Ready, Key]] = []
        for key, queue in list(self._queues.items()):
            while queue and queue[0][2].state is not State.READY:  # cancelled meanwhile
                heapq.heappop(queue)
            if queue:
                heads.append((queue[0], key))
            else:
                del self._queues[key]
        if len(heads) > 1:
            heads.sort()
        return [(key, head[2]) for head, key in heads]

    def take(self, key: Key) -> None:
        queue = self._queues[key]
        heapq.heappop(queue)
        if not queue:
            del self._queues[key]


class Placement:
    """The endpoints of a worker by kind and id."""

    def __init__(self) -> None:
        self.pools: dict[TaskKind, dict[int, Endpoint]] = {kind: {} for kind in TaskKind}
        self._sub = self.pools[TaskKind.SUB]
        self._next = self.pools[TaskKind.NEXT_LEVEL]

    def add(self, endpoint: Endpoint) -> None:
        self.pools[endpoint.kind][endpoint.id] = endpoint

    def check_id(self, worker: object) -> int:
        """An id of a worker of the next level; raises ``TypeError`` or ``ValueError`` for any other object."""
        if isinstance(worker, bool) or not isinstance(worker, int):
            raise TypeError(f"the id of a worker is an int, not {worker!r} ({type(worker).__name__})")
        if worker not in self._next:
            valid = ", ".join(map(str, self._next)) or "none: there are no workers of the next level"
            raise ValueError(f"{worker!r} is not the id of a worker of the next level; valid: {valid}")
        return worker

    def check_size(self, kind: TaskKind, needed: int) -> None:
        """Raise ``ValueError`` for a group that is empty, or larger than the number of endpoints."""
        known = len(self.pools[kind])
        if not needed:
            raise ValueError("a group has at least one member")
        if needed > known:
            raise ValueError(f"{needed} {kind.value} needed at a time, but there are {known}")

    def match(self, queues: ReadyQueues) -> tuple[GraphNode, list[Endpoint]] | None:
        """The next task that can start now, and where; it is removed from its queue.

        Of the groups, the first one reserves its workers; a group of SUB workers lets no later SUB task pass.
        """
        subs = [it for it in self._sub.values() if not it.busy and it.ready and it.gone is None]
        idle = {id: it for id, it in self._next.items() if not it.busy and it.ready and it.gone is None}
        if not subs and not idle:
            return None
        heads = queues.heads()
        group = next((node for (kind, _), node in heads if kind == "group"), None)
        if group is not None:
            workers = [member.worker for member in group.payload.members]
            if all(worker in idle for worker in workers):
                queues.take(("group", None))
                return group, [idle[worker] for worker in workers]
            idle = {id: endpoint for id, endpoint in idle.items() if id not in workers}
        for key, node in heads:
            kind, what = key
            chosen: list[Endpoint] = []
            if kind == "sub":
                chosen, subs = (subs[:what], subs) if what <= len(subs) else ([], [])
            elif kind == "worker":
                chosen = [idle[what]] if what in idle else []
            elif kind == "any":
                chosen = [endpoint for endpoint in idle.values() if what is None or endpoint.id in what][:1]
            if chosen:
                queues.take(key)
                return node, chosen
        return None

    def take_hopeless(self, queues: ReadyQueues) -> tuple[GraphNode, Endpoint] | None:
        """Remove the first task that no endpoint can ever run; return it with an endpoint that is out of service."""
        if not [it for it in (*self._sub.values(), *self._next.values()) if it.gone]:
            return None
        for key, node in queues.heads():
            lacking = self._lacking(key, node)
            if lacking is not None:
                queues.take(key)
                return node, lacking
        return None

    def _lacking(self, key: Key, node: GraphNode) -> Endpoint | None:
        kind, what = key
        if kind == "sub":
            gone = [it for it in self._sub.values() if it.gone]
            return gone[0] if what > len(self._sub) - len(gone) else None
        if kind == "any":
            fit = [it for id, it in self._next.items() if what is None or id in what]
            return fit[0] if all(it.gone for it in fit) else None
        needed = [self._next[member.worker] for member in node.payload.members]
        return next((it for it in needed if it.gone), None)


# Runs


class RingFull(RuntimeError): ...


class GraphRun:
    """A graph of tasks that is built, closed, and waited for as a whole; guarded by the dispatcher's lock.

    Every run has a ring of its own: if two shared one, the later one could fill it with tasks that cannot start before
    the earlier one has ended.
    """

    def __init__(
        self,
        *,
        ring_size: int,
        fail_fast: bool = False,
        priority: int = 0,
        keeps: Any = None,
        hazards: Hazards | Order | None = None,
        forgets: bool = False,
        order: Order | None = None,
    ) -> None:
        #: In which order its tasks start, one at a time; ``None``: as they can.
        self.order = order
        #: Whether records of tasks that nothing refers to are dropped.
        self.forgets = forgets
        #: Tasks of the lowest rank start first.
        self.rank = -priority, next(_run_numbers)
        self.watchers: tuple[Callable[[], object], ...] = ()
        self.ring_size = ring_size
        self.hazards = hazards
        #: Tasks that have not ended, and whether a submission waits for one of them.
        self.unsettled = 0
        self.waited_for = False
        self.fail_fast = fail_fast
        #: References that its tasks may need until all have ended.
        self.keeps = keeps
        #: Unconsumed tasks in the order of submission, and records of consumed ones by id.
        self.nodes: dict[GraphNode, None] = {}
        self.records: dict[int, TaskRecord] = {}
        self.first_failure: TaskRecord | None = None
        #: Tasks in a row, of one callable, whose process has died while it ran them; by the callable's digest.
        self.killed: dict[str, set[int]] = {}
        #: Why it accepts no further task, if it was cancelled.
        self.cancelled: str | None = None
        #: Whether its graph is complete, and whether all tasks have ended, too.
        self.closed = False
        self.ended = threading.Event()


#: Runs that are open at a time where their submitters wait (``block=True``).
DEPTH = 2

_run_numbers = itertools.count()


class _Lock:
    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._condition = threading.Condition(self._mutex)
        self.notify_all = self._condition.notify_all

    def __enter__(self) -> None:
        SIGINT_HELD.__enter__()
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self._mutex.release()
        SIGINT_HELD.__exit__()

    def wait_until(self, over: Callable[[], bool], give_up: float = math.inf) -> bool:
        """Wait until ``over()``, at most until ``give_up`` (of ``time.monotonic()``); whether it was over.

        An interrupt is raised between two waits.
        """
        while not over():
            left = give_up - time.monotonic()
            if left <= 0:
                return False
            self._condition.wait(min(left, SIGINT_HELD.piece()))
            with SIGINT_HELD.released():
                pass
        return True


class _Turn:
    def __init__(self, lock: _Lock, finish: Callable[[], None], after: Callable[[], None]) -> None:
        self._lock = lock
        self._finish = finish
        self._after = after
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._depth == 1:
                self._finish()
        finally:
            self._depth -= 1
            is_over = not self._depth
            try:
                self._lock.__exit__()
            finally:
                if is_over:
                    self._after()


class Dispatcher:
    """Starts ready tasks on idle endpoints. Thread-safe."""

    def __init__(self, name: str, grace: float, allowed_failures: int | None = None) -> None:
        self.name = name
        self.grace = grace
        self.allowed_failures = allowed_failures
        #: Notified when a task has ended that is waited for, a run ends, a ring has room, or the worker closes.
        self.lock = _Lock()
        self.placement = Placement()
        self.loop = EventLoop(f"aorta-{name}")
        self.graph = Graph(self._ready, self._settled, self._consumed)
        self.queues = ReadyQueues()
        self.runs: dict[GraphRun, None] = {}
        self._orders: dict[GraphRun, Order] = {}
        self.closing = False
        self.release_slab: Callable[[Slab], None] = lambda slab: None
        #: Called within the turn in which a run has ended.
        self.run_ended: Callable[[], None] = lambda: None
        self._ids = itertools.count()
        #: The context manager within which changes are made.
        self.turn = _Turn(self.lock, self._start_ready, self._call_watchers)
        self._called: deque[Callable[[], object]] = deque()

    def _start_ready(self) -> None:
        while True:
            for order in self._orders.values():
                if (node := order.next()) is not None:
                    self.queues.push(node)
            if not (self.queues and self._start_next()):
                break

    def let_run(self, run: GraphRun) -> None:
        """Somebody waits for tasks of a run that has an order."""
        if run.order is not None:
            with self.turn:
                run.order.is_open = True

    def _call_watchers(self) -> None:
        while self._called:
            with contextlib.suppress(IndexError):  # another thread has taken it
                self._called.popleft()()

    def _start_next(self) -> bool:
        match = self.placement.match(self.queues)
        if match is not None:
            quarantine = self._quarantine(match[0]) if match[0].run.killed else None
            if quarantine is not None:
                self._cancel_unstarted(match[0], Outcome.SKIPPED, quarantine)
            elif self.graph.claim(match[0]):
                self._dispatch(*match)
            return True
        hopeless = self.placement.take_hopeless(self.queues)
        if hopeless is not None:
            node, endpoint = hopeless
            assert endpoint.gone is not None
            self._cancel_unstarted(node, Outcome.ENDPOINT_FAILURE, endpoint.gone.at(endpoint.name))
        return hopeless is not None

    # Runs

    def open_run(self, run: GraphRun, block: bool = False) -> GraphRun:
        """Begin a run; with ``block``, once fewer than ``DEPTH`` others are open."""
        with self.lock:
            if block:
                self.lock.wait_until(lambda: len(self.runs) < DEPTH or self.closing)
            if self.closing:
                raise WorkerClosed(f"{self.name} is closed")
            self.runs[run] = None
            if run.order is not None:
                self._orders[run] = run.order
            return run

    def close_run(self, run: GraphRun) -> None:
        with self.turn:
            run.closed = True
            if run.order is not None:
                run.order.is_open = True
            self._end_if_over(run)

    def _end_if_over(self, run: GraphRun) -> None:
        if not run.closed or run.unsettled or run.ended.is_set():
            return
        del self.runs[run]
        self._orders.pop(run, None)
        run.keeps = None
        self.graph.end_run(run)
        self.run_ended()
        run.ended.set()
        self._called.extend(run.watchers)
        run.watchers = ()
        self.lock.notify_all()

    def cancel_run(self, run: GraphRun, why: str, running: bool, grace: float | None = None) -> None:
        with self.turn:
            run.cancelled = run.cancelled or why
            for node in [node for node in run.nodes if not node.payload.has_settled]:
                self.cancel(node, why, running, grace)

    def cancel_runs(self, why: str) -> None:
        with self.turn:
            for run in tuple(self.runs):
                self.cancel_run(run, why, running=True)

    def unsettled_with(self, digest: str) -> int:
        with self.lock:
            return sum(
                member.definition is not None and member.definition.digest == digest
                for run in self.runs
                for node in run.nodes
                if not node.payload.has_settled
                for member in node.payload.members
            )

    def drain(self, timeout: float | None) -> bool:
        """Refuse new runs and wait for open ones; whether they ended in time."""
        give_up = math.inf if timeout is None else time.monotonic() + timeout
        with self.lock:
            self.closing = True
            self.lock.notify_all()
            return self.lock.wait_until(lambda: not self.runs, give_up)

    # Tasks

    def submit(
        self,
        run: GraphRun,
        task: GraphTask,
        label: str,
        accesses: Sequence[tuple[Footprint, Tag]] = (),
        after: Sequence[GraphNode] = (),
    ) -> GraphNode:
        """Add a task to the graph of a run, within a turn, at whose end it may start.

        Raises:
            TaskError: an earlier task of a run with ``fail_fast`` has failed.
            RingFull: the run has as many tasks that have not ended as its ring has slots.
            RuntimeError: the run is closed or cancelled.
        """
        self._check_accepts(run)
        if run.unsettled >= run.ring_size:
            raise RingFull(
                f"the ring is full: {run.unsettled} tasks of this run have not ended; submit fewer at a time, or raise"
                " ring_size or ring_timeout of the worker"
            )
        run.unsettled += 1
        node = self.graph.add(task, run, accesses, after, label)
        run.nodes[node] = None
        if run.hazards is not None:
            run.hazards.submitted(node, accesses)
        return node

    def wait_for_room(self, run: GraphRun, give_up: float) -> None:
        """Block until a run's ring has room, the run refuses tasks, or the time is over."""

        def over() -> bool:
            run.waited_for = True
            return run.closed or run.cancelled is not None or run.unsettled < run.ring_size

        self.let_run(run)
        with self.lock:
            self.lock.wait_until(over, give_up)

    def add_memory(self, run: GraphRun, slab: Slab) -> GraphNode:
        """Release a slab once its scope and all tasks that use it have ended; raises as ``submit``."""
        with self.turn:
            self._check_accepts(run)
            slab.node = self.graph.add_memory(slab, run)
            return slab.node

    @staticmethod
    def _check_accepts(run: GraphRun) -> None:
        if run.closed:
            raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")
        if run.cancelled is not None:
            raise RuntimeError(f"the run is cancelled: {run.cancelled}")
        if run.fail_fast and run.first_failure is not None:
            raise TaskError(run.first_failure)

    def release_scope(self, nodes: Iterable[GraphNode]) -> None:
        with self.turn:
            for node in nodes:
                self.graph.release_scope(node)

    def cancel(self, node: GraphNode, why: str, running: bool = True, grace: float | None = None) -> None:
        with self.turn:
            failure = TaskFailure("Cancelled", why)
            if not self._cancel_unstarted(node, Outcome.CANCELLED, failure) and running:
                self._stop(node.payload.running, Completion(Outcome.CANCELLED, None, failure), why, grace)

    def _cancel_unstarted(self, node: GraphNode, outcome: Outcome, failure: TaskFailure) -> bool:
        if node.state not in UNSTARTED:
            return False
        task: GraphTask = node.payload
        task.outcome, task.failure = outcome, failure
        return self.graph.cancel(node, TaskError(record_of(node)))

    def watch(self, what: GraphTask | GraphRun, watcher: Callable[[], object]) -> None:
        """Call once it has ended, outside of the lock; at once if it has."""
        with self.turn:
            if what.ended.is_set() if isinstance(what, GraphRun) else what.has_settled:
                self._called.append(watcher)
            else:
                what.watchers += (watcher,)

    # Reports of the graph

    def _ready(self, node: GraphNode) -> None:
        run: GraphRun = node.run
        if run.order is not None:
            run.order.ready.append(node)
        else:
            self.queues.push(node)

    def _settled(self, node: GraphNode) -> None:
        task: GraphTask = node.payload
        if task.outcome is None:
            if node.poisoned_by is not None:
                producer = node.poisoned_by
                where = f"{producer.label} (task {producer.id}) failed"
                task.outcome, task.failure = Outcome.SKIPPED, producer.payload.failure.at(where)
            else:
                task.outcome = Outcome.SUCCESS
        task.has_settled = True
        run: GraphRun = node.run
        for member in task.members:  # what only its tensors have kept is free from now on
            member.args = member.config = member.definition = member.scalars = None
            member.references = ()
        if task.outcome is not Outcome.SUCCESS and run.first_failure is None:
            run.first_failure = record_of(node)
        run.unsettled -= 1
        if run.order is not None:
            if run.order.running is node:
                run.order.running = None
            elif node in run.order.ready:  # it was cancelled
                run.order.ready.remove(node)
            run.order.is_open = run.closed or (run.order.is_open and run.unsettled > 0)
        # Not for each task: a large ring would cost a change of threads for every one.
        room = run.ring_size - run.unsettled
        if run.waited_for and (room >= max(1, run.ring_size // 16) or run.cancelled is not None):
            run.waited_for = False
            self.lock.notify_all()
        if task.awaited:
            self.lock.notify_all()
        if task.watchers:
            self._called.extend(task.watchers)
            task.watchers = ()
        if run.closed:
            self._end_if_over(run)

    def _consumed(self, node: GraphNode) -> None:
        if isinstance(node.payload, Slab):
            self.release_slab(node.payload)
            node.run = None  # which a tensor that is held longer would keep
            return
        # An open run may have very many: unreferenced ones keep only their record.
        run: GraphRun = node.run
        if run.nodes.pop(node, self) is None and not run.forgets:
            run.records[node.id] = record_of(node)

    # Blame

    def blame(self, dispatch: Dispatch | None) -> None:
        """Suspect the task of a process that has died; the death of an idle process clears all suspects."""
        if dispatch is None:
            for run in self.runs:
                run.killed.clear()
        elif dispatch.stopping is None and dispatch.member.definition is not None:
            dispatch.node.run.killed.setdefault(dispatch.member.definition.digest, set()).add(dispatch.node.id)

    def _quarantine(self, node: GraphNode) -> TaskFailure | None:
        for member in node.payload.members:
            assert member.definition is not None
            killed = len(node.run.killed.get(member.definition.digest, ()))
            if self.allowed_failures is not None and killed >= self.allowed_failures:
                why = (
                    f"quarantined: {member.definition.name} killed {killed} slots in a row; no more of its tasks start"
                    " in this run (allowed_failures= of the worker says how many it may kill)"
                )
                return TaskFailure("Quarantined", why)
        return None

    # Dispatches

    def _dispatch(self, node: GraphNode, endpoints: list[Endpoint]) -> None:
        task: GraphTask = node.payload
        pairs = zip(task.members, endpoints, strict=True)
        task.running = tuple([Dispatch(next(self._ids), node, member, endpoint) for member, endpoint in pairs])
        for dispatch in task.running:
            dispatch.endpoint.busy += 1
        for dispatch in task.running:
            if task.failure is not None:  # another member could not be started
                self.ended(dispatch, Completion(Outcome.SKIPPED, None, task.failure))
            elif not dispatch.over:  # its endpoint has not died meanwhile
                self._start(dispatch, task)

    def _start(self, dispatch: Dispatch, task: GraphTask) -> None:
        dispatch.member.started = time.time()
        dispatch.member.ran_on = dispatch.endpoint.name
        if task.timeout is not None:
            dispatch.deadline = self.loop.call_at(time.monotonic() + task.timeout, partial(self._overdue, dispatch))
        try:
            dispatch.endpoint.start(dispatch)
        except Exception as error:  # its arguments cannot be sent
            failure = failure_of(error).at(dispatch.endpoint.name)
            self.ended(dispatch, Completion(Outcome.TASK_FAILURE, None, failure))

    def ended(self, dispatch: Dispatch, completion: Completion) -> None:
        with self.turn:
            if not dispatch.over:
                self._end(dispatch, completion)

    def _end(self, dispatch: Dispatch, completion: Completion) -> None:
        dispatch.over = True
        dispatch.endpoint.busy -= 1
        if dispatch.deadline is not None:
            dispatch.deadline()
        stopping = dispatch.stopping
        # What a task returns after its deadline may be due to the signal that asked for its stacks.
        if stopping is not None and (stopping.outcome is Outcome.TIMEOUT or completion.outcome is not Outcome.SUCCESS):
            how, completion = completion.failure, stopping
            if how is not None and how.traceback and completion.failure is not None:
                completion = replace(completion, failure=replace(completion.failure, traceback=how.traceback))
        task: GraphTask = dispatch.node.payload
        member = dispatch.member
        if dispatch.node.run.killed and completion.outcome is Outcome.SUCCESS and member.definition is not None:
            dispatch.node.run.killed.pop(member.definition.digest, None)
        member.completion = completion
        if member.started is not None:
            member.ended = time.time()
        task.running = tuple([other for other in task.running if other is not dispatch])
        if completion.outcome is not Outcome.SUCCESS and task.failure is None:
            task.outcome = completion.outcome
            task.failure = completion.failure or TaskFailure(completion.outcome.name, completion.outcome.value)
            if task.running:
                self.loop.call_at(time.monotonic() + self.grace, lambda: self._stop_peers(task))
        if task.running:
            return
        if task.failure is None:
            self.graph.complete(dispatch.node)
        else:
            self.graph.fail(dispatch.node, TaskError(record_of(dispatch.node)))

    def _stop_peers(self, task: GraphTask) -> None:
        with self.turn:
            why = f"a member of its group failed {self.grace:g} s ago"
            self._stop(task.running, Completion(Outcome.CANCELLED, None, TaskFailure("Cancelled", why)), why)

    def _overdue(self, dispatch: Dispatch) -> None:
        with self.turn:
            why = f"not finished within {dispatch.node.payload.timeout:g} s"
            failure = TaskFailure("TimeoutError", f"{dispatch.endpoint.name}: TimeoutError: {why}")
            self._stop([dispatch], Completion(Outcome.TIMEOUT, None, failure), why, 0.0)

    def _stop(self, running: Iterable[Dispatch], completion: Completion, why: str, grace: float | None = None) -> None:
        for dispatch in running:
            if not dispatch.over and dispatch.stopping is None:
                dispatch.stopping = completion
                try:
                    dispatch.endpoint.stop(dispatch, why, self.grace if grace is None else grace)
                except Exception:
                    traceback.print_exc()  # an error of this package, which must not end the turn
