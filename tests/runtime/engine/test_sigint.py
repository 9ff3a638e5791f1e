"""SIGINT is deferred while the runtime changes something, and the handlers of others are left as they were."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.processes import PATIENCE, reset_signals

from pytest_aorta.common.interrupts import SIGINT_HELD


@pytest.mark.usefixtures("interruptible")
def test_the_handler_is_put_back_and_another_one_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with SIGINT_HELD, SIGINT_HELD:
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is not before
            with pytest.raises(KeyboardInterrupt), SIGINT_HELD.released():
                pass
        assert signal.getsignal(signal.SIGINT) is before

        with SIGINT_HELD:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


_INTERRUPTED_OFTEN = """
import os, random, signal, sys, threading
from pytest_aorta.runtime import Worker

def nothing(args):
    pass

def many(orch, args, config):
    refs = [orch.submit_sub(handle) for _ in range(200)]
    refs.append(orch.submit_sub(handle, after=refs[:3]))
    for ref in refs[::50]:
        ref.wait()

worker = Worker(3, num_sub_workers=2)
handle = worker.register(nothing)
worker.init()
armed = threading.Semaphore(0)

def interrupt():
    while True:
        armed.acquire()
        threading.Event().wait(random.random() * 0.004)
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
count = 0
for _ in range(200):
    try:
        armed.release()
        while True:
            worker.run(many)
    except KeyboardInterrupt:
        count += 1
worker.run(many)
worker.close()
print(count, worker.unfinished)
"""


@pytest.mark.slow
def test_a_worker_that_is_interrupted_often_loses_no_task_and_closes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_OFTEN],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        preexec_fn=reset_signals,
    )

    assert (done.stdout, done.stderr) == ("200 0\n", "")
