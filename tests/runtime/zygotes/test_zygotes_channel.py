"""Messages between processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from support.processes import PATIENCE

from pytest_aorta.runtime.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair()
    yield left, right
    left.close()
    right.close()


def test_messages_of_any_size_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    texts = ["\udcff\u2028", *("x" * size for size in (0, 65_000, *range(65_520, 65_545), 131_071, 3_000_000))]

    def send() -> None:
        for text in texts:
            left.send({"n": float("inf"), "text": text})

    thread = threading.Thread(target=send)
    thread.start()

    messages = [right.receive() for _ in texts]

    thread.join()
    assert messages == [{"n": float("inf"), "text": text} for text in texts]


@pytest.mark.parametrize("data", [b"[]", b"7", b"null", b"{", b"\xff", b"[" * 60_000, b'{"n":' * 10_000, b".x", b"+"])
def test_what_makes_no_sense_is_the_end(ends: tuple[Channel, Channel], data: bytes) -> None:
    left, right = ends
    with socket.socket(fileno=os.dup(left.fileno())) as end:
        end.send(data)
    left.close()

    assert right.receive() is None


def test_what_was_sent_before_the_end_is_read_also_if_the_rest_was_not_read(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"n": 1})
    right.send({"never": "read"})
    left.close()

    assert right.receive() == {"n": 1}
    assert right.receive() is None


def test_descriptors_follow_their_message_whichever_thread_sends(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    read, write = os.pipe()

    def send(number: int) -> None:
        for _ in range(50):
            left.send({"n": number, "padding": "x" * 20_000}, [write] * number)

    threads = [threading.Thread(target=send, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()

    for _ in range(200):
        message = right.receive()
        assert message is not None
        for _ in range(message["n"]):
            fd = right.receive_fd()
            assert fd is not None
            os.close(fd)
    for thread in threads:
        thread.join()
    assert not right.poll()
    os.close(read)
    os.close(write)


def test_a_fork_can_send_although_a_thread_was_sending(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with left._sending:
            held.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
    pid = os.fork()
    if pid == 0:
        left.send({"from": "fork"})
        os._exit(0)

    arrived = right.poll(PATIENCE)

    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    done.set()
    thread.join()
    assert arrived
    assert right.receive() == {"from": "fork"}
