"""Asking processes for their stacks, which does not change where the others are; and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from support.processes import wait_until, wait_until_gone

from pytest_aorta.runtime.process_tree import STACK_SIGNAL, catches, end_all, request_stacks

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


def test_a_process_that_the_signal_wakes_moves_no_other_and_one_that_is_stopped_stays_so(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    sleeper = start(SLEEPER, tmp_path / "sleeper", stdout=writes)
    waiter = start(WAITER, tmp_path / "waiter", stdin=reads)
    stopped = start("time.sleep(1000)", tmp_path / "stopped")
    deaf = subprocess.Popen(["sleep", "1000"])  # the signal would end it
    processes = (sleeper, waiter, stopped, deaf)
    try:
        stopped.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)

        request_stacks([process.pid for process in processes])

        wait_until(lambda: "in blocked" in (tmp_path / "sleeper").read_text())
        wait_until(lambda: "in waiting" in (tmp_path / "waiter").read_text())
        assert "in moved" not in (tmp_path / "waiter").read_text()
        assert psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED
        assert (tmp_path / "stopped").read_text() == ""
        assert deaf.poll() is None
        assert not catches(2**22 + 1, STACK_SIGNAL)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        os.close(reads)
        os.close(writes)


def test_ending_goes_on_while_new_members_appear() -> None:
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    shown = iter([processes[:1], processes[:2], processes])

    def members() -> list[int]:
        visible = next(shown, processes)
        return [process.pid for process in visible if process.poll() is None]

    assert end_all(members, lambda: None, grace=0) == []
    wait_until_gone(process.pid for process in processes)
    assert [process.wait() for process in processes] == [-signal.SIGKILL] * 3


def test_what_cannot_be_ended_is_given_up_and_named() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert end_all(lambda: [process.pid], lambda: None, grace=0, limit=0.05) == [process.pid]
