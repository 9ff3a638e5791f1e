"""Dispatch of tasks to endpoints, the same at every level: a graph, the runs that are open, endpoints.

One lock guards all of them. A change is made in a ``turn``. At its end, every task that can start is started, on the
thread that made the change: waking a scheduler thread would cost more than a short task.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_aorta.common.bounded_waits import PIECE, pieces
from pytest_aorta.runtime.engine.event_loop import EventLoop
from pytest_aorta.runtime.engine.placement import Placement
from pytest_aorta.runtime.engine.runs import GraphRun, independent
from pytest_aorta.runtime.engine.sigint import SIGINT_GUARD
from pytest_aorta.runtime.engine.task_callbacks import TaskCallbacks
from pytest_aorta.runtime.engine.tasks import Dispatch, Endpoint, GraphTask, record_of
from pytest_aorta.runtime.engine.turn import Turn
from pytest_aorta.runtime.graph.args import Tag
from pytest_aorta.runtime.graph.graph import Graph
from pytest_aorta.runtime.graph.nodes import UNSTARTED, Node
from pytest_aorta.runtime.memory.heap import COPIES
from pytest_aorta.runtime.memory.rings import Slab
from pytest_aorta.runtime.records import Completion, Outcome, TaskError, TaskFailure, failed

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.ready_queues import ReadyQueues
    from pytest_aorta.runtime.graph.footprint import Footprint

#: Runs of one thread that are open at a time: one whose tasks are dispatched, and the next one, which is being built.
DEPTH = 2


class WorkerClosed(RuntimeError):
    """The worker is closed or closing."""


class Dispatcher:
    """Thread-safe.

    Args:
        name: for messages.
        level: of its worker.
        grace: seconds that the peers of a failed group member have to end.
    """

    def __init__(self, name: str, level: int, grace: float) -> None:
        self.name = name
        self.level = level
        self.grace = grace
        self._mutex = threading.RLock()
        #: The same lock, to wait for the ends of runs.
        self.lock = threading.Condition(self._mutex)
        self.placement = Placement()
        self.loop = EventLoop(f"aorta-{name}")
        self.graph = Graph(self._ready, self._settled, self._consumed)
        self.runs: deque[GraphRun] = deque()
        self.sessions: list[GraphRun] = []
        self.closing = False
        #: Memory of copies, of which no two tasks use the same bytes; runs that use some of it share nothing.
        self._copies: set[Hashable] = set()
        self.release_slab: Callable[[Slab], None] = lambda slab: None
        #: Called without the lock when a run has ended.
        self.run_ended: Callable[[], None] = lambda: None
        self._ids = itertools.count()
        self._turn = Turn(self._mutex, self._start_ready)
        self.callbacks = TaskCallbacks(f"aorta-{name}-callbacks", self._turn, self.loop.notify)

    def turn(self) -> Turn:
        """The context manager within which changes are made."""
        return self._turn

    def _start_ready(self) -> None:
        """Start every task that can start."""
        head = None
        while self.runs and self.runs[0] is not head:  # a run may end here, when its tasks can run nowhere
            head = self.runs[0]
            self._start_ready_of(head.queues)
        if len(self.runs) > 1:
            for run in independent(self.runs):
                self._start_ready_of(run.queues)
        # A session, which stays open for as long as its worker, delays no run, nor is it delayed.
        for run in tuple(self.sessions):
            self._start_ready_of(run.queues)

    def _start_ready_of(self, queues: ReadyQueues) -> None:
        while queues:
            match = self.placement.match(queues)
            if match is not None:
                node, endpoints = match
                if self.graph.claim(node):
                    self._dispatch(node, endpoints)
                continue
            hopeless = list(self.placement.take_hopeless(queues))
            if not hopeless:
                return
            for node, endpoint in hopeless:
                assert endpoint.gone is not None
                self._cancel_unstarted(node, Outcome.ENDPOINT_FAILURE, endpoint.gone.at(endpoint.name))

    # Runs

    def open_run(self, run: GraphRun) -> GraphRun:
        """Begin a run; unless it is a session, blocks while two others of this thread are open."""
        with self.lock:
            while not run.is_session and self._open_of(run.thread) >= DEPTH and not self.closing:
                with SIGINT_GUARD.allowed():
                    self.lock.wait(PIECE)
            if self.closing:
                raise WorkerClosed(f"{self.name} is closed")
            self._open_runs(run).append(run)
            return run

    def _open_of(self, thread: threading.Thread) -> int:
        return sum(run.thread is thread for run in self.runs)

    def _open_runs(self, run: GraphRun) -> deque[GraphRun] | list[GraphRun]:
        return self.sessions if run.is_session else self.runs

    def close_run(self, run: GraphRun) -> None:
        """Its graph is complete."""
        with self.turn():
            run.closed = True
            self._end_if_over(run)

    def _end_if_over(self, run: GraphRun) -> None:
        if not run.closed or run.unsettled or run.ended.is_set():
            return
        self._open_runs(run).remove(run)
        for other in run.shares_with:
            other.shares_with.discard(run)
        run.shares_with, run.memory = set(), set()
        run.keeps = None
        self._turn.defer(self.run_ended)
        run.ended.set()
        self.loop.notify()
        self.callbacks.note_end(run)
        self.lock.notify_all()

    def cancel_run(self, run: GraphRun, why: str, running: bool) -> None:
        """Cancel the tasks that have not started, and with ``running`` those that have."""
        with self.lock:
            run.cancelled = run.cancelled or why
            unsettled = [node for node in run.nodes if not node.payload.has_settled]
        for node in unsettled:
            self.cancel(node, why, running)

    def unsettled_with(self, digest: str) -> int:
        """How many tasks of a callable have not ended."""
        with self.lock:
            return sum(
                member.definition is not None and member.definition.digest == digest
                for run in (*self.runs, *self.sessions)
                for node in run.nodes
                if not node.payload.has_settled
                for member in node.payload.members
            )

    def wait_until_settled(self, digest: str) -> None:
        """Block until all tasks of a callable have ended, or the dispatcher closes."""
        with self.lock:
            while not self.closing and self.unsettled_with(digest):
                self.lock.wait(PIECE)

    def drain(self, timeout: float) -> bool:
        """Accept no run any more, and wait for the open ones; whether they have ended in time.

        Jobs were cancelled before. Those that do not react end with the processes that they drive.
        """
        give_up = time.monotonic() + timeout
        with self.lock:
            self.closing = True
            self.lock.notify_all()
            while self.runs or self.sessions:
                left = give_up - time.monotonic()
                if left <= 0:
                    return not self.runs
                self.lock.wait(min(left, PIECE))
        return True

    # Tasks

    def submit(
        self,
        run: GraphRun,
        task: GraphTask,
        accesses: Sequence[tuple[Footprint, Tag]] = (),
        after: Sequence[Node] = (),
    ) -> Node:
        """Add a task to the graph of a run; it may start before this returns.

        Raises:
            TaskError: an earlier task of a run with ``fail_fast`` has failed.
            RingFull: the run has as many tasks that have not ended as its ring has slots.
            RuntimeError: the run is closed or cancelled.
        """
        with self._turn:
            self._check_accepts(run)
            run.ring.take()
            for footprint, _ in accesses:
                if footprint.backing not in self._copies:
                    run.note_use(footprint.backing, self.runs)
            try:
                node = self.graph.add(task, run, accesses, after, task.label)
            except BaseException:
                run.ring.give_back()
                raise
            if not task.has_settled or not run.is_session:
                run.nodes[node] = None
            return node

    def wait_for_room(self, run: GraphRun, timeout: float | None) -> None:
        """Block until a slot of a run's ring is free, the run accepts no task any more, or ``timeout`` has passed."""
        # In pieces: one free slot is enough, though it is not worth to be woken for.
        for seconds in pieces(timeout):
            with self.lock:
                if run.closed or run.cancelled is not None or not run.ring.full:
                    return
                room = run.ring.awaited()
            if self.loop.run_until(room, seconds):
                return

    def add_memory(self, run: GraphRun, slab: Slab, footprint: Footprint) -> Node:
        """Have a slab released once its scope has ended, and all tasks that use it have; raises as ``submit``."""
        with self.turn():
            self._check_accepts(run)
            if slab.ring == COPIES:
                self._copies.add(footprint.backing)
            else:
                run.note_use(footprint.backing, self.runs)
            return self.graph.add_completed(slab, run, [(footprint, Tag.OUTPUT)], "memory")

    @staticmethod
    def _check_accepts(run: GraphRun) -> None:
        if run.closed:
            raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")
        if run.cancelled is not None:
            raise RuntimeError(f"the run is cancelled: {run.cancelled}")
        if run.fail_fast and run.first_failure is not None:
            raise TaskError(run.first_failure)

    def release_scope(self, nodes: Sequence[Node]) -> None:
        """The scope in which they were submitted has ended."""
        with self.turn():
            for node in nodes:
                self.graph.release_scope(node)

    def cancel(self, node: Node, why: str, running: bool = True) -> None:
        """Do not start a task; with ``running``, end one that has started."""
        with self.turn():
            failure = TaskFailure("Cancelled", why)
            if not self._cancel_unstarted(node, Outcome.CANCELLED, failure) and running:
                self._stop(node.payload, Completion(Outcome.CANCELLED, None, failure), why)

    def _cancel_unstarted(self, node: Node, outcome: Outcome, failure: TaskFailure) -> bool:
        """Settle a task that has not started; False if it has."""
        if node.state not in UNSTARTED:
            return False
        task: GraphTask = node.payload
        task.outcome, task.failure = outcome, failure
        return self.graph.cancel(node, TaskError(record_of(node)))

    # Reports of the graph

    def _ready(self, node: Node) -> None:
        node.run.queues.push(node)

    def _settled(self, node: Node) -> None:
        task: GraphTask = node.payload
        if task.outcome is None:
            if node.poisoned_by is not None:
                task.outcome, task.failure = Outcome.SKIPPED, node.poisoned_by.payload.failure
            else:
                task.outcome = Outcome.SUCCESS
        task.has_settled = True
        run: GraphRun = node.run
        for member in task.members:  # what only its tensors have kept is free from now on
            member.args = member.config = member.job = member.definition = None
        if task.outcome is not Outcome.SUCCESS and run.first_failure is None:
            run.first_failure = record_of(node)
        if run.ring.give_back():
            self.loop.notify()
        if run.is_session:
            run.nodes.pop(node, None)
        if task.settled is not None:
            task.settled.set()
            task.settled = None
            self.loop.notify()
        for callback in task.callbacks or ():
            self.callbacks.add(node, callback)
        task.callbacks = None
        if run.closed:
            self._end_if_over(run)

    def _consumed(self, node: Node) -> None:
        if isinstance(node.payload, Slab):
            self.release_slab(node.payload)
            return
        # In an open run there may be very many: of those that nothing refers to, only the record is kept.
        run: GraphRun = node.run
        if run.nodes.pop(node, self) is None:
            run.records[node.id] = record_of(node)

    # Dispatches

    def _dispatch(self, node: Node, endpoints: list[Endpoint]) -> None:
        task: GraphTask = node.payload
        pairs = zip(task.members, endpoints, strict=True)
        task.running = tuple([Dispatch(next(self._ids), node, member, endpoint) for member, endpoint in pairs])
        for dispatch in task.running:
            dispatch.endpoint.busy += 1
            dispatch.endpoint.assign(dispatch)
            # Without the lock: arguments may be large, and a process that does not read is no other task's trouble.
            self._turn.defer(partial(self._start, dispatch))

    def _start(self, dispatch: Dispatch) -> None:
        task: GraphTask = dispatch.node.payload
        failure = task.failure
        if dispatch.over or failure is not None:  # its endpoint has died, or another member could not be started
            if failure is not None:
                self.ended(dispatch, Completion(Outcome.SKIPPED, None, failure))
            return
        dispatch.member.started = time.time()
        dispatch.member.ran_on = dispatch.endpoint.name
        if task.timeout is not None:
            dispatch.deadline = self.loop.call_at(time.monotonic() + task.timeout, partial(self._overdue, dispatch))
        try:
            dispatch.endpoint.start(dispatch)
        except Exception as error:
            outcome = Outcome.ENDPOINT_FAILURE if isinstance(error, OSError) else Outcome.TASK_FAILURE
            self.ended(dispatch, failed(error, outcome).at(dispatch.endpoint.name))

    def ended(self, dispatch: Dispatch, completion: Completion) -> None:
        """An endpoint reports how a task ended."""
        with self._turn:
            self._end(dispatch, completion)

    def _end(self, dispatch: Dispatch, completion: Completion) -> None:
        if dispatch.over:
            return
        dispatch.over = True
        dispatch.endpoint.busy -= 1
        if dispatch.deadline is not None:
            dispatch.deadline.cancel()
        if dispatch.stopping is not None and completion.outcome is not Outcome.SUCCESS:
            completion = dispatch.stopping
        task: GraphTask = dispatch.node.payload
        member = dispatch.member
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
        """End the other members of a group: most likely, they hang in a collective with the one that has failed."""
        with self.turn():
            why = f"a member of its group failed {self.grace:g} s ago"
            self._stop(task, Completion(Outcome.CANCELLED, None, TaskFailure("Cancelled", why)), why)

    def _overdue(self, dispatch: Dispatch) -> None:
        with self.turn():
            why = f"not finished within {dispatch.node.payload.timeout:g} s"
            failure = TaskFailure("TimeoutError", f"{dispatch.endpoint.name}: TimeoutError: {why}")
            self._stop_one(dispatch, Completion(Outcome.TIMEOUT, None, failure), why)

    def _stop(self, task: GraphTask, completion: Completion, why: str) -> None:
        for dispatch in task.running:
            self._stop_one(dispatch, completion, why)

    def _stop_one(self, dispatch: Dispatch, completion: Completion, why: str) -> None:
        if not dispatch.over and dispatch.stopping is None:
            dispatch.stopping = completion
            self._turn.defer(partial(dispatch.endpoint.stop, dispatch, why))

    def fail(self, dispatch: Dispatch, error: BaseException, what: str) -> None:
        """End a task early because of an error on this side, in ``what``."""
        completion = failed(error, traceback=traceback.format_exc())
        with self.turn():
            self._stop_one(dispatch, completion.at(what).at(dispatch.endpoint.name), what)
