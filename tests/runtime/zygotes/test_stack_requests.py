"""Asking processes for their stacks does not change where the others are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from support.processes import wait_until

from pytest_aorta.runtime.process_tree import STACK_SIGNAL, request_stacks

PREPARE = """
import ctypes, faulthandler, os, sys, time
faulthandler.register(int(sys.argv[1]), file=open(sys.argv[2], "w"), all_threads=True)
os.write({announces}, b"x")
"""

#: Blocked in C until a signal wakes it, which then lets the other process go on.
SLEEPER = """
def blocked():
    ctypes.CDLL(None).pause()

blocked()
os.write(1, b"x")
time.sleep(1000)
"""

WAITER = """
def waiting():
    os.read(0, 1)

def moved():
    time.sleep(1000)

waiting()
moved()
"""


def start(code: str, dump: Path, stdin: int | None = None, stdout: int | None = None) -> subprocess.Popen[bytes]:
    announced, announces = os.pipe()
    code = PREPARE.format(announces=announces) + code
    words = [sys.executable, "-c", code, str(int(STACK_SIGNAL)), str(dump)]
    process = subprocess.Popen(words, pass_fds=[announces], stdin=stdin, stdout=stdout)
    os.close(announces)
    assert os.read(announced, 1) == b"x"
    os.close(announced)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
    return process


def test_a_process_that_the_signal_wakes_moves_no_other_before_its_dump(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    sleeper = start(SLEEPER, tmp_path / "sleeper", stdout=writes)
    waiter = start(WAITER, tmp_path / "waiter", stdin=reads)
    try:
        request_stacks([sleeper.pid, waiter.pid])
        wait_until(lambda: "in blocked" in (tmp_path / "sleeper").read_text())
        wait_until(lambda: "in waiting" in (tmp_path / "waiter").read_text())
        assert "in moved" not in (tmp_path / "waiter").read_text()
    finally:
        for process in (sleeper, waiter):
            process.kill()
            process.wait()
        os.close(reads)
        os.close(writes)


def test_a_stopped_process_stays_stopped_and_gives_no_stack(tmp_path: Path) -> None:
    process = start("time.sleep(1000)", tmp_path / "stopped")
    try:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        request_stacks([process.pid])
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        assert (tmp_path / "stopped").read_text() == ""
    finally:
        process.kill()
        process.wait()
