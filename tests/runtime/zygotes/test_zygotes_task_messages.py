"""Messages between a task and the process that started it."""

from __future__ import annotations

import os
import signal

import pytest
from support.nursery import Nursery, finish, message_of
from support.processes import wait_until

DIALOGUE = """
    import os
    def run(payload, channel):
        while (message := channel.receive()) is not None and message["op"] != "close":
            if message["op"] == "file":
                fd = channel.receive_fd()
                message = {"text": os.read(fd, 100).decode(), "inheritable": os.get_inheritable(fd)}
            channel.send({"value": message})
"""


def test_a_task_can_be_spoken_to(nursery: Nursery) -> None:
    task = nursery.submit(nursery.start(DIALOGUE))
    read, write = os.pipe()
    os.write(write, b"handed over")

    for number in range(100):
        task.send({"op": "echo", "number": number})
        assert message_of(task) == {"op": "echo", "number": number}
    task.send({"op": "file"})
    task.send_fd(read)
    assert message_of(task) == {"text": "handed over", "inheritable": False}
    task.send({"op": "close"})

    assert finish(task).returncode == 0
    with pytest.raises(OSError, match="no longer listens"):
        task.send({})
    os.close(read)
    os.close(write)


def test_a_message_that_is_never_sent_to_its_end_keeps_no_reader_waiting(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os, socket, time
        def run(payload, channel):
            channel.send({"value": 1})
            socket.socket(fileno=os.dup(channel.fileno())).send(b'+{"value": ')
            open("begun", "w").close()
            time.sleep(600)
        """
    )
    task = nursery.submit(zygote)
    assert message_of(task) == 1
    wait_until((nursery.path / "begun").exists, "a part of a message")

    with pytest.raises(TimeoutError):
        task.next_message(0.0)
    task.kill(grace=0)

    assert finish(task).returncode == -signal.SIGKILL
