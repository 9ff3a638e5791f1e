"""A slot: a process below a worker that runs one task after the other."""

from __future__ import annotations

import json
import os
import traceback
from typing import Any

from pytest_aorta.runtime.memory.callables import Definition
from pytest_aorta.runtime.memory.transfer import Message, Receiver
from pytest_aorta.runtime.records import failed
from pytest_aorta.runtime.zygotes.channel import Channel

#: Bytes of JSON that a task's return value may have.
MAX_PAYLOAD = 2**20


class SlotProcess:
    """Runs tasks on a channel, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.receiver = Receiver()
        self.callables: dict[str, Any] = {}

    def serve(self, payload: dict[str, Any]) -> None:
        """Get ready, then carry out what comes, until nothing comes any more."""
        try:
            for plain in payload["callables"]:
                self.load(plain)
            if payload["prepare"] is not None:
                Definition(*payload["prepare"]).load()()
        except BaseException as error:
            failure = failed(error, traceback=traceback.format_exc()).failure
            assert failure is not None
            self.channel.send({"op": "failed", "failure": failure.to_plain()})
            return
        self.channel.send({"op": "ready", "pid": os.getpid()})
        while (message := self.channel.receive()) is not None and message["op"] != "close":
            self.handle(message)

    def load(self, plain: list[str]) -> None:
        """Get hold of a callable."""
        definition = Definition(*plain)
        self.callables[definition.digest] = definition.load()

    def handle(self, message: Message) -> None:
        """Carry out one order."""
        operation = message["op"]
        if operation == "task":
            self.channel.send_text(f'{{"op":"ended","id":{message["id"]},{self.run(message)}}}')
        elif operation == "map":
            fd = self.channel.receive_fd()
            if fd is not None:
                self.receiver.map(message["storage"], message["bytes"], fd)
        elif operation == "unmap":
            self.receiver.unmap(message.get("storages"))
        elif operation == "register":
            self.channel.send({"op": "registered", **self.register(message["definition"])})
        elif operation == "unregister":
            self.callables.pop(message["digest"], None)
            self.channel.send({"op": "unregistered", "digest": message["digest"]})

    def register(self, plain: list[str]) -> Message:
        """Load a callable; its digest, and why it could not be loaded."""
        answer: Message = {"digest": Definition(*plain).digest}
        try:
            self.load(plain)
        except BaseException as error:
            failure = failed(error, traceback=traceback.format_exc()).failure
            assert failure is not None
            answer["failure"] = failure.to_plain()
        return answer

    def run(self, message: Message) -> str:
        """Run one task; how it ended, as the inner part of a JSON mapping."""
        try:
            function = self.callables[message["digest"]]
            return f'"outcome":"success","payload":{payload(function(self.receiver.decode(message.get("args"))))}'
        except BaseException as error:
            failure = failed(error, traceback=traceback.format_exc()).failure
            assert failure is not None
            return f'"outcome":"task_failure","failure":{json.dumps(failure.to_plain())}'


def payload(value: Any) -> str:
    """A return value as JSON, if it is that and of a bounded size; results of another kind travel through tensors."""
    if value is None:
        return "null"
    try:
        text = json.dumps(value)
    except Exception:  # whatever it does when it is looked at
        return "null"
    return text if len(text) <= MAX_PAYLOAD else "null"
