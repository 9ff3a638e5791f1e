"""Unplanned deaths: of the zygote, of the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from support.nursery import Nursery, nursery_at
from support.processes import MARK, wait_until

from pytest_aorta.runtime.zygote import Zygote

ECHO = """
    import os
    def prepare(argument):
        return {"pid": os.getpid()}
    def run(payload, send):
        send({"value": payload})
"""


#: Where parents find the package ``support``.
TESTS = str(Path(__file__).parents[2])


# The zygote.


def test_the_thread_that_has_started_a_zygote_may_end_before_it(nursery: Nursery) -> None:
    """The kernel counts a thread's end as a parent's."""
    started: list[Zygote] = []

    def start() -> None:
        started.append(nursery.start(ECHO))
        started[0].wait_ready()

    for number in range(5):
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert nursery.run(started[0], number).told == [number]
        started.pop().close()


# The parent.

_PARENT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.nursery import Nursery
nursery = Nursery(Path({folder!r}))
{body}
print("ready", flush=True)
time.sleep(600)
"""

_TASK = '''
zygote = nursery.start("""
    import os, signal, subprocess, time
    def run(payload, send):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            send({"value": "forked"})
            time.sleep(600)
        send({"value": "running"})
        time.sleep(600)
""")
task = nursery.submit(zygote)
task.next_message(None), task.next_message(None)
'''

PARENTS = {
    "while a zygote imports": '''
nursery.start("""
    import time
    open("importing", "w").close()
    time.sleep(600)
""")
while not os.path.exists(nursery.path / "importing"):
    time.sleep(0.01)
''',
    "during a task that has children": _TASK,
    "during the grace of a kill": _TASK + "task.kill(grace=600)\ntime.sleep(0.5)",
    "during a task in a fresh interpreter": '''
zygote = nursery.start("""
    import time
    def run(payload, send):
        time.sleep(600)
""", fresh=True)
task = nursery.submit(zygote)
task.next_message(None)
''',
}


@pytest.mark.parametrize("when", PARENTS)
def test_nothing_survives_a_parent_that_is_killed(tmp_path: Path, when: str) -> None:
    script = _PARENT.format(tests=TESTS, folder=str(tmp_path), body=textwrap.dedent(PARENTS[when]))
    with nursery_at(tmp_path) as nursery:
        with subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, MARK: nursery.mark},
            stdout=subprocess.PIPE,
            text=True,
        ) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            started = nursery.alive()
            assert len(started) >= 2
            parent.kill()

        wait_until(lambda: nursery.alive() == [], "the end of everything that the parent had started")


# Closing.


def test_closing_does_not_wait_for_an_import(nursery: Nursery) -> None:
    zygote = nursery.start(
        """
        import subprocess, time
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("importing", "w").close()
        time.sleep(600)
        """
    )
    wait_until((nursery.path / "importing").exists, "the import")

    zygote.close()

    assert not zygote.alive()
    assert nursery.alive() == []


def test_a_zygote_that_is_stopped_is_closed_all_the_same(nursery: Nursery) -> None:
    zygote = nursery.start(ECHO)
    nursery.run(zygote)
    os.kill(zygote.info["pid"], signal.SIGSTOP)

    zygote.close(grace=0.1)

    assert not zygote.alive()
    assert nursery.alive() == []
