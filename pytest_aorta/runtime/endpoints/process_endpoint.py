"""The endpoint of a process: sends it tasks, and reports to the dispatcher what becomes of them."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pytest_aorta.common.bounded_waits import PIECE, wait_bounded
from pytest_aorta.runtime.endpoints.life_cycle import ProcessState, SupervisedProcess
from pytest_aorta.runtime.endpoints.outbox import OutboxFull
from pytest_aorta.runtime.endpoints.protocol import (
    CallableReport,
    CancelOrder,
    EndedReport,
    JobOrder,
    Link,
    LocalLink,
    Order,
    RegisterOrder,
    Report,
    TaskOrder,
    UnregisterOrder,
    packed,
)
from pytest_aorta.runtime.engine.tasks import Job, Member, TaskKind
from pytest_aorta.runtime.memory.results import decode_result
from pytest_aorta.runtime.memory.sender import GONE, Sender
from pytest_aorta.runtime.memory.tensor_bytes import from_bytes, overwrite
from pytest_aorta.runtime.memory.transfer import TensorUnavailable, inline
from pytest_aorta.runtime.records import SUCCEEDED, Completion, Outcome, TaskFailure, failed

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.engine.tasks import Dispatch
    from pytest_aorta.runtime.memory.callables import Definition

_SUCCESS = Outcome.SUCCESS
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}

#: Seconds that an idle process has to load or forget a callable; it may have to import a library for that.
ANSWER = 30.0

#: Starts a process whose reports and whose death go to the endpoint. Raises ``StartupError``.
Launch = Callable[["ProcessEndpoint"], Link]


def _nothing() -> None:
    pass


class ProcessEndpoint(SupervisedProcess):
    """A process that runs tasks: a slot, or a worker of the level below.

    Args:
        dispatcher: of the worker above.
        kind: of the tasks that it takes.
        identity: its number among those of its kind.
        name: for messages.
        launch: starts the process.
        capacity: tasks that it runs at a time.
        respawn: whether another process takes the place of one that has died.
        cancels: whether it can end a task and live on.
        many_dead: see ``Sender``; ``release_dead`` is the answer.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        kind: TaskKind,
        identity: int,
        name: str,
        launch: Launch,
        *,
        capacity: int = 1,
        respawn: bool = True,
        cancels: bool = False,
        many_dead: Callable[[], object] = _nothing,
    ) -> None:
        super().__init__(dispatcher, name, respawn=respawn)
        self.kind = kind
        self.id = identity
        self.capacity = capacity
        self.busy = 0
        self._launcher = launch
        self._cancels = cancels
        self._many_dead = many_dead
        #: The link and what tensors go through, where the process is on this host.
        self._local: tuple[LocalLink, Sender] | None = None
        #: What was assigned to this process and has not ended, guarded by the dispatcher's lock.
        self._in_flight: dict[int, Dispatch] = {}
        #: Held while something is encoded and sent, so that what one message needs is not between those of another.
        self._sending = threading.Lock()
        #: Whether memory is to be let go of by the thread that holds it.
        self._release_waits = False
        self._answers: list[CallableReport] = []

    def _launch(self) -> Link:
        link = self._launcher(self)
        self._local = None
        if isinstance(link, LocalLink):
            self._local = link, Sender(link.send, link.send_fd, self._many_dead)
        return link

    # Tasks

    def assign(self, dispatch: Dispatch) -> None:
        """A task that is about to be sent: if the process dies before that, it is lost with it."""
        self._in_flight[dispatch.id] = dispatch

    def start(self, dispatch: Dispatch) -> None:
        """Send a task."""
        with self._sending:
            link, local = self._link, self._local
            if dispatch.over:  # the process has died, and another one may have taken its place
                return
            assert link is not None
            if dispatch.stopping is None:
                try:
                    self._send_task(dispatch, link, local)
                except BaseException as error:
                    self._in_flight.pop(dispatch.id, None)
                    if isinstance(error, OSError):
                        self._lose(link, error)
                        raise OSError(f"its process is gone: {error}") from error
                    raise
                dispatch.sent = True
                if self._release_waits and local is not None:
                    self._let_go(local[1].release_dead)
                return
        self._in_flight.pop(dispatch.id, None)
        self._dispatcher.ended(dispatch, dispatch.stopping)

    def _lose(self, link: Link, error: OSError) -> None:
        """An order could not be sent."""
        with self._dispatcher.turn():
            if self._link is link and self.ready:
                self._enter(ProcessState.LOST)
        if isinstance(error, OutboxFull) or error.errno not in (None, *GONE):  # else it has died by itself
            link.kill(0.0)

    def _send_task(self, dispatch: Dispatch, link: Link, local: tuple[LocalLink, Sender] | None) -> None:
        member = dispatch.member
        order: Order | None = None
        if member.job is not None:
            order = self._job_order(dispatch.id, member.job)
        elif local is None or member.args is not None or member.config is not None:
            order = _task_order(dispatch.id, member, None if local is None else local[1])
        if order is not None:
            link.send(order)
        else:  # what there are most of: no mapping is built, and no JSON made of it
            assert local is not None
            assert member.definition is not None
            local[0].send_text(f'{{"op":"task","id":{dispatch.id},"digest":"{member.definition.digest}"}}')

    def stop(self, dispatch: Dispatch, why: str) -> None:
        """Ask, where the other side understands; end the process, where not, or when it does not help."""
        with self._sending:
            link = self._link
            if not dispatch.sent or dispatch.over:  # ``start`` will see that it is not wanted
                return
            if self._cancels:
                order: CancelOrder = {"op": "cancel", "id": dispatch.id, "why": why}
                try:
                    assert link is not None
                    link.send(order)
                except OSError:
                    return  # its death is about to be reported
        if not self._cancels:
            self._end_with(dispatch, self._dispatcher.grace)
            return
        if dispatch.member.job is None:  # a job decides how long it takes to end
            moment = time.monotonic() + 2 * self._dispatcher.grace + 1
            self._dispatcher.loop.call_at(moment, lambda: self._end_with(dispatch, 0.0))

    def _end_with(self, dispatch: Dispatch, grace: float) -> None:
        """End the process because of a task, unless that task is over: then the process may be another one."""
        with self._dispatcher.turn():
            link = None if dispatch.over else self._condemn()
        if link is not None:
            link.kill(grace)

    # Reports, on the thread of the link

    def received(self, report: Report, link: Link) -> None:
        """The process behind a link has sent a report; never raises."""
        if not self._is_current(link):
            return
        try:
            self._receive(report)
        except Exception as error:
            self._refuse_report(report, error)

    def _refuse_report(self, report: Report, error: Exception) -> None:
        """A report could not be taken in: its task fails, or all do, where it names none."""
        number = report.get("id")
        dispatch = self._in_flight.get(number) if isinstance(number, int) else None
        if dispatch is None:
            self._misbehaved(f"its process has sent a message that makes no sense: {error!r}")
        elif report["op"] == "ended":
            self._in_flight.pop(dispatch.id, None)
            completion = failed(error, traceback=traceback.format_exc())
            self._dispatcher.ended(dispatch, completion.at("its report could not be read").at(self.name))
        else:
            self._dispatcher.fail(dispatch, error, "on_event")

    def _misbehaved(self, how: str) -> None:
        """Nothing that the process says can be trusted any more."""
        completion = Completion(Outcome.ENDPOINT_FAILURE, None, TaskFailure("ProcessDied", how).at(self.name))
        with self._dispatcher.turn():
            link = self._condemn()
            lost, self._in_flight = self._in_flight, {}
            for dispatch in lost.values():
                self._dispatcher.ended(dispatch, completion)
        if link is not None:
            link.kill(0.0)

    def _receive(self, report: Report) -> None:
        if report["op"] == "ended":
            dispatch = self._in_flight.get(report["id"])
            if dispatch is not None:
                self._ended(dispatch, report)
        elif report["op"] == "event":
            dispatch = self._in_flight.get(report["id"])
            job = dispatch.member.job if dispatch is not None else None
            if job is not None and job.on_event is not None:
                job.on_event(report["event"])
        elif report["op"] == "ready":
            self._became_ready()
        elif report["op"] == "failed":
            self._refuse(TaskFailure.from_plain(report["failure"]))
        elif report["op"] in ("registered", "unregistered"):
            with self._changed:
                self._answers.append(report)
                self._changed.notify_all()
        else:
            raise ValueError(f"op {report['op']!r}")

    def _ended(self, dispatch: Dispatch, report: EndedReport) -> None:
        outcome = _OUTCOMES[report["outcome"]]
        if outcome is _SUCCESS:
            self._deaths = 0
        for number, parts in report.get("written", ()):
            args = dispatch.member.args
            assert args is not None
            overwrite(args.tensors[number], from_bytes(*parts))
        failure = report.get("failure")
        seen = TaskFailure.from_plain(failure).at(self.name) if failure is not None else None
        self._in_flight.pop(dispatch.id, None)
        if seen is not None and seen.type == TensorUnavailable.__name__:
            self.run_ended()  # the next task that needs this memory is to send it once more
        payload = json.loads(report["text"]) if "text" in report else report.get("payload")
        if "parts" in report:
            payload = decode_result(payload, report["parts"])
        nothing_to_say = outcome is _SUCCESS and payload is None and seen is None
        self._dispatcher.ended(dispatch, SUCCEEDED if nothing_to_say else Completion(outcome, payload, seen))

    def died(self, how: str, link: Link) -> None:
        """The process behind a link is gone."""
        failure = TaskFailure("ProcessDied", how)
        with self._dispatcher.turn():
            if not self._is_current(link):
                return
            replace = self._record_death(failure)
            lost, self._in_flight = self._in_flight, {}
            for dispatch in lost.values():
                self._dispatcher.ended(dispatch, Completion(Outcome.ENDPOINT_FAILURE, None, failure.at(self.name)))
            if replace:
                self._replace()

    # Callables

    def register(self, definition: Definition) -> TaskFailure | None:
        """Have it load a callable; why it could not, or ``None``. Blocks while it runs a task, or starts again."""
        waiting = (ProcessState.STARTING, ProcessState.LOST, ProcessState.CONDEMNED)
        with self._changed:
            wait_bounded(partial(self._changed.wait_for, lambda: self._state not in waiting))
        order: RegisterOrder = {"op": "register", "definition": definition.to_plain()}
        return self._ask("registered", order, definition.digest)

    def unregister(self, digest: str) -> None:
        """Have it forget a callable."""
        order: UnregisterOrder = {"op": "unregister", "digest": digest}
        self._ask("unregistered", order, digest)

    def _ask(self, answer: str, order: RegisterOrder | UnregisterOrder, digest: str) -> TaskFailure | None:
        link = self._link
        assert link is not None
        try:
            with self._sending:  # not between the parts of a task
                link.send(order)
        except OSError as error:
            return TaskFailure("ProcessDied", str(error))
        patience = ANSWER
        with self._changed:
            while self.ready and self._link is link:
                for report in self._answers:
                    if (report["op"], report["digest"]) == (answer, digest):
                        self._answers.remove(report)
                        failure = report.get("failure")
                        return TaskFailure.from_plain(failure).at(self.name) if failure is not None else None
                before = time.monotonic()
                self._changed.wait(PIECE)
                # Time in which it runs a task does not count, nor does more than a piece in which this one was stopped.
                patience -= 0.0 if self._in_flight else min(time.monotonic() - before, PIECE)
                if patience < 0:
                    break
        if patience < 0:
            self._misbehaved(f"its process has not answered for {ANSWER:g} s although it runs no task")
        return TaskFailure("ProcessDied", f"{self.name} died")

    def run_ended(self) -> None:
        """Let go of the memory that the last run has shown it."""
        if not self._in_flight and self._sending.acquire(blocking=False):  # else another run's task uses it
            try:
                if self._local is not None and self.ready and not self._in_flight:
                    self._let_go(self._local[1].forget)
            finally:
                self._sending.release()

    def release_dead(self) -> None:
        """Let go of the memory whose last tensor is gone; within a turn, on the event loop."""
        if not self._sending.acquire(blocking=False):
            self._release_waits = True
            return
        try:
            if self._local is not None and self.ready:
                self._let_go(self._local[1].release_dead)
        finally:
            self._sending.release()

    def _let_go(self, call: Callable[[], None]) -> None:
        self._release_waits = False
        try:
            call()
        except OSError:
            return  # its death is about to be reported

    def forget_memory(self) -> None:
        """Once closed: stop following what becomes of the memory that was sent."""
        self._local, self._many_dead = None, _nothing

    def _job_order(self, number: int, job: Job) -> JobOrder:
        if job.on_start is not None:
            try:
                job.on_start(self.name)
            except OSError as error:  # not one of the channel
                raise RuntimeError(f"on_start: {error!r}") from error
        prepare = job.preparation
        return {
            "op": "job",
            "id": number,
            "target": job.target,
            "payload": packed(job.payload),
            "prepare": None if prepare is None else (prepare.key, prepare.target, packed(prepare.payload)),
        }


def _task_order(number: int, member: Member, sender: Sender | None) -> TaskOrder:
    assert member.definition is not None
    encode = inline if sender is None else sender.encode
    args = encode(member.args, member.config)
    order: TaskOrder = {"op": "task", "id": number, "digest": member.definition.digest, "args": args}
    if member.first_item is not None:
        order["first_item"] = member.first_item
    return order
