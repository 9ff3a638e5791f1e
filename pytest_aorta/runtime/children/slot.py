"""A slot: a process below a worker that runs one task after the other."""

from __future__ import annotations

import json
import traceback
from typing import Any, cast

from pytest_aorta.runtime.channel import Channel
from pytest_aorta.runtime.children.forks import ForkWatch
from pytest_aorta.runtime.children.orphans import Orphans
from pytest_aorta.runtime.endpoints.protocol import CallableReport, Order, TaskOrder
from pytest_aorta.runtime.memory.callables import Definition
from pytest_aorta.runtime.memory.results import encode_result
from pytest_aorta.runtime.memory.transfer import Receiver
from pytest_aorta.runtime.records import failed


class ItemError(Exception):
    """Raised from the exception of one item; its argument is the item's number."""


class SlotProcess:
    """Runs tasks on a channel, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.receiver = Receiver()
        self.callables: dict[str, Any] = {}
        self.forks = ForkWatch()
        self.orphans = Orphans()

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
        self.callables[definition.digest] = definition.load_task()

    def handle(self, order: Order) -> None:
        """Carry out one order."""
        if order["op"] == "task":
            self.channel.send_text(f'{{"op":"ended","id":{order["id"]},{self.run(order)}}}')
            self.orphans.collect()
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

    def call(self, order: TaskOrder) -> Any:
        """What the callable returns, in this process and in no fork of it: once, or a list with one value per item."""
        try:
            function, args = self.callables[order["digest"]], self.receiver.decode(order.get("args"))
            first = order.get("first_item")
            returned = function(args) if first is None else _map(function, args.config, first)
        except BaseException as error:
            self.forks.check(error.__cause__ if isinstance(error, ItemError) else error)
            raise
        self.forks.check()
        return returned

    def run(self, order: TaskOrder) -> str:
        """Run one task; how it ended, as the inner part of a JSON mapping."""
        try:
            payload, parts = encode_result(self.call(order))
        except BaseException as error:
            return f'"outcome":"task_failure","failure":{json.dumps(plain_failure(error))}'
        if parts:
            return f'"outcome":"success","payload":{payload},"parts":{json.dumps(parts)}'
        return f'"outcome":"success","payload":{payload}'


def _map(function: Any, items: Any, first: int) -> list[Any]:
    results: list[Any] = []
    try:
        for item in items:
            results.append(function(item))
    except BaseException as error:
        raise ItemError(first + len(results)) from error
    return results


def plain_failure(error: BaseException) -> dict[str, Any]:
    """The exception that is being handled, as JSON values; its traceback begins below this module."""
    if isinstance(error, ItemError) and error.__cause__ is not None:
        cause = plain_failure(error.__cause__)
        return {**cause, "message": f"item {error.args[0]}: {cause['message']}"}
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    failure = failed(error, traceback="".join(traceback.format_exception(type(error), error, trace))).failure
    assert failure is not None
    return failure.to_plain()
