"""The life of a task: what it gets, what it can tell, how it ends, and that no other task sees anything of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.nursery import Nursery, finish, message_of
from support.processes import wait_until


def test_a_task_gets_its_payload_and_tells_what_it_wants(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        def run(payload, send):
            send({"value": payload})
            send({"value": [payload, None]})
        """
    )

    done = nursery.run(zygote, {"n": 1, "é": ["\udcff", 1e300]})

    assert done.told == [{"n": 1, "é": ["\udcff", 1e300]}, [{"n": 1, "é": ["\udcff", 1e300]}, None]]
    assert done.messages[-1] == {"type": "done"}
    assert done.returncode == 0
    assert done.ended["swept"] == []
    assert done.ended["max_rss_bytes"] > 1_000_000


def test_output_of_every_layer_lands_in_the_task_s_own_logs(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import ctypes, os, subprocess, sys
        def run(payload, send):
            print("python", payload)
            print("unprintable \\udcff")
            os.write(1, b"descriptor\\n")
            subprocess.run(["echo", "subprocess"])
            ctypes.CDLL(None).write(1, b"native\\n", 7)
            print("error", payload, file=sys.stderr)
            os.write(2, b"raw error\\n")
        """
    )

    first, second = nursery.run(zygote, 1), nursery.run(zygote, 2)

    assert first.stdout == "python 1\nunprintable \\udcff\ndescriptor\nsubprocess\nnative\n"
    assert first.stderr == "error 1\nraw error\n"
    assert second.stdout.startswith("python 2\n")
    assert zygote.output() == ""


def test_many_tasks_one_after_the_other_leave_no_descriptor_and_no_zombie(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os
        def run(payload, send):
            zygote = os.getppid()
            with open(f"/proc/{zygote}/task/{zygote}/children") as file:
                children = file.read().split()
            send({"value": [len(children), len(os.listdir(f"/proc/{zygote}/fd"))]})
        """
    )
    nursery.run(zygote)
    own = len(os.listdir("/proc/self/fd"))

    told = [nursery.run(zygote).told[0] for _ in range(30)]

    # The task and the next one's child; the zygote may be about to make that one.
    assert max(children for children, _ in told) <= 2
    files = [files for _, files in told]
    assert max(files) - min(files) <= 3
    assert len(os.listdir("/proc/self/fd")) <= own + 1


# Messages to and from a task that runs.


def test_a_task_can_be_spoken_to(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os
        def run(payload, channel):
            while (message := channel.receive()) is not None and message["op"] != "close":
                if message["op"] == "file":
                    fd = channel.receive_fd()
                    message = {"text": os.read(fd, 100).decode(), "inheritable": os.get_inheritable(fd)}
                channel.send({"value": message})
        """
    )
    task = nursery.submit(zygote)
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


# The end of one that does not want to end.


def test_a_task_may_end_itself_on_sigterm_and_say_so(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os, signal, time
        def run(payload, send):
            def leave(*_):
                send({"value": "saved"})
                os._exit(9)
            signal.signal(signal.SIGTERM, leave)
            send({"value": "ready"})
            while True:
                time.sleep(100)
        """
    )
    task = nursery.submit(zygote)
    assert message_of(task) == "ready"

    task.kill(grace=600)

    done = finish(task)
    assert done.told == ["saved"]
    assert done.returncode == 9


def test_the_stacks_of_all_threads_are_taken_also_while_a_native_call_holds_the_gil(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import ctypes, threading, time
        def wait_in_a_thread(ready):
            ready.set()
            time.sleep(600)
        def hold_the_gil(send):
            send({"value": "ready"})
            while True:
                ctypes.PyDLL(None).sleep(100)
        def run(payload, send):
            ready = threading.Event()
            threading.Thread(target=wait_in_a_thread, args=[ready], daemon=True).start()
            ready.wait()
            hold_the_gil(send)
        """
    )
    task = nursery.submit(zygote)
    message_of(task)
    state = Path(f"/proc/{task.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "S", "the native call")

    task.kill(grace=0.0)

    done = finish(task)
    assert done.returncode == -signal.SIGKILL
    assert all(f"in {name}" in done.stacks for name in ("wait_in_a_thread", "hold_the_gil"))
    assert done.stacks.count("most recent call first") == 2
