"""Ending tasks that do not want to end, and whatever they leave behind."""

from __future__ import annotations

import signal
from pathlib import Path

from support.nursery import Nursery, finish, message_of
from support.processes import is_gone, wait_until

#: Seconds that a task may take to end after SIGTERM where it should end by it: never waited for.
LONG = 600.0


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

    task.kill(grace=LONG)

    done = finish(task)
    assert done.told == ["saved"]
    assert done.returncode == 9


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_stacks_are_taken_also_while_a_native_call_holds_the_gil(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import ctypes
        def hold_the_gil(send):
            send({"value": "ready"})
            while True:
                ctypes.PyDLL(None).sleep(100)
        def run(payload, send):
            hold_the_gil(send)
        """
    )
    task = nursery.submit(zygote)
    message_of(task)
    wait_until(lambda: _state(task.pid) == "S", "the native call")

    task.kill(grace=0.0)

    done = finish(task)
    assert done.returncode == -signal.SIGKILL
    assert "in hold_the_gil" in done.stacks
    assert done.stacks.count("most recent call first") == 1


def test_the_stacks_of_all_threads_and_all_python_processes_of_a_task_are_taken(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os, subprocess, threading, time
        def wait_in_a_thread(ready):
            ready.set()
            time.sleep(100)
        def wait_in_a_fork(send):
            send({"value": os.getpid()})
            time.sleep(100)
        def wait_in_main(send, value):
            send({"value": value})
            time.sleep(100)
        def run(payload, send):
            sleeper = subprocess.Popen(["sleep", "100"])
            if os.fork() == 0:
                wait_in_a_fork(send)
            ready = threading.Event()
            threading.Thread(target=wait_in_a_thread, args=[ready], daemon=True).start()
            ready.wait()
            wait_in_main(send, sleeper.pid)
        """
    )
    task = nursery.submit(zygote)
    others = [message_of(task), message_of(task)]

    task.kill(grace=LONG)

    done = finish(task)
    assert all(f"in {name}" in done.stacks for name in ("wait_in_a_thread", "wait_in_a_fork", "wait_in_main"))
    assert done.returncode == -signal.SIGTERM
    assert all(map(is_gone, others))
