"""A task goes to a process in several parts; nothing else that is sent there comes between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
import torch

from pytest_aorta.runtime import Tag, TaskArgs
from pytest_aorta.runtime.endpoints.process_endpoint import ProcessEndpoint
from pytest_aorta.runtime.endpoints.protocol import Link
from pytest_aorta.runtime.engine.dispatcher import Dispatcher
from pytest_aorta.runtime.engine.tasks import Dispatch, Member, TaskKind
from pytest_aorta.runtime.graph.nodes import Node
from pytest_aorta.runtime.memory.callables import Definition

#: Seconds that a test waits for a thread; nothing is measured.
PATIENCE = 10.0


class FakeLink:
    """Keeps what it is asked to send; calls ``meanwhile`` between a mapping and its descriptor."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def start(self) -> None:
        pass

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message["op"])
        if message["op"] == "map":
            self.meanwhile()

    def send_text(self, text: str) -> None:
        self.sent.append(text)

    def send_fd(self, fd: int) -> None:
        self.sent.append("fd")

    def kill(self, grace: float) -> None:
        pass

    def close(self, grace: float) -> None:
        pass


class Bench:
    """A process that is ready."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.link = FakeLink()
        self.endpoint = ProcessEndpoint(dispatcher, TaskKind.SUB, 0, "sub_worker 0", self._launch)
        self.endpoint.spawn()
        self.endpoint.received({"op": "ready"}, self.link)

    def _launch(self, endpoint: ProcessEndpoint) -> Link:
        return self.link

    def start(self, memory: torch.Tensor) -> None:
        """Send a task with memory that the process does not know."""
        member = Member(Definition("import", "module", "function"), TaskArgs().add(memory, Tag.INOUT))
        dispatch = Dispatch(0, cast(Node, None), member, self.endpoint)
        self.endpoint.assign(dispatch)
        self.endpoint.start(dispatch)
        self.endpoint._in_flight.clear()


def shared_memory() -> torch.Tensor:
    made: torch.Tensor = torch.zeros(4).share_memory_()  # type: ignore[no-untyped-call]
    return made


@pytest.fixture
def bench() -> Iterator[Bench]:
    dispatcher = Dispatcher("bench", 3, 1.0)
    bench = Bench(dispatcher)
    yield bench
    bench.endpoint.close(0.0)
    dispatcher.loop.close()


def test_memory_that_is_gone_is_let_go_of_behind_a_task_that_is_being_sent(bench: Bench) -> None:
    held = [shared_memory()]
    bench.start(held[0])

    def meanwhile() -> None:
        held.clear()
        bench.endpoint.release_dead()

    bench.link.sent.clear()
    bench.link.meanwhile = meanwhile
    bench.start(shared_memory())

    assert bench.link.sent == ["map", "fd", "task", "unmap"]


def test_a_callable_is_forgotten_behind_a_task_that_is_being_sent(bench: Bench) -> None:
    asked = threading.Event()
    thread = threading.Thread(target=bench.endpoint.unregister, args=("digest",))

    def meanwhile() -> None:
        thread.start()
        asked.wait(0.2)  # it must not be, so that this passes

    send = bench.link.send

    def note(message: Mapping[str, Any]) -> None:
        send(message)
        if message["op"] == "unregister":
            asked.set()

    bench.link.meanwhile, bench.link.send = meanwhile, note  # type: ignore[method-assign]
    bench.start(shared_memory())
    assert asked.wait(PATIENCE)
    bench.endpoint.received({"op": "unregistered", "digest": "digest", "failure": None}, bench.link)
    thread.join(PATIENCE)

    assert bench.link.sent == ["map", "fd", "task", "unregister"]
