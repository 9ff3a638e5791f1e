"""What tests of leases have in common: processes and threads that hold devices, or wait for them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_aorta.runtime.resources import leases
from pytest_aorta.runtime.resources.leases import Lease, LeaseCancelled, Leases
from support.processes import wait_until

#: Seconds after which a wait is given up as a hang; nothing is measured.
HANG = 60.0


def hung() -> Callable[[], bool]:
    """For ``cancelled``: true when something hangs."""
    give_up = time.monotonic() + HANG
    return lambda: time.monotonic() > give_up


def looks(times: int) -> Callable[[], bool]:
    """For ``cancelled``: true after so many looks at the devices."""
    left = iter(range(times))
    return lambda: next(left, None) is None


def take(pool: Leases, count: int) -> Lease:
    """Devices that have to be there sooner or later."""
    return pool.acquire(count, cancelled=hung())


def is_refused(pool: Leases, count: int) -> bool:
    try:
        pool.acquire(count, cancelled=looks(5)).release()
    except LeaseCancelled:
        return True
    return False


def waiting(folder: Path, device: int) -> None:
    """Return when a request for a pool that ends with this device waits."""
    wait_until(lambda: leases._is_locked(folder / f"turn-{device}.lock"), f"the turn of device {device}")


class Processes:
    """Python processes that import ``Leases``; their source knows ``folder`` and ``say`` and ends with its input."""

    HEAD = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from pytest_aorta.runtime.resources.leases import Leases\n"
        "folder = Path(sys.argv[1])\n"
        "def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, source: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", self.HEAD + source, str(self.folder), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process


@pytest.fixture
def processes(folder: Path) -> Iterator[Processes]:
    """They are killed at the end. The leases are in the ``folder`` of the test module."""
    processes = Processes(folder)
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=HANG)
    assert process.returncode == 0


@contextlib.contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(HANG)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
