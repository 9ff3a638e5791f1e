"""A slot: a process below a worker that runs one task after the other."""

from __future__ import annotations

import json
import traceback
from typing import Any, cast

from pytest_aorta.runtime.endpoints.protocol import CallableReport, Order, TaskOrder
from pytest_aorta.runtime.memory.callables import Definition
from pytest_aorta.runtime.memory.transfer import Receiver
from pytest_aorta.runtime.records import failed
from pytest_aorta.runtime.zygotes.channel import Channel

#: Bytes of JSON that a task's return value may have.
MAX_PAYLOAD = 2**20


class ItemError(Exception):
    """Raised from the exception of one item; its argument is the item's number."""


class SlotProcess:
    """Runs tasks on a channel, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.receiver = Receiver()
        self.callables: dict[str, Any] = {}

    def serve(self, payload: dict[str, Any]) -> None:
        """Get ready, then carry out orders until the channel closes or an order says so."""
        try:
            for plain in payload["callables"]:
                self.load(plain)
            if payload["prepare"] is not None:
                Definition(*payload["prepare"]).load()()
        except BaseException as error:
            self.channel.send({"op": "failed", "failure": plain_failure(error)})
            return
        self.channel.send({"op": "ready"})
        while (message := self.channel.receive()) is not None and message["op"] != "close":
            self.handle(cast(Order, message))

    def load(self, plain: list[str]) -> None:
        """Load a callable, for tasks to come."""
        definition = Definition(*plain)
        self.callables[definition.digest] = definition.load()

    def handle(self, order: Order) -> None:
        """Carry out one order."""
        if order["op"] == "task":
            self.channel.send_text(f'{{"op":"ended","id":{order["id"]},{self.run(order)}}}')
        elif order["op"] == "map":
            self.receiver.map(order["storage"], order["bytes"], self.channel.receive_fd())
        elif order["op"] == "unmap":
            self.receiver.unmap(order["storages"])
        elif order["op"] == "register":
            self.channel.send(self.register(order["definition"]))
        elif order["op"] == "unregister":
            self.callables.pop(order["digest"], None)
            self.channel.send({"op": "unregistered", "digest": order["digest"], "failure": None})

    def register(self, plain: list[str]) -> CallableReport:
        """Load a callable; the answer says why it could not be loaded."""
        report: CallableReport = {"op": "registered", "digest": Definition(*plain).digest, "failure": None}
        try:
            self.load(plain)
        except BaseException as error:
            report["failure"] = plain_failure(error)
        return report

    def call(self, function: Any, order: TaskOrder) -> Any:
        """What the callable returns: once, or a list with one value per item."""
        args = self.receiver.decode(order.get("args"))
        if "first_item" not in order:
            return function(args)
        results: list[Any] = []
        try:
            for item in args.config:
                results.append(function(item))
        except BaseException as error:
            raise ItemError(order["first_item"] + len(results)) from error
        return results

    def run(self, order: TaskOrder) -> str:
        """Run one task; how it ended, as the inner part of a JSON mapping."""
        try:
            function = self.callables[order["digest"]]
            return f'"outcome":"success","payload":{as_json(self.call(function, order))}'
        except BaseException as error:
            return f'"outcome":"task_failure","failure":{json.dumps(plain_failure(error))}'


def plain_failure(error: BaseException) -> dict[str, Any]:
    """The exception that is being handled, as JSON values."""
    if isinstance(error, ItemError) and error.__cause__ is not None:
        cause = plain_failure(error.__cause__)
        return {**cause, "message": f"item {error.args[0]}: {cause['message']}"}
    failure = failed(error, traceback=traceback.format_exc()).failure
    assert failure is not None
    return failure.to_plain()


def as_json(value: Any) -> str:
    """A return value as JSON, if it is that and of a bounded size; results of another kind travel through tensors."""
    if value is None:
        return "null"
    try:
        text = json.dumps(value)
    except Exception:  # its own methods may raise anything
        return "null"
    return text if len(text) <= MAX_PAYLOAD else "null"
