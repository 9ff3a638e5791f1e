"""One reading of everything; devices in processes of their own, because a call of a driver may hang for ever."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pytest_aorta.probe.health.devices import NvidiaReader, amd_devices, read_amd
from pytest_aorta.probe.health.host import KernelLog, read_host, reason_of
from pytest_aorta.probe.health.model import HealthEvent, HealthReading, PartReading

#: Seconds that a driver has for an answer.
PATIENCE = 5.0

_PR_SET_PDEATHSIG = 1


def read_health(patience: float = PATIENCE) -> HealthReading:
    """The health of this host and of all its GPUs, now. Never raises, and creates no context on a GPU.

    Returns:
        ``host`` and ``devices``, each with ``counters`` (errors, throttling: they only grow), ``gauges`` (temperature,
        power, clocks, memory), ``throttled`` (why clocks are held back now), ``facts`` (``vendor``, ``model``, ``pci``,
        ``ecc``), and ``unreadable``: why something is missing. ``events``: what the kernel log holds, since the system
        has started. ``difference(before, after)`` says what has changed between two readings.

    Args:
        patience: seconds that each driver has for its answer. One that has none is killed, and is ``unreadable``.
    """
    log, readers = KernelLog(), [DeviceReader(vendor) for vendor in vendors()]
    try:
        return read_all(log, readers, patience)
    finally:
        log.close()
        for reader in readers:
            reader.close()


def read_all(log: KernelLog, readers: Sequence[DeviceReader], patience: float = PATIENCE) -> HealthReading:
    """One reading of the host, its kernel log, and the devices of all readers, which have ``patience`` together."""
    until = time.monotonic() + patience
    for reader in readers:
        reader.ask()
    host, events, found = read_host(), log.read(), dict[str, list[PartReading]]()
    if log.problem:
        host.unreadable["kernel log"] = log.problem
    for reader in readers:
        found[reader.vendor], more = reader.answer(max(0.0, until - time.monotonic()))
        events += more
    return combined(host, found, events)


def vendors(root: Path = Path("/")) -> list[str]:
    """Those whose driver is loaded."""
    nvidia = (root / "proc/driver/nvidia").exists() or (root / "dev/nvidiactl").exists()
    return ["NVIDIA"] * nvidia + ["AMD"] * bool(amd_devices(root))


def combined(
    host: PartReading, found: Mapping[str, Sequence[PartReading]], events: Sequence[HealthEvent]
) -> HealthReading:
    """One reading; devices have the name of their vendor only where there are several."""
    there = [vendor for vendor, devices in found.items() if devices]
    devices = []
    for vendor in there:
        for each in found[vendor]:
            name = f"{vendor} {each.name}" if len(there) > 1 else each.name
            devices.append(each.model_copy(update={"name": name}))
    # The driver tells an Xid to NVML and to the kernel log.
    kept: list[HealthEvent] = []
    for event in sorted(events, key=lambda each: (each.text == "", each.at)):
        if event.text or not any((event.code, event.device) == (other.code, other.device) for other in kept):
            kept.append(event)
    kept.sort(key=lambda each: each.at)
    return HealthReading(at=round(time.time(), 3), host=host, devices=devices, events=kept)


def _unknown(vendor: str, reason: str) -> PartReading:
    return PartReading(name="GPU ?", facts={"vendor": vendor}, unreadable={"all": reason})


def start_process(code: str, channel: socket.socket | Connection[Any, Any]) -> subprocess.Popen[bytes]:
    """Run ``code`` in an interpreter of its own that inherits a ``channel``."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.append({str(Path(__file__).parents[3])!r}); {code}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        start_new_session=True,
        cwd="/",
    )


class DeviceReader:
    """A process that reads the devices of one vendor, as often as it is asked; replaced when it does not answer."""

    #: Seconds before a process that did not answer is replaced.
    _AGAIN: float = 60.0

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self._devices: list[PartReading] = []
        self._problem = ""
        self._not_before = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    def ask(self) -> None:
        """Ask for a reading, of a new process where there is none."""
        if self._process is None and time.monotonic() >= self._not_before:
            self._pipe, theirs = Pipe()
            code = f"from {__name__} import serve; serve({self.vendor!r}, {theirs.fileno()})"
            with theirs:
                try:
                    self._process = start_process(code, theirs)
                except OSError as error:
                    self._lose(reason_of(error))
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.send(None)

    def answer(self, patience: float) -> tuple[list[PartReading], list[HealthEvent]]:
        """The devices and events that it was asked for; without an answer, what is known of the devices, and why."""
        if self._pipe is not None:
            try:
                if self._pipe.poll(patience):
                    self._devices, events = self._pipe.recv()
                    return self._devices, events
                self._lose("its driver did not answer")
            except (EOFError, OSError):
                self._lose("its reader has died")
        devices = self._devices or [_unknown(self.vendor, "")]
        lost = {"all": self._problem}
        return [PartReading(name=each.name, facts=each.facts, unreadable=lost) for each in devices], []

    def _lose(self, why: str) -> None:
        self._problem, self._not_before = why, time.monotonic() + self._AGAIN
        self.close()

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver: it dies when that returns
                self._process.wait(1.0)
        self._process = self._pipe = None


def serve(vendor: str, descriptor: int) -> None:
    """Answer each message by a reading of the vendor's devices; the body of a ``DeviceReader``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nvidia: NvidiaReader | None = None
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            answer: tuple[list[PartReading], list[HealthEvent]]
            try:
                if vendor == "AMD":
                    answer = read_amd(), []
                else:
                    if nvidia is None:
                        import pynvml

                        nvidia = NvidiaReader(pynvml)
                    answer = nvidia.read()
            except ImportError:
                answer = [_unknown(vendor, "nvidia-ml-py is not installed")], []
            except Exception as error:  # of NVML, whose errors are of no common type
                answer = [_unknown(vendor, reason_of(error))], []
            pipe.send(answer)
