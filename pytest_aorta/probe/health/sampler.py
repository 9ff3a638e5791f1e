"""The process that reads the health of a host once a second while trials run there, and says what changed in a trial.

One process serves every pytest process and xdist worker of a run on a host. The first of them that finds the run's
address free (an abstract socket, which the kernel frees when its owner dies) opens it and starts the process. A
connection is a trial: it begins with the connection, and ends with a question, which the process answers. Besides
these, each pytest process holds one connection open. When the last of these processes is gone, however it has ended,
so is this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_aorta.probe.health.host import KernelLog
from pytest_aorta.probe.health.model import Change, HealthChange, HealthReading
from pytest_aorta.probe.health.reading import PATIENCE, DeviceReader, read_all, start_process, vendors

#: Seconds from one reading to the next, and least seconds, for a trial that has failed.
_PERIOD, _SOONEST = 1.0, 0.1

#: Seconds that a trial that has passed waits for its answer, and one that has failed, for which a reading is taken.
_PASSED, _FAILED = 0.25, PATIENCE + 1.0

#: How often a sampler that dies is started again.
_STARTS = 3


class Sampler:
    """The side of a pytest process. Starts the sampler of a ``run`` on this host, or finds it; thread-safe."""

    def __init__(self, run: str) -> None:
        name = hashlib.sha256(f"{os.getuid()} {run or os.getpid()}".encode()).hexdigest()[:24]
        self._address = f"\0aorta-health-{name}"
        self._lock = threading.Lock()
        #: The connection that this process holds open, and whether something was answered there: it is ready.
        self._held: socket.socket | None = None
        self._is_ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._problem = ""

    def start(self) -> None:
        """See that it runs, without waiting for it. Never raises."""
        with self._lock:
            if self._held is not None and not self._has_gone():
                return
            try:
                self._held = self._connect() or self._open()
                self._is_ready = False
            except OSError as error:
                self._problem = f"no sampler: {error.strerror or error}"

    def _has_gone(self) -> bool:
        assert self._held is not None
        try:
            self._is_ready |= bool(greeting := self._held.recv(1, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not greeting

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._address)
        except OSError:
            connection.close()
            return None
        return connection

    def _open(self) -> socket.socket | None:
        if self._starts == _STARTS:
            self._problem = "the sampler has died"
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            try:
                listening.bind(self._address)
            except OSError:  # another process was faster
                time.sleep(0.01)
                return self._connect()
            listening.listen(128)
            connection = self._connect()
            self._starts += 1
            self._process = start_process(f"from {__name__} import main; main({listening.fileno()})", listening)
        return connection

    def begin(self) -> socket.socket | None:
        """A trial begins; what ``end`` needs to know of it."""
        self.start()
        return self._connect()

    def end(self, trial: socket.socket | None, devices: Sequence[int] | None, failed: bool) -> HealthChange:
        """What has changed since the trial began, of these devices or of all. Of a failed one, up to this moment."""
        self.start()
        if trial is None:
            return HealthChange(unreadable=self._problem or "the sampler has died")
        with trial:
            if not self._is_ready and not failed:
                return HealthChange(unreadable="the sampler had not started yet")
            try:
                trial.settimeout(_FAILED if failed else _PASSED)
                asked = {"devices": None if devices is None else list(devices), "now": failed}
                trial.sendall(json.dumps(asked).encode() + b"\n")
                with trial.makefile("rb") as answer:
                    answer.readline()  # the greeting
                    return HealthChange.model_validate_json(answer.readline())
            except (OSError, ValueError):
                return HealthChange(unreadable="the sampler did not answer")

    def close(self) -> None:
        """Let go of it; it ends with the last process that does."""
        with self._lock:
            if self._held is not None:
                self._held.close()
            if self._process is not None:
                try:
                    self._process.wait(0.2)
                except subprocess.TimeoutExpired:  # others hold it; without a code, Popen would warn of a leftover
                    self._process.returncode = 0


# The process itself.


class _Trial:
    """A connection: a trial, or a process of pytest, which asks nothing."""

    def __init__(self, connection: socket.socket, change: Change) -> None:
        self.connection, self.change = connection, change
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        [process] = struct.unpack_from("i", peer)  # 0 in another namespace than this one
        self.process = Path("/proc", str(process or "self"))
        self.asked = b""
        #: What it wants to know of the devices, once it waits for the next reading.
        self.devices: list[int] | None = None
        self.waits = False

    def answer(self) -> None:
        change = self.change.result(self.devices)
        with contextlib.suppress(OSError):
            self.connection.sendall(change.model_dump_json().encode() + b"\n")


class _Server:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._log = KernelLog(from_end=True)
        self._readers = [DeviceReader(vendor) for vendor in vendors()]
        self._trials: set[_Trial] = set()
        self._last: list[HealthReading] = []
        self._last_at = -_PERIOD
        #: Whether anybody has come, who may have gone again before it was accepted.
        self._was_held = False

    def run(self) -> None:
        """Serve until nobody is left."""
        begin = time.monotonic()
        while self._trials or (not self._was_held and time.monotonic() < begin + 10 * _PERIOD):
            wanted = _SOONEST if any(trial.waits for trial in self._trials) else _PERIOD
            wait = self._last_at + wanted - time.monotonic()
            for key, _ in self._selector.select(max(0.0, wait)):
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    self._hear(key.data)
            if time.monotonic() >= self._last_at + wanted:
                self._read()
        for reader in self._readers:
            reader.close()

    def _read(self) -> None:
        self._last_at = time.monotonic()
        self._last = [read_all(self._log, self._readers)]
        for trial in list(self._trials):
            trial.change.add(self._last[0])
            if trial.waits:
                trial.answer()
            if trial.waits or not trial.process.exists():  # a process that it has forked may hold its connections open
                self._drop(trial)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            self._was_held = True
            trial = _Trial(connection, Change(*self._last))
            self._trials.add(trial)
            self._selector.register(connection, selectors.EVENT_READ, trial)
            connection.sendall(b"\n")

    def _hear(self, trial: _Trial) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = trial.connection.recv(4096)
        trial.asked += said
        if trial.asked.endswith(b"\n"):
            asked = json.loads(trial.asked)
            trial.devices, trial.waits = asked["devices"], asked["now"]
            if trial.waits:
                return
            trial.answer()
        elif said:
            return
        self._drop(trial)

    def _drop(self, trial: _Trial) -> None:
        self._selector.unregister(trial.connection)
        self._trials.remove(trial)
        trial.connection.close()


def main(listening: int) -> None:
    """Serve the connections to a socket that listens already, until all are closed."""
    _Server(socket.socket(fileno=listening)).run()
