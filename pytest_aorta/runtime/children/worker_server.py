"""A worker below a worker: takes tasks and jobs from the level above, and tells how they ended."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Protocol

from pytest_aorta.runtime.children.slot import payload as as_payload
from pytest_aorta.runtime.endpoints.process import unpacked
from pytest_aorta.runtime.engine.tasks import Job, Preparation
from pytest_aorta.runtime.memory.callables import Definition
from pytest_aorta.runtime.memory.transfer import Message, Receiver, SlotArgs, to_bytes
from pytest_aorta.runtime.records import Completion, Failure, Outcome, TaskRecord, failed
from pytest_aorta.runtime.worker import Worker
from pytest_aorta.runtime.worker_spec import WorkerSpec
from pytest_aorta.runtime.zygotes.channel import Channel

if TYPE_CHECKING:
    from pytest_aorta.runtime.hosts.host_main import HostChannel


class Transport(Protocol):
    """How messages come from the level above."""

    def send(self, message: Message) -> None:
        """Send one; raises ``OSError`` when nobody is there."""

    def receive(self) -> Message | None:
        """The next one; ``None`` when nobody is there any more."""

    def receive_fd(self) -> int | None:
        """A descriptor, on the same host."""


class ChannelTransport:
    """A channel of the same host, which several threads write to."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one."""
        with self._lock:
            self._channel.send(message)

    def receive(self) -> Message | None:
        """The next one."""
        return self._channel.receive()

    def receive_fd(self) -> int | None:
        """The next descriptor."""
        return self._channel.receive_fd()


class HostTransport:
    """A channel of another host. Its messages are complete; descriptors do not travel."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel

    def send(self, message: Message) -> None:
        """Send one."""
        self._channel.send(message)

    def receive(self) -> Message | None:
        """The next one."""
        return self._channel.receive()

    def receive_fd(self) -> int | None:
        """There are none."""
        return None


def serve_host(argument: dict[str, Any], channel: HostChannel) -> None:
    """The service on another host; ``argument``: ``spec``, ``sys_path`` of the side that asks, ``torch`` or not."""
    # What is imported by name there can be here, where the same folders exist.
    sys.path.extend(path for path in argument["sys_path"] if path not in sys.path and os.path.isdir(path))
    if argument["torch"]:  # tensors are to be expected: now, and once for all slots, rather than within the first task
        import torch  # noqa: F401
    serve_worker(argument["spec"], HostTransport(channel))


def serve_worker(packed_spec: str, transport: Transport) -> None:
    """Build the worker of a specification, and serve until the level above closes or goes."""
    try:
        spec: WorkerSpec = unpacked(packed_spec)
        worker = Worker.from_spec(spec)
        worker.init()
    except BaseException as error:
        failure = failed(error, traceback=traceback.format_exc()).failure
        assert failure is not None
        transport.send({"op": "failed", "failure": failure.to_plain()})
        return
    with worker:
        service = WorkerService(worker, transport)
        transport.send({"op": "ready"})
        while (message := transport.receive()) is not None and message["op"] != "close":
            service.handle(message)
        service.end()


class WorkerService:
    """The orders of the level above. Tasks run on threads, so that their cancellation can be heard."""

    def __init__(self, worker: Worker, transport: Transport) -> None:
        self.worker = worker
        self.transport = transport
        self.receiver = Receiver()
        self.cancels: dict[int, Any] = {}

    def handle(self, message: Message) -> None:
        """Carry out one order."""
        operation = message["op"]
        if operation == "task":
            threading.Thread(target=self.run_task, args=(message,), daemon=True).start()
        elif operation == "job":
            self.submit_job(message)
        elif operation == "cancel":
            cancel = self.cancels.get(message["id"])
            if cancel is not None:
                cancel(message["why"])
        elif operation == "map":
            fd = self.transport.receive_fd()
            if fd is not None:
                self.receiver.map(message["storage"], message["bytes"], fd)
        elif operation == "unmap":
            self.receiver.unmap(message.get("storages"))
        elif operation == "register":
            # As long as a process below runs a task, this waits for it; orders to cancel must be heard meanwhile.
            definition = Definition(*message["definition"])
            threading.Thread(target=self.register, args=(definition,), daemon=True).start()
        elif operation == "unregister":
            threading.Thread(target=self.unregister, args=(message["digest"],), daemon=True).start()

    def register(self, definition: Definition) -> None:
        """Take a callable in, at this level and below."""
        answer: Message = {"op": "registered", "digest": definition.digest}
        try:
            self.worker.accept(definition)
        except BaseException as error:
            failure = failed(error, traceback=traceback.format_exc()).failure
            assert failure is not None
            answer["failure"] = failure.to_plain()
        self._tell(answer)

    def unregister(self, digest: str) -> None:
        """Forget a callable, at this level and below."""
        self.worker.withdraw(digest)
        self._tell({"op": "unregistered", "digest": digest})

    def run_task(self, message: Message) -> None:
        """One task of the level above is one run at this level."""
        answer: Message = {"op": "ended", "id": message["id"], "outcome": Outcome.SUCCESS.value}
        try:
            orch_fn = self.worker.callables.definitions[message["digest"]].load()
            args = self.receiver.decode(message.get("args"))
            returned: list[Any] = []

            def build(orch: Any, args: SlotArgs, config: Any) -> None:
                returned.append(orch_fn(orch, args, config))

            handle = self.worker.submit(build, args, args.config)
            self.cancels[message["id"]] = lambda why: handle.cancel(why, running=True)
            handle.wait()
            answer["payload"] = json.loads(as_payload(returned[0]))
            answer["written"] = [[n, to_bytes(args.tensors[n])] for n in (message.get("args") or {}).get("written", ())]
        except BaseException as error:
            answer |= _failure(failed(error, traceback=traceback.format_exc()))
        finally:
            self.cancels.pop(message["id"], None)
        self._tell(answer)

    def submit_job(self, message: Message) -> None:
        """A job joins the session of this worker."""
        number = message["id"]
        prepare = message.get("prepare")
        job = Job(
            target=message["target"],
            payload=unpacked(message["payload"]),
            preparation=Preparation(prepare[0], prepare[1], unpacked(prepare[2])) if prepare is not None else None,
            on_event=lambda event: self._tell({"op": "event", "id": number, "event": event}),
        )
        ref = self.worker.session.submit_job(job)
        self.cancels[number] = ref.cancel
        ref.when_settled(lambda record: self._job_ended(number, record))

    def _job_ended(self, number: int, record: TaskRecord) -> None:
        self.cancels.pop(number, None)
        completion = Completion(record.outcome, record.payload, record.failure)
        self._tell({"op": "ended", "id": number, "payload": completion.payload, **_failure(completion)})

    def _tell(self, message: Message) -> None:
        try:
            self.transport.send(message)
        except OSError:
            return  # nobody listens any more; the end of the transport ends us

    def end(self) -> None:
        """Nobody waits for what still runs."""
        for cancel in list(self.cancels.values()):
            cancel("the worker is closed")


def _failure(completion: Completion) -> Message:
    failure: Failure | None = completion.failure
    told = failure.to_plain() if failure is not None else None
    return {"outcome": completion.outcome.value, "failure": told}
