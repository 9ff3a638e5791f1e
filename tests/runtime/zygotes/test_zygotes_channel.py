"""Messages between processes, and the search for processes: the small parts of the runtime."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support.processes import PATIENCE, is_gone, wait_until, wait_until_gone

from pytest_aorta.runtime import process_tree
from pytest_aorta.runtime.channel import Channel
from pytest_aorta.runtime.process_tree import VARIABLE, tagged_processes


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair()
    yield left, right
    left.close()
    right.close()


def test_messages_arrive_in_order_and_in_both_directions(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"n": 1})
    left.send({"n": float("inf"), "text": "\udcff\u2028"})
    right.send({"back": None})

    assert right.receive() == {"n": 1}
    assert right.receive() == {"n": float("inf"), "text": "\udcff\u2028"}
    assert left.receive() == {"back": None}


def test_messages_of_any_size_arrive_whole(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    sizes = [0, 65_000, *range(65_520, 65_545), 131_071, 3_000_000]

    def send() -> None:
        for size in sizes:
            left.send({"text": "x" * size})

    thread = threading.Thread(target=send)
    thread.start()

    messages = [right.receive() for _ in sizes]

    thread.join()
    assert [len(message["text"]) for message in messages if message is not None] == sizes


def test_who_does_not_wait_hears_of_a_message_when_all_of_it_is_there(ends: tuple[Channel, Channel]) -> None:
    left, right = ends

    assert right.receive_part(socket.MSG_DONTWAIT) is None
    with socket.socket(fileno=os.dup(left.fileno())) as end:
        end.send(b'+{"n":')
        assert right.receive_part(socket.MSG_DONTWAIT) is None
        assert right.receive_part(socket.MSG_DONTWAIT) is None
        end.send(b".1}")
    assert right.receive_part(socket.MSG_DONTWAIT) == {"n": 1}


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


def test_a_descriptor_is_handed_over_and_not_inherited_further(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    read, write = os.pipe()
    left.send_fd(write)
    os.close(write)

    received = right.receive_fd()

    assert received is not None
    assert not os.get_inheritable(received)
    os.write(received, b"x")
    os.close(received)
    assert os.read(read, 10) == b"x"
    os.close(read)


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


def test_hanging_up_ends_the_waits_on_both_sides(ends: tuple[Channel, Channel]) -> None:
    left, _ = ends
    heard: list[object] = []
    threads = [threading.Thread(target=lambda end=end: heard.append(end.receive())) for end in ends]
    for thread in threads:
        thread.start()

    left.hang_up()

    for thread in threads:
        thread.join(PATIENCE)
    assert heard == [None, None]
    left.close()
    left.hang_up()


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


# Processes.

_FAMILY = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process that has a child in another session."""
    with subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdout=subprocess.PIPE, env={**os.environ, VARIABLE: "a=b"}
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent.pid, child
        for pid in (parent.pid, child):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_tree_has_all_descendants_whatever_their_session(family: tuple[int, int]) -> None:
    assert process_tree.tree([family[0]]) == list(family)
    assert set(process_tree.tree([os.getpid()])) >= {os.getpid(), *family}


def test_processes_are_found_by_a_variable_that_they_were_started_with(family: tuple[int, int]) -> None:
    wait_until(lambda: len(tagged_processes("a=b")) == 2, "both processes are there")

    assert set(tagged_processes("a=b")) == set(family)
    assert tagged_processes("a", "b") == []


def test_a_handler_is_seen_from_outside() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert process_tree.catches(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not process_tree.catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not process_tree.catches(2**22 + 1, signal.SIGUSR2)


def test_ending_goes_on_while_new_members_appear() -> None:
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    shown = iter([processes[:1], processes[:2], processes])

    def members() -> list[int]:
        visible = next(shown, processes)
        return [process.pid for process in visible if process.poll() is None]

    assert process_tree.end_all(members, lambda: None, grace=0) == []
    wait_until_gone(process.pid for process in processes)
    assert [process.wait() for process in processes] == [-signal.SIGKILL] * 3


def test_what_cannot_be_ended_is_given_up_and_named() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert process_tree.end_all(lambda: [process.pid], lambda: None, grace=0, limit=0.05) == [process.pid]
