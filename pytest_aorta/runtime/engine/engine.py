"""The scheduler that every level shares: a graph of tasks, endpoints that run them, runs that wait for them.

One lock guards graph, queues and endpoints. Whoever changes something takes a ``turn``; at its end, every task that
can start is started, on the very thread that made it possible: no hand-over to a scheduler thread costs a wake-up.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_aorta.runtime.engine.event_loop import Reactor
from pytest_aorta.runtime.engine.placement import Placement
from pytest_aorta.runtime.engine.runs import Run
from pytest_aorta.runtime.engine.sigint import INTERRUPTS
from pytest_aorta.runtime.engine.tasks import Dispatch, Endpoint, Work, record_of
from pytest_aorta.runtime.engine.turns import Turn
from pytest_aorta.runtime.graph.graph import Graph
from pytest_aorta.runtime.graph.nodes import Node, State
from pytest_aorta.runtime.records import Completion, Failure, Outcome, TaskError, TaskRecord, failed

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.placement import Queues
    from pytest_aorta.runtime.graph.args import Tag
    from pytest_aorta.runtime.graph.footprint import Footprint

#: Runs that may be built at a time: one that dispatches, and its successor.
DEPTH = 2


class EngineClosed(RuntimeError):
    """The worker is closed or closing."""


class Engine:
    """Thread-safe.

    Args:
        name: for messages.
        level: a label.
        grace: seconds that the peers of a failed group member have to end.
    """

    def __init__(self, name: str, level: int, grace: float) -> None:
        self.name = name
        self.level = level
        self.grace = grace
        self.mutex = threading.RLock()
        #: The same lock, to wait for the ends of runs.
        self.lock = threading.Condition(self.mutex)
        self.placement = Placement()
        self.reactor = Reactor(f"aorta-{name}")
        self.graph = Graph(self._ready, self._settled, self._consumed)
        self.runs: deque[Run] = deque()
        self.sessions: list[Run] = []
        self.closing = False
        self.release_slab: Callable[[Any], None] = lambda slab: None
        #: Called without the lock when a run has ended.
        self.run_ended: Callable[[], None] = lambda: None
        self._numbers = itertools.count()
        self._dispatches = itertools.count()
        self._turn = Turn(self)

    # Turns

    def turn(self) -> Turn:
        """``with`` it, change something; at the end of the outermost turn, what can start is started."""
        return self._turn

    def start_all(self) -> None:
        """Start what can start; the last thing in a turn."""
        head = None
        while self.runs and self.runs[0] is not head:  # which may end here, when nobody is left to run its tasks
            head = self.runs[0]
            self._start(head.queues)
        # A session, which stays open for as long as its worker, does not hold up runs, nor they it.
        for run in tuple(self.sessions):
            self._start(run.queues)

    def _start(self, queues: Queues) -> None:
        while queues:
            match = self.placement.match(queues)
            if match is not None:
                node, endpoints = match
                if self.graph.claim(node):
                    self._dispatch(node, endpoints)
                continue
            lost = list(self.placement.hopeless(queues))
            if not lost:
                return
            for node, endpoint in lost:
                assert endpoint.gone is not None
                self._give_up(node, Outcome.ENDPOINT_FAILURE, endpoint.gone.at(endpoint.name))

    # Runs

    def open_run(self, *, fail_fast: bool, remember: bool = True, keeps: Any = None, session: bool = False) -> Run:
        """Begin a run; blocks while two others are on their way."""
        with self.lock:
            while not session and len(self.runs) >= DEPTH and not self.closing:
                with INTERRUPTS.allowed():
                    self.lock.wait()
            self.check_open()
            run = Run(next(self._numbers), fail_fast=fail_fast, remember=remember, keeps=keeps)
            (self.sessions if session else self.runs).append(run)
            return run

    def check_open(self) -> None:
        """Raise ``EngineClosed`` when nothing new is taken."""
        if self.closing:
            raise EngineClosed(f"{self.name} is closed")

    def close_run(self, run: Run) -> None:
        """Its graph is complete."""
        with self.turn():
            run.closed = True
            self._end_if_over(run)

    def _end_if_over(self, run: Run) -> None:
        if not run.closed or run.unsettled or run.terminal.is_set():
            return
        (self.runs if run in self.runs else self.sessions).remove(run)
        run.keeps = None
        self._turn.defer(self.run_ended)
        run.terminal.set()
        self.reactor.told()
        self.lock.notify_all()

    def cancel_run(self, run: Run, why: str, running: bool) -> None:
        """End what has not started, and with ``running`` what has."""
        for node in self._unsettled(run):
            self.cancel(node, why, running)

    def _unsettled(self, run: Run) -> list[Node]:
        with self.lock:
            return [node for node in (run.live if run.nodes is None else run.nodes) if node.payload.record is None]

    # Tasks

    def submit(self, work: Work, accesses: Sequence[tuple[Footprint, Tag]] = (), after: Sequence[Node] = ()) -> Node:
        """Add a task to the graph of its run; it may start before this returns.

        Raises:
            TaskError: an earlier task of a run with ``fail_fast`` has failed.
        """
        run = work.run
        with self.turn():
            if run.closed:
                raise RuntimeError("the run is closed: its graph is built while orch_fn runs, not later")
            if run.fail_fast and run.first_failure is not None:
                raise TaskError(run.first_failure)
            run.unsettled += 1
            try:
                add = self.graph.add_completed if work.kind == "slab" else self.graph.add
                more: dict[str, Any] = {} if work.kind == "slab" else {"after": after}
                node = add(work, run.number, accesses, label=_label(work), **more)
            except BaseException:
                run.unsettled -= 1
                raise
            if work.kind == "slab":
                self._settled(node)
            elif run.nodes is not None:
                run.nodes.append(node)
            elif work.record is None:
                run.live[node] = None
            return node

    def release_scope(self, nodes: Sequence[Node]) -> None:
        """The scope in which they were submitted has ended."""
        with self.turn():
            for node in nodes:
                self.graph.release_scope(node)

    def cancel(self, node: Node, why: str, running: bool = True) -> None:
        """A task is not wanted any more: it does not start, or is ended."""
        with self.turn():
            failure = Failure("Cancelled", why)
            if self._give_up(node, Outcome.CANCELLED, failure) or not running:
                return
            self._stop(node.payload, Completion(Outcome.CANCELLED, None, failure), why)

    def _give_up(self, node: Node, outcome: Outcome, failure: Failure) -> bool:
        """Settle a task that has not started."""
        work: Work = node.payload
        if node.state not in (State.BUILDING, State.PENDING, State.READY):
            return False
        work.outcome, work.failure = outcome, failure
        return self.graph.cancel(node, TaskError(record_of(node)))

    # Graph callbacks

    def _ready(self, node: Node) -> None:
        node.payload.run.queues.push(node)

    def _settled(self, node: Node) -> None:
        work: Work = node.payload
        if work.record is not None:
            return
        if work.outcome is None:
            if node.poisoned_by is not None:
                cause = node.poisoned_by.payload
                work.outcome, work.failure = Outcome.SKIPPED, cause.failure
            else:
                work.outcome = Outcome.SUCCESS
        work.record = record_of(node)
        run = work.run
        if work.outcome is not Outcome.SUCCESS and run.first_failure is None:
            run.first_failure = work.record
        run.unsettled -= 1
        run.live.pop(node, None)
        if work.settled is not None:
            work.settled.set()
            self.reactor.told()
        if work.callbacks:
            for callback in work.callbacks:
                self._turn.defer(lambda callback=callback: callback(work.record))  # type: ignore[misc]
            work.callbacks = []
        if run.closed:
            self._end_if_over(run)

    def _consumed(self, node: Node) -> None:
        work: Work = node.payload
        if work.slab is not None:
            slab, work.slab = work.slab, None
            self.release_slab(slab)
        for member in work.members:  # what a task was given is needed no more; what became of it is
            member.args, member.config, member.job, member.definition = None, None, None, None

    # Dispatches

    def _dispatch(self, node: Node, endpoints: list[Endpoint]) -> None:
        work: Work = node.payload
        work.waiting = len(work.members)
        for member, endpoint in zip(work.members, endpoints, strict=True):
            endpoint.busy += 1
            dispatch = Dispatch(next(self._dispatches), node, member, endpoint)
            work.running.append(dispatch)
        for dispatch in list(work.running):
            if work.failure is not None:
                self._end(dispatch, Completion(Outcome.SKIPPED, None, work.failure))
                continue
            dispatch.member.started = time.time()
            dispatch.member.ran_on = dispatch.endpoint.name
            if work.timeout is not None:
                moment = time.monotonic() + work.timeout
                dispatch.deadline = self.reactor.at(moment, lambda dispatch=dispatch: self._overdue(dispatch))  # type: ignore[misc]
            try:
                dispatch.endpoint.start(dispatch)
            except Exception as error:
                outcome = Outcome.ENDPOINT_FAILURE if isinstance(error, OSError) else Outcome.TASK_FAILURE
                self._end(dispatch, _at(failed(error, outcome), dispatch.endpoint.name))

    def ended(self, dispatch: Dispatch, completion: Completion) -> None:
        """An endpoint tells how a task ended."""
        with self.turn():
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
        work: Work = dispatch.node.payload
        member = dispatch.member
        member.completion = completion
        if member.started is not None:
            member.ended = time.time()
        work.running.remove(dispatch)
        work.waiting -= 1
        if completion.outcome is not Outcome.SUCCESS and work.failure is None:
            work.outcome = completion.outcome
            work.failure = completion.failure or Failure(completion.outcome.name, completion.outcome.value)
            if work.running:
                moment = time.monotonic() + self.grace
                self.reactor.at(moment, lambda: self._stop_peers(work))
        if work.waiting == 0:
            if work.failure is None:
                self.graph.complete(dispatch.node)
            else:
                self.graph.fail(dispatch.node, TaskError(record_of(dispatch.node)))

    def _stop_peers(self, work: Work) -> None:
        """The other members of a group hang, most likely, in a collective with the one that has failed."""
        with self.turn():
            why = f"a member of its group failed {self.grace:g} s ago"
            self._stop(work, Completion(Outcome.CANCELLED, None, Failure("Cancelled", why)), why)

    def _overdue(self, dispatch: Dispatch) -> None:
        with self.turn():
            timeout = dispatch.node.payload.timeout
            why = f"not finished within {timeout:g} s"
            failure = Failure("TimeoutError", f"{dispatch.endpoint.name}: TimeoutError: {why}")
            self._stop_one(dispatch, Completion(Outcome.TIMEOUT, None, failure), why)

    def _stop(self, work: Work, completion: Completion, why: str) -> None:
        for dispatch in list(work.running):
            self._stop_one(dispatch, completion, why)

    def _stop_one(self, dispatch: Dispatch, completion: Completion, why: str) -> None:
        if not dispatch.over and dispatch.stopping is None:
            dispatch.stopping = completion
            dispatch.endpoint.stop(dispatch, why)

    # Waiting

    def wait(self, node: Node, timeout: float | None = None) -> TaskRecord:
        """Block until a task has settled.

        Raises:
            TimeoutError: it has not within ``timeout`` seconds.
        """
        work: Work = node.payload
        with self.mutex:
            if work.record is None and work.settled is None:
                work.settled = threading.Event()
        if work.record is None:
            assert work.settled is not None
            if not self.reactor.drive(work.settled, timeout):
                if timeout is None:
                    raise EngineClosed(f"{self.name} is closed")
                raise TimeoutError(f"task {node.id} has not ended within {timeout:g} s")
        assert work.record is not None
        return work.record

    def when_settled(self, node: Node, callback: Callable[[TaskRecord], None]) -> None:
        """Call with the record, once there is one; on any thread."""
        work: Work = node.payload
        with self.lock:
            if work.record is None:
                work.callbacks.append(callback)
                return
        callback(work.record)

    def drain(self, timeout: float) -> bool:
        """Take nothing new, and wait for the runs that were accepted; whether they have ended in time.

        Jobs have been told to end before. Those that do not listen end with what runs them.
        """
        give_up = time.monotonic() + timeout
        with self.lock:
            self.closing = True
            self.lock.notify_all()
            while self.runs or self.sessions:
                left = give_up - time.monotonic()
                if left <= 0:
                    return not self.runs
                self.lock.wait(left)
        return True


def _label(work: Work) -> str:
    member = work.members[0] if work.members else None
    if member is not None and member.definition is not None:
        return member.definition.name
    return member.job.target if member is not None and member.job is not None else work.kind


def _at(completion: Completion, place: str) -> Completion:
    failure = completion.failure.at(place) if completion.failure is not None else None
    return Completion(completion.outcome, completion.payload, failure)
