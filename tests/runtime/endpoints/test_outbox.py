"""What waits for a process that does not read: it arrives whole and in order, also when no descriptor is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from support.processes import no_more_files

from pytest_aorta.runtime.channel import Channel, Message
from pytest_aorta.runtime.endpoints.outbox import Outbox
from pytest_aorta.runtime.engine.event_loop import EventLoop

#: Seconds that a test waits for a thread; nothing is measured.
PATIENCE = 10.0


class Bench:
    """An outbox, and the other end of its channel."""

    def __init__(self) -> None:
        self.loop = EventLoop("bench")
        ours, self.theirs = Channel.pair()
        self.channel = ours
        self.outbox = Outbox(ours, self.loop)
        self.loop.call_at(0.0, lambda: None)  # which starts its thread

    def fill(self) -> int:
        """Send until some of it waits; how many messages that were."""
        number = 0
        while not self.outbox.waiting:
            self.outbox.send_text('{"fill": 1}')
            number += 1
        return number

    def read(self, number: int) -> list[Message | None]:
        """So many messages."""
        return [self.theirs.receive() for _ in range(number)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    late = threading.Timer(PATIENCE, bench.theirs.hang_up)  # so that a message that is missing is no hang
    late.start()
    yield bench
    late.cancel()
    bench.outbox.close()
    bench.channel.close()
    bench.theirs.close()
    bench.loop.close()


def test_what_waits_arrives_in_order_and_descriptors_are_closed_once(bench: Bench) -> None:
    number = bench.fill()
    before = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as file:
        bench.outbox.send_fd(file.fileno())
    bench.outbox.send_text('{"last": 1}')

    assert bench.read(number) == [{"fill": 1}] * number
    got = bench.theirs.receive_fd()
    assert got is not None
    os.close(got)
    assert bench.read(1) == [{"last": 1}]
    bench.outbox.close()
    assert len(os.listdir("/proc/self/fd")) < before  # the one that was watched is closed, too


def test_a_descriptor_that_cannot_be_kept_is_missing_and_nothing_else_is(bench: Bench) -> None:
    number = bench.fill()
    with open(os.devnull) as file, no_more_files(), pytest.raises(OSError, match="Too many open files"):
        bench.outbox.send_fd(file.fileno())
    bench.outbox.send_text('{"last": 1}')

    assert bench.read(number) == [{"fill": 1}] * number
    assert bench.theirs.receive_fd() is None
    assert bench.read(1) == [{"last": 1}]


def test_what_waits_is_sent_although_the_socket_cannot_be_watched(bench: Bench) -> None:
    with no_more_files():
        number = bench.fill()
        bench.outbox.send_text('{"last": 1}')
        assert bench.read(number + 1)[-1] == {"last": 1}
