"""Who polls for a thread that waits: it does so itself for some milliseconds, then the loop's own thread does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_aorta.runtime.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop("tried")
    yield loop
    loop.close()


@pytest.fixture
def callback(loop: EventLoop) -> Callable[[], list[threading.Thread]]:
    """Has a callback of the loop run; the threads in which it has."""
    reader, writer = os.pipe()
    ran_in: list[threading.Thread] = []

    def read() -> None:
        os.read(reader, 1)
        ran_in.append(threading.current_thread())

    loop.watch(reader, read)

    def send() -> list[threading.Thread]:
        os.write(writer, b"x")
        return ran_in

    return send


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.001)


def test_callbacks_run_in_a_thread_that_waits_and_in_the_loops_own_once_it_has_given_up(
    loop: EventLoop, callback: Callable[[], list[threading.Thread]]
) -> None:
    ran_in = callback()
    until(lambda: ran_in)
    assert ran_in.pop().name == "tried"
    while threading.current_thread() not in ran_in:  # the thread of the loop may be quicker
        ran_in.clear()
        callback()
        loop.poll_until(lambda: bool(ran_in))
        until(lambda: ran_in)
    ran_in.clear()
    loop.poll_until(lambda: False)
    callback()
    until(lambda: ran_in)
    assert ran_in[0].name == "tried"


def test_threads_that_wait_at_once_and_the_end_of_the_loop_disturb_nobody(
    loop: EventLoop, callback: Callable[[], list[threading.Thread]]
) -> None:
    ended = threading.Event()

    def wait() -> None:
        while not ended.is_set():
            loop.poll_until(lambda: False)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        ran_in = callback()
    until(lambda: len(ran_in) == 100)
    loop.close()
    ended.set()
    for thread in threads:
        thread.join()
