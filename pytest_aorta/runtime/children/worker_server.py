"""A worker below a worker: takes tasks and jobs from the level above, and reports how they ended."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from pytest_aorta.runtime.channel import Channel
from pytest_aorta.runtime.children.graph_task import GraphTask, LeftBehind
from pytest_aorta.runtime.children.orphans import Orphans
from pytest_aorta.runtime.children.slot import plain_failure
from pytest_aorta.runtime.endpoints.protocol import (
    CallableReport,
    EndedReport,
    JobOrder,
    MapOrder,
    Order,
    Report,
    TaskOrder,
    unpacked,
)
from pytest_aorta.runtime.engine.tasks import Job, Preparation
from pytest_aorta.runtime.memory.callables import Definition
from pytest_aorta.runtime.memory.results import encode_result
from pytest_aorta.runtime.memory.tensor_bytes import to_bytes
from pytest_aorta.runtime.memory.transfer import Message, Receiver, SlotArgs
from pytest_aorta.runtime.records import Outcome, TaskRecord
from pytest_aorta.runtime.worker import Worker
from pytest_aorta.runtime.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from pytest_aorta.runtime.hosts.host_main import HostChannel


class Transport(Protocol):
    """How orders come from the level above: a ``Channel`` of the same host, or a ``HostChannel``."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a report; raises ``OSError`` when the level above is gone."""

    def receive(self) -> Message | None:
        """The next order; ``None`` when the level above is gone."""


def serve_host(argument: dict[str, Any], channel: HostChannel) -> None:
    """The service on another host; ``argument``: ``spec``, ``sys_path`` of the side that asks, ``torch`` or not."""
    # What is imported by name there can be here, where the same folders exist.
    sys.path.extend(path for path in argument["sys_path"] if path not in sys.path and os.path.isdir(path))
    if argument["torch"]:  # tensors are to be expected: now, and once for all slots, rather than within the first task
        import torch  # noqa: F401
    serve_worker(argument["spec"], channel)


def serve_worker(packed_spec: str, transport: Transport) -> None:
    """Build the worker of a specification, and serve until the level above closes or goes."""
    try:
        spec: WorkerSpec = unpacked(packed_spec)
        worker = Worker.from_spec(spec)
        worker.init()
    except BaseException as error:
        transport.send({"op": "failed", "failure": plain_failure(error)})
        return
    with worker:
        service = WorkerService(worker, transport)
        orphans = Orphans()
        transport.send({"op": "ready"})
        while (message := transport.receive()) is not None and message["op"] != "close":
            service.handle(cast(Order, message))
            orphans.collect()
        service.end()


class WorkerService:
    """Carries out the orders of the level above. Tasks run on threads, so that orders to cancel them are received."""

    def __init__(self, worker: Worker, transport: Transport) -> None:
        self.worker = worker
        self.transport = transport
        self.receiver = Receiver()
        self.cancels: dict[int, Callable[[str], None]] = {}

    def handle(self, order: Order) -> None:
        """Carry out one order."""
        if order["op"] == "task":
            self.start_task(order)
        elif order["op"] == "job":
            self.submit_job(order)
        elif order["op"] == "cancel":
            cancel = self.cancels.get(order["id"])
            if cancel is not None:
                cancel(order["why"])
        elif order["op"] == "map":
            self.map(order)
        elif order["op"] == "unmap":
            self.receiver.unmap(order["storages"])
        elif order["op"] == "register":
            # As long as a process below runs a task, this waits for it; orders to cancel must be received meanwhile.
            definition = Definition(*order["definition"])
            threading.Thread(target=self.register, args=(definition,), daemon=True).start()
        elif order["op"] == "unregister":
            threading.Thread(target=self.unregister, args=(order["digest"],), daemon=True).start()

    def map(self, order: MapOrder) -> None:
        """Map a storage, on the same host."""
        assert isinstance(self.transport, Channel)
        self.receiver.map(order["storage"], order["bytes"], self.transport.receive_fd())

    def register(self, definition: Definition) -> None:
        """Take a callable in, at this level and below."""
        report: CallableReport = {"op": "registered", "digest": definition.digest, "failure": None}
        try:
            self.worker.accept(definition)
        except BaseException as error:
            report["failure"] = plain_failure(error)
        self._report(report)

    def unregister(self, digest: str) -> None:
        """Forget a callable, at this level and below."""
        self.worker.withdraw(digest)
        self._report({"op": "unregistered", "digest": digest, "failure": None})

    def start_task(self, order: TaskOrder) -> None:
        """Run a task on a thread. Its arguments are decoded here: later orders may unmap their memory."""
        try:
            args = self.receiver.decode(order.get("args"))
        except BaseException as error:
            failure = plain_failure(error)
            self._report({"op": "ended", "id": order["id"], "outcome": Outcome.TASK_FAILURE.value, "failure": failure})
            return
        threading.Thread(target=self.run_task, args=(order, args), daemon=True).start()

    def run_task(self, order: TaskOrder, args: SlotArgs) -> None:
        """One task of the level above is one run at this level."""
        report: EndedReport = {"op": "ended", "id": order["id"], "outcome": Outcome.SUCCESS.value}
        try:
            task = GraphTask(self.worker, lambda error: self._report_end(report, error))
            self.cancels[order["id"]] = task.cancel
            orch_fn = self.worker.callables.definitions[order["digest"]].load()
            _put_result(report, task.run(orch_fn, args))
            written = order.get("args", {}).get("written", ())
            report["written"] = [(number, to_bytes(args.tensors[number])) for number in written]
        except LeftBehind:
            return  # it was reported when it was left behind
        except BaseException as error:
            self._report_end(report, error)
        else:
            self._report_end(report)

    def _report_end(self, report: EndedReport, error: BaseException | None = None) -> None:
        if error is not None:
            report["outcome"], report["failure"] = Outcome.TASK_FAILURE.value, plain_failure(error)
        self.cancels.pop(report["id"], None)
        self._report(report)

    def submit_job(self, order: JobOrder) -> None:
        """A job joins the session of this worker."""
        number, prepare = order["id"], order["prepare"]
        job = Job(
            target=order["target"],
            payload=unpacked(order["payload"]),
            preparation=None if prepare is None else Preparation(prepare[0], prepare[1], unpacked(prepare[2])),
            on_event=lambda event: self._report({"op": "event", "id": number, "event": event}),
        )
        ref = self.worker.session.submit_job(job)
        self.cancels[number] = ref.cancel
        ref.when_settled(lambda record: self._job_ended(number, record))

    def _job_ended(self, number: int, record: TaskRecord) -> None:
        self.cancels.pop(number, None)
        report: EndedReport = {"op": "ended", "id": number, "outcome": record.outcome.value}
        try:
            _put_result(report, record.payload)
        except (TypeError, ValueError) as error:
            report["outcome"], report["failure"] = Outcome.TASK_FAILURE.value, plain_failure(error)
        if record.failure is not None:
            report["failure"] = record.failure.to_plain()
        self._report(report)

    def _report(self, report: Report) -> None:
        try:
            self.transport.send(report)
        except ValueError as error:  # numbers that execnet has no form for, in the details of an exception
            if report["op"] != "ended":
                raise
            failure = plain_failure(error)
            self.transport.send({**report, "outcome": Outcome.TASK_FAILURE.value, "failure": failure})
        except OSError:
            return  # the level above is gone; the end of the transport ends this process

    def end(self) -> None:
        """Cancel what still runs: its results are not wanted any more."""
        for cancel in list(self.cancels.values()):
            cancel("the worker is closed")


def _put_result(report: EndedReport, value: Any) -> None:
    report["text"], parts = encode_result(value)
    if parts:
        report["parts"] = parts
