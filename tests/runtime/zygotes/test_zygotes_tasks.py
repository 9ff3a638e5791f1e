"""The life of a task: what it gets, what it can tell, and that no other task sees anything of it."""

from __future__ import annotations

import os
import signal

from support.nursery import Nursery, deadline, message_of
from support.processes import wait_until

# What a task gets, and what it tells.


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


# How a task ends.


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


# What is settled for one task.


def test_a_task_runs_on_the_cores_that_it_is_given_and_no_other_task_does(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import os
        def run(payload, send):
            send({"value": sorted(os.sched_getaffinity(0))})
        """
    )
    cores = sorted(os.sched_getaffinity(0))

    assert nursery.run(zygote, cores=cores[-1:]).told == [cores[-1:]]
    assert nursery.run(zygote).told == [cores]


def test_a_task_without_logs_of_its_own_writes_to_the_zygote_s(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import time
        def run(payload, send):
            print("into the zygote's log")
            send({"value": 1})
            time.sleep(600)
        """
    )
    zygote.wait_ready()
    before = {path.name for path in nursery.path.iterdir()}
    task = zygote.start_task(None)
    assert message_of(task) == 1

    task.kill(grace=600)

    while task.next_message(deadline()) is not None:
        pass
    assert task.ended is not None
    assert task.ended.returncode == -signal.SIGTERM
    wait_until(lambda: zygote.output() == "into the zygote's log\n", "the output")
    assert {path.name for path in nursery.path.iterdir()} - {"__pycache__"} == before - {"__pycache__"}
