"""Tasks that run at the same time, and leave processes behind."""

from __future__ import annotations

from typing import Any

from support.nursery import Nursery, deadline, message_of

from pytest_aorta.runtime.zygote import Task, TaskEnd, Zygote

#: Leaves orphans behind as it is asked to, tells their pids, and runs until it is told to end, or ends at once.
SOURCE = """
    import os, signal, subprocess, sys, time
    open("imports", "a").write("x")

    def prepare(argument):
        return {"pid": os.getpid()}

    def orphan(how):
        read, write = os.pipe()
        if os.fork() == 0:
            if how != "tame":
                os.setsid()
            if how == "bare":
                sleeper = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
                os.write(write, str(sleeper.pid).encode())
            elif os.fork() == 0:
                if how != "tame":
                    os.setsid()
                if how == "tidy":
                    def tidy(*_):
                        time.sleep(0.3)
                        open("tidied", "w").close()
                        os._exit(0)
                    signal.signal(signal.SIGTERM, tidy)
                elif how == "stubborn":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(write, str(os.getpid()).encode())
                while True:
                    time.sleep(600)
            os._exit(0)
        os.wait()
        return int(os.read(read, 20))

    def run(payload, channel):
        if payload.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        channel.send({"value": [orphan(how) for how in payload.get("orphans", ())]})
        if payload.get("stays", True):
            channel.receive()
"""


def concurrent(nursery: Nursery, before: str = "") -> Zygote:
    zygote = nursery.start(before + SOURCE)
    zygote.wait_ready()
    return zygote


def begin(zygote: Zygote, **payload: Any) -> tuple[Task, list[int]]:
    """A task, and the orphans that it has made."""
    task = zygote.start_task(payload)
    return task, message_of(task)


def end_of(task: Task) -> TaskEnd:
    """How it ended."""
    while task.next_message(deadline()) is not None:
        pass
    task.close()
    assert task.ended is not None
    return task.ended


def let_go(task: Task) -> None:
    """Have it end by itself."""
    task.send({})
    assert end_of(task).returncode == 0
