"""One workload for every way in which a trial can go; copied to where pytest runs. Needs nothing but Python."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any

#: Seconds; more than any test waits.
FOREVER = 1000


@dataclass
class Result:
    passed: bool
    failure_count: int = 0
    first_failure_iteration: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


def hang_with_the_gil_held() -> None:
    """A call into C that never gives the interpreter a chance, as a stuck kernel launch does not."""
    ctypes.PyDLL(None).sleep(FOREVER)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class _Base:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def setup(self) -> None:
        """Nothing to do."""

    def run(self) -> Any:
        return Result(passed=True)


class Passes(_Base):
    def cleanup(self) -> None:
        print("cleaned up")


class ReturnsFalse(_Base):
    def run(self) -> Any:
        return Result(passed=False, failure_count=2, first_failure_iteration=7)


class RaisesInRun(_Base):
    def run(self) -> Any:
        raise ValueError("loss is nan")


class SegfaultsInRun(_Base):
    def run(self) -> Any:
        segfault()


class VanishesInRun(_Base):
    def run(self) -> Any:
        os._exit(0)


class HangsInRun(_Base):
    timeout_sec = 1.5

    def run(self) -> Any:
        hang_with_the_gil_held()


class HangsPolitelyInRun(_Base):
    timeout_sec = 1.5

    def run(self) -> Any:
        time.sleep(FOREVER)


class RaisesInSetup(_Base):
    def setup(self) -> None:
        raise RuntimeError("out of memory")


class HangsInSetup(_Base):
    timeout_sec = 1.5

    def setup(self) -> None:
        hang_with_the_gil_held()


class RaisesInCleanup(_Base):
    def cleanup(self) -> None:
        raise OSError("device busy")


class FailsInRunAndCleanup(_Base):
    def run(self) -> Any:
        raise ValueError("loss is nan")

    def cleanup(self) -> None:
        raise OSError("device busy")


class LeavesThingsBehind(_Base):
    """A thread that never ends, and a process that has left the trial's session."""

    def run(self) -> Any:
        threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True).start()
        subprocess.Popen(["sleep", str(FOREVER)], start_new_session=True)
        return Result(passed=True)


class Garbles(_Base):
    """Writes nonsense to whatever its process may be listened to through."""

    def run(self) -> Any:
        for fd in range(3, 256):
            try:
                end = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            with end:
                if end.type == socket.SOCK_SEQPACKET:
                    for text in (b'{"type": "nonsense"}', b'{"type": "end", "phase": 3}', b'{"a": 1}'):
                        end.send(text)
        return Result(passed=True)
