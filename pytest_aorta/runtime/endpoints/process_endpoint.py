"""The endpoint of a process: sends it tasks, and reports to the dispatcher what becomes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pytest_aorta.common.bounded_waits import PIECE, wait_bounded
from pytest_aorta.runtime.endpoints.life_cycle import ProcessState, SupervisedProcess
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
from pytest_aorta.runtime.memory.sender import Sender
from pytest_aorta.runtime.memory.tensor_bytes import from_bytes, overwrite
from pytest_aorta.runtime.memory.transfer import TensorUnavailable, inline
from pytest_aorta.runtime.records import Completion, Outcome, TaskFailure

if TYPE_CHECKING:
    from pytest_aorta.runtime.engine.dispatcher import Dispatcher
    from pytest_aorta.runtime.engine.tasks import Dispatch
    from pytest_aorta.runtime.memory.callables import Definition

_SUCCESS = Outcome.SUCCESS
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}

#: Starts a process whose reports and whose death go to the endpoint. Raises ``StartupError``.
Launch = Callable[["ProcessEndpoint"], Link]


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
    ) -> None:
        super().__init__(dispatcher, name, respawn=respawn)
        self.kind = kind
        self.id = identity
        self.capacity = capacity
        self.busy = 0
        self._launcher = launch
        self._cancels = cancels
        #: The link and what tensors go through, where the process is on this host.
        self._local: tuple[LocalLink, Sender] | None = None
        self._in_flight: dict[int, Dispatch] = {}
        self._answers: list[CallableReport] = []

    def _launch(self) -> Link:
        link = self._launcher(self)
        self._local = (link, Sender(link.send, link.send_fd)) if isinstance(link, LocalLink) else None
        return link

    # Tasks

    def start(self, dispatch: Dispatch) -> None:
        """Send a task."""
        member, local = dispatch.member, self._local
        job_order = None if member.job is None else self._job_order(dispatch.id, member.job)
        self._in_flight[dispatch.id] = dispatch
        try:
            if job_order is not None:
                self._send(job_order)
            elif local is None or member.args is not None or member.config is not None:
                self._send(self._task_order(dispatch.id, member))
            else:  # what there are most of: no mapping is built, and no JSON made of it
                assert member.definition is not None
                local[0].send_text(f'{{"op":"task","id":{dispatch.id},"digest":"{member.definition.digest}"}}')
        except BaseException as error:
            self._in_flight.pop(dispatch.id, None)
            if isinstance(error, OSError):
                if self.ready:
                    self._enter(ProcessState.LOST)
                raise OSError(f"its process is gone: {error}") from error
            raise

    def _send(self, order: Order) -> None:
        assert self._link is not None
        self._link.send(order)

    def _task_order(self, number: int, member: Member) -> TaskOrder:
        assert member.definition is not None
        encode = inline if self._local is None else self._local[1].encode
        args = encode(member.args, member.config)
        return {"op": "task", "id": number, "digest": member.definition.digest, "args": args}

    def stop(self, dispatch: Dispatch, why: str) -> None:
        """Ask, where the other side understands; end the process, where not, or when it does not help."""
        if not self._cancels:
            self._condemn(self._dispatcher.grace)
            return
        order: CancelOrder = {"op": "cancel", "id": dispatch.id, "why": why}
        try:
            self._send(order)
        except OSError:
            return  # its death is about to be reported
        if dispatch.member.job is None:  # a job decides how long it takes to end
            moment = time.monotonic() + 2 * self._dispatcher.grace + 1
            self._dispatcher.loop.call_at(moment, lambda: self._insist(dispatch))

    def _insist(self, dispatch: Dispatch) -> None:
        with self._dispatcher.turn():
            if not dispatch.over:
                self._condemn(0)

    # Reports, on the thread of the link

    def received(self, report: Report) -> None:
        """The process has sent a report."""
        if report["op"] == "ended":
            dispatch = self._in_flight.pop(report["id"], None)
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
        else:
            with self._changed:
                self._answers.append(report)
                self._changed.notify_all()

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
        if seen is not None and seen.type == TensorUnavailable.__name__:
            self.run_ended()  # the next task that needs this memory is to send it once more
        payload = json.loads(report["text"]) if "text" in report else report.get("payload")
        if "parts" in report:
            payload = decode_result(payload, report["parts"])
        self._dispatcher.ended(dispatch, Completion(outcome, payload, seen))

    def died(self, how: str) -> None:
        """The process is gone."""
        failure = TaskFailure("ProcessDied", how)
        with self._dispatcher.turn():
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
            link.send(order)
        except OSError as error:
            return TaskFailure("ProcessDied", str(error))
        with self._changed:
            while self.ready and self._link is link:
                for report in self._answers:
                    if (report["op"], report["digest"]) == (answer, digest):
                        self._answers.remove(report)
                        failure = report.get("failure")
                        return TaskFailure.from_plain(failure).at(self.name) if failure is not None else None
                self._changed.wait(PIECE)
        return TaskFailure("ProcessDied", f"{self.name} died")

    def run_ended(self) -> None:
        """Let go of the memory that the last run has shown it."""
        with self._dispatcher.lock:  # another run's task may be about to be sent
            if self._local is not None and self.ready and not self._in_flight:
                try:
                    self._local[1].forget()
                except OSError:
                    return  # its death is about to be reported

    def _job_order(self, number: int, job: Job) -> JobOrder:
        if job.on_start is not None:
            job.on_start(self.name)
        prepare = job.preparation
        return {
            "op": "job",
            "id": number,
            "target": job.target,
            "payload": packed(job.payload),
            "prepare": None if prepare is None else (prepare.key, prepare.target, packed(prepare.payload)),
        }
