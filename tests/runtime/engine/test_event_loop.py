"""Which thread polls while several wait, while timers run, while the loop closes, and when SIGINT comes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes import PATIENCE

from pytest_aorta.runtime.engine.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop("test")
    yield made
    made.close()


class Bell:
    """A descriptor that a loop watches: every ring is one call."""

    def __init__(self, loop: EventLoop, heard: Callable[[], None]) -> None:
        self.loop = loop
        self.heard = heard
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        loop.watch(self.ours.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            self.ours.recv(1)
        except BlockingIOError:
            return
        self.heard()

    def ring(self) -> None:
        self.theirs.send(b"x")

    def close(self) -> None:
        self.loop.unwatch(self.ours.fileno())
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def bell(loop: EventLoop) -> Iterator[Bell]:
    made = Bell(loop, lambda: None)
    yield made
    made.close()


def test_a_single_waiting_thread_polls_itself(loop: EventLoop, bell: Bell) -> None:
    done, heard_on = threading.Event(), []

    def heard() -> None:
        heard_on.append(threading.get_ident())
        done.set()

    bell.heard = heard
    threading.Timer(0.05, bell.ring).start()

    assert loop.run_until(done, PATIENCE)
    assert heard_on == [threading.get_ident()]


def test_the_loops_thread_polls_while_no_other_does(loop: EventLoop, bell: Bell) -> None:
    for _ in range(3):
        visited, done = threading.Event(), threading.Event()
        bell.heard = visited.set
        threading.Timer(0.02, bell.ring).start()
        assert loop.run_until(visited, PATIENCE)
        bell.heard = done.set
        bell.ring()
        assert done.wait(PATIENCE)


def test_the_thread_comes_back_after_a_long_visit(loop: EventLoop, bell: Bell) -> None:
    assert not loop.run_until(threading.Event(), 0.1)

    done = threading.Event()
    bell.heard = done.set
    bell.ring()

    assert done.wait(PATIENCE)


def test_several_waiting_threads_each_get_their_event(loop: EventLoop) -> None:
    lost: list[int] = []

    def work(number: int) -> None:
        done = threading.Event()
        bell = Bell(loop, done.set)
        for _ in range(200):
            done.clear()
            bell.ring()
            if not loop.run_until(done, PATIENCE):
                lost.append(number)
        bell.close()

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert lost == []


def test_the_polling_thread_sees_an_event_that_no_callback_sets(loop: EventLoop, bell: Bell) -> None:
    done = threading.Event()

    def elsewhere() -> None:
        time.sleep(0.05)
        done.set()
        loop.notify()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    assert loop.run_until(done, PATIENCE)
    thread.join()


def test_waiting_within_a_callback_calls_the_others(loop: EventLoop, bell: Bell) -> None:
    inner, outer = threading.Event(), threading.Event()
    served: list[bool] = []

    def wait_inside() -> None:
        second.ring()
        served.append(loop.run_until(inner, PATIENCE))
        outer.set()

    second = Bell(loop, inner.set)
    bell.heard = wait_inside
    bell.ring()

    assert loop.run_until(outer, PATIENCE)
    assert served == [True]
    second.close()


def test_timers_run_in_their_order_during_a_visit_and_without_one(loop: EventLoop, bell: Bell) -> None:
    for visit in (True, False):
        order, done = [], threading.Event()
        now = time.monotonic()
        loop.call_at(now + 0.03, done.set)
        loop.call_at(now + 0.02, lambda: order.append("late"))  # noqa: B023
        loop.call_at(now + 0.01, lambda: order.append("early"))  # noqa: B023
        loop.call_at(now + 0.015, lambda: order.append("never")).cancel()  # noqa: B023

        assert loop.run_until(done, PATIENCE) if visit else done.wait(PATIENCE)
        assert order == ["early", "late"]


def test_cancelled_timers_do_not_pile_up(loop: EventLoop, bell: Bell) -> None:
    done = threading.Event()
    last = loop.call_at(time.monotonic() + 3600, lambda: None)
    for _ in range(5000):
        loop.call_at(time.monotonic() + 3600, lambda: None).cancel()
    loop.call_at(time.monotonic() + 0.05, done.set)

    assert len(loop._poller._timers) < 1000
    assert last in [timer for _, _, timer in loop._poller._timers]
    assert loop.run_until(done, PATIENCE)


def test_a_timer_of_another_thread_reaches_the_polling_thread(loop: EventLoop, bell: Bell) -> None:
    done = threading.Event()
    thread = threading.Timer(0.05, lambda: loop.call_at(time.monotonic() + 0.01, done.set))
    thread.start()

    assert loop.run_until(done, PATIENCE)


def test_a_visit_ends_in_time(loop: EventLoop, bell: Bell) -> None:
    assert not loop.run_until(threading.Event(), 0.01)
    assert not loop.run_until(threading.Event(), 0.0)


def test_a_callback_that_raises_stops_nothing(loop: EventLoop, bell: Bell, capfd: pytest.CaptureFixture[str]) -> None:
    done = threading.Event()

    def trouble() -> None:
        bell.heard = done.set
        bell.ring()
        raise RuntimeError("trouble of a callback")

    bell.heard = trouble
    bell.ring()

    assert loop.run_until(done, PATIENCE)
    assert "trouble of a callback" in capfd.readouterr().err


@pytest.mark.parametrize("threads", [1, 3])
def test_closing_ends_all_waits_whichever_thread_polls(threads: int) -> None:
    loop = EventLoop("test")
    bell = Bell(loop, lambda: None)
    waiting = [
        threading.Thread(target=loop.run_until, args=(threading.Event(), None), daemon=True) for _ in range(threads)
    ]
    for thread in waiting:
        thread.start()
    time.sleep(0.05)

    loop.close()

    for thread in waiting:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in waiting)
    bell.close()


# Ctrl-C


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_comes_between_two_callbacks_and_not_within_one(loop: EventLoop, bell: Bell) -> None:
    finished: list[int] = []

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        finished.extend(range(10_000))

    bell.heard = interrupted
    threading.Timer(0.05, bell.ring).start()

    with pytest.raises(KeyboardInterrupt):
        loop.run_until(threading.Event(), PATIENCE)
    assert len(finished) == 10_000


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_waiting_at_once(loop: EventLoop, bell: Bell) -> None:
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        loop.run_until(threading.Event(), PATIENCE)
    done = threading.Event()
    bell.heard = done.set
    bell.ring()
    assert done.wait(PATIENCE)


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_gets_through(loop: EventLoop, bell: Bell) -> None:
    def stuck() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("not interrupted")

    bell.heard = stuck
    threading.Timer(0.05, bell.ring).start()

    with pytest.raises(KeyboardInterrupt):
        loop.run_until(threading.Event(), PATIENCE)
