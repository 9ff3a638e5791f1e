"""Waiting, and a look at processes: those of a test carry a mark in their environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import psutil

#: Every process that a test starts, directly or not, has this variable in its environment.
MARK = "AORTA_TEST"

#: Longest time in seconds that a test waits for anything, for the case that it hangs. No test waits for it to pass.
PATIENCE = 180.0

T = TypeVar("T")


def free_port() -> int:
    """A port of TCP that no program of this host has, on any of its addresses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str = "what it waits for", seconds: float = PATIENCE) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"after {seconds:g} s, still not: {what}"
        time.sleep(0.01)


def wait_for(probe: Callable[[], T | None], what: str) -> T:
    """The first thing that ``probe`` returns which is not None."""
    found: list[T] = []

    def is_there() -> bool:
        if (thing := probe()) is not None:
            found.append(thing)
        return bool(found)

    wait_until(is_there, what)
    return found[0]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; as a zombie it has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pids: Iterable[int]) -> None:
    pids = list(pids)
    wait_until(lambda: all(map(is_gone, pids)), f"the end of {pids}")


def marked(mark: str) -> list[psutil.Process]:
    """Processes with this mark that still run, without the one that asks."""
    found = []
    entry = f"{MARK}={mark}".encode()
    for pid in psutil.pids():
        try:
            # Nearly every test looks: a ``psutil.Process`` of each process would take as long as some of them.
            if pid == os.getpid() or entry not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                continue
            # Zombies do not run; in a container without an init process, they are never reaped.
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)


def reset_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def outcome_of(script: str) -> str:
    """What a script prints, in a process of its own: one that forks, or starts threads of libraries."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
