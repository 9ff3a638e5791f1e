"""A signal always ends a wait of the main thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import islice

import pytest

from pytest_aorta.common.bounded_waits import PIECE, pieces, wait_bounded


@pytest.mark.parametrize(("timeout", "first"), [(0.0, [0.0]), (-1.0, [0.0]), (0.5, [0.5]), (None, [PIECE, PIECE])])
def test_no_piece_is_longer_than_a_signal_may_wait(timeout: float | None, first: list[float]) -> None:
    assert list(islice(pieces(timeout), 2)) == pytest.approx(first, abs=0.01)


def test_a_wait_ends_with_what_it_waits_for() -> None:
    done = threading.Event()
    assert not wait_bounded(done.wait, 0.0)
    done.set()
    assert wait_bounded(done.wait)
    assert wait_bounded(done.wait, 1e9)


def test_a_signal_that_is_handled_too_late_for_the_system_call_ends_the_wait() -> None:
    # A handler on the main thread cannot be placed between CPython's look at its signals and the system call. A wait
    # that has begun when the signal comes to another thread is the same: no system call of this one is interrupted.
    code = """
import signal, threading
from pytest_aorta.common.bounded_waits import wait_bounded

def interrupt_here():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore the signal
threading.Timer(0.3, interrupt_here).start()
try:
    wait_bounded(threading.Event().wait)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n"
