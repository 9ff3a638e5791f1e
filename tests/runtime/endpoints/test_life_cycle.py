"""The states of an endpoint's process, with links that do nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pytest_aorta.runtime.endpoints.life_cycle import MAX_DEATHS, ProcessState
from pytest_aorta.runtime.endpoints.process_endpoint import ProcessEndpoint
from pytest_aorta.runtime.endpoints.protocol import Link, StartupError
from pytest_aorta.runtime.engine.dispatcher import Dispatcher
from pytest_aorta.runtime.engine.tasks import TaskKind
from pytest_aorta.runtime.records import TaskFailure

#: Seconds that a test waits for a thread; nothing is measured.
PATIENCE = 10.0


class FakeLink:
    """Keeps what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken = False

    def start(self) -> None:
        if self.broken:
            raise OSError("nothing answers")
        self.calls.append("start")

    def send(self, message: Mapping[str, Any]) -> None:
        self.calls.append(message["op"])

    def kill(self, grace: float) -> None:
        self.calls.append(f"kill {grace:g}")

    def close(self, grace: float) -> None:
        self.calls.append(f"close {grace:g}")


class Bench:
    """An endpoint, and the links of the processes that it has started."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.links: list[FakeLink] = []
        self.broken = False
        self.endpoint = ProcessEndpoint(dispatcher, TaskKind.NEXT_LEVEL, 0, "slot 0", self._launch)

    def _launch(self, endpoint: ProcessEndpoint) -> Link:
        link = FakeLink()
        link.broken = self.broken
        self.links.append(link)
        return link

    @property
    def state(self) -> ProcessState:
        return self.endpoint._state

    def start(self) -> None:
        """A process that is ready."""
        self.endpoint.spawn()
        self.endpoint.received({"op": "ready"}, self.links[-1])

    def die(self) -> None:
        """The process dies; its successor, if there is one, is ready."""
        known = len(self.links)
        self.endpoint.died("it died", self.links[-1])
        if self.endpoint.gone is None:
            self.wait_for_start(known + 1)
            self.endpoint.received({"op": "ready"}, self.links[-1])
            self.endpoint.join(PATIENCE)

    def wait_for_start(self, number: int) -> FakeLink:
        """The link of that process, once it was started."""
        give_up = time.monotonic() + PATIENCE
        while len(self.links) < number or not self.links[number - 1].calls:
            assert time.monotonic() < give_up
            time.sleep(0.001)
        return self.links[number - 1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    dispatcher = Dispatcher("bench", 3, 1.0)
    bench = Bench(dispatcher)
    yield bench
    bench.endpoint.close(0.0)
    bench.endpoint.join(PATIENCE)
    dispatcher.loop.close()


def test_a_process_is_ready_when_it_says_so(bench: Bench) -> None:
    assert bench.state is ProcessState.STARTING
    bench.endpoint.spawn()
    assert not bench.endpoint.ready

    bench.endpoint.received({"op": "ready"}, bench.links[-1])

    assert bench.endpoint.ready
    bench.endpoint.wait_ready(time.monotonic() + PATIENCE)


def test_a_process_that_cannot_be_reached_cannot_be_started(bench: Bench) -> None:
    bench.broken = True

    with pytest.raises(StartupError, match="slot 0: nothing answers"):
        bench.endpoint.spawn()


def test_a_process_that_dies_while_it_starts_is_not_replaced(bench: Bench) -> None:
    bench.endpoint.spawn()

    bench.endpoint.died("it died", bench.links[-1])

    with pytest.raises(StartupError, match="slot 0: it died"):
        bench.endpoint.wait_ready(time.monotonic() + PATIENCE)
    assert len(bench.links) == 1


def test_after_so_many_deaths_in_a_row_it_is_out_of_service(bench: Bench) -> None:
    bench.start()

    for number in range(MAX_DEATHS):
        assert len(bench.links) == number + 1
        bench.die()

    assert bench.state is ProcessState.GONE
    assert bench.endpoint.gone is not None
    assert "the last of 3 deaths in a row" in bench.endpoint.gone.message


def test_the_death_of_a_condemned_process_does_not_count(bench: Bench) -> None:
    bench.start()

    for _ in range(MAX_DEATHS + 1):
        assert bench.endpoint._condemn() is bench.links[-1]
        assert bench.state is ProcessState.CONDEMNED
        bench.die()

    assert bench.endpoint.ready


@pytest.mark.parametrize("is_ready", [False, True])
def test_the_late_death_of_a_process_that_was_given_up_is_not_its_successors(bench: Bench, is_ready: bool) -> None:
    bench.start()
    bench.endpoint.died("it died", bench.links[0])
    refuses = bench.wait_for_start(2)
    bench.endpoint.received({"op": "failed", "failure": TaskFailure("Refused", "no slot").to_plain()}, refuses)
    next_one = bench.wait_for_start(3)
    assert refuses.calls == ["start", "kill 0"]

    if is_ready:
        bench.endpoint.received({"op": "ready"}, next_one)
    bench.endpoint.died("it died", refuses)
    bench.endpoint.received({"op": "ready"}, refuses)
    assert bench.endpoint.ready is is_ready
    bench.endpoint.received({"op": "ready"}, next_one)

    bench.endpoint.join(PATIENCE)
    assert bench.endpoint.ready
    assert len(bench.links) == 3
    assert next_one.calls == ["start"]


@pytest.mark.parametrize("started", [False, True])
def test_what_is_closed_stays_closed(bench: Bench, started: bool) -> None:
    if started:
        bench.start()
    else:
        bench.endpoint.spawn()

    bench.endpoint.close(2.0)
    bench.endpoint.received({"op": "ready"}, bench.links[-1])
    bench.endpoint.died("it died", bench.links[-1])

    assert bench.state is ProcessState.CLOSED
    assert [link.calls for link in bench.links] == [["start", "close 2"]]
    with pytest.raises(StartupError, match="not wanted any more"):
        bench.endpoint.spawn()
