"""Health of the host: files of ``/sys`` and ``/proc``, and lines of the kernel log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_aorta.probe.guard import read_text
from pytest_aorta.probe.health.model import HealthEvent, PartReading

#: Clocks of at most so many processors are read, evenly spread; each costs some microseconds.
_MOST_CLOCKS = 8

_PSI = re.compile(r"^(some|full) .*total=(\d+)", re.MULTILINE)
_VMSTAT = re.compile(r"^(oom_kill|allocstall_normal) (\d+)", re.MULTILINE)
_MEMORY = re.compile(r"^MemAvailable:\s*(\d+)", re.MULTILINE)

#: Of a network interface.
_NETWORK = ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors")

#: Of a port of InfiniBand or RoCE; all others count traffic.
_FABRIC = re.compile(r"err|discard|drop|downed|recover|overrun|retr|timeout|out_of_|nak|congest|adp_|roce_slow")


def read_host(root: Path = Path("/")) -> PartReading:
    """Counters and gauges of the host whose file system is at ``root``; events are the kernel log's.

    ``edac_corrected`` and ``edac_uncorrected``: errors of memory. ``machine_checks``: exceptions. ``cpu_throttled``:
    times that cores and packages were slowed down by heat. ``memory_stalled_us``, ``memory_all_stalled_us``: time in
    which some, or all, tasks have waited for memory (``Documentation/accounting/psi.rst``). ``oom_kills``. ``fabric
    DEVICE/PORT NAME``: error counters of InfiniBand and RoCE. ``net NAME``: drops and errors of network interfaces.
    """
    counters: dict[str, int] = {}
    gauges: dict[str, float] = {}
    unreadable: dict[str, str] = {}

    def attempt(name: str, read: Callable[[Path], Iterator[tuple[str, float, bool]]]) -> None:
        found = False
        try:
            for key, value, is_counter in read(root):
                found = True
                if is_counter:
                    counters[key] = counters.get(key, 0) + int(value)
                else:
                    gauges[key] = value
        except (OSError, ValueError) as error:
            unreadable[name] = reason_of(error)
        else:
            if not found:
                unreadable[name] = "none"

    for name, read in _HOST.items():
        attempt(name, read)
    return PartReading(name="host", counters=counters, gauges=gauges, unreadable=unreadable)


def reason_of(error: BaseException) -> str:
    """Why something could not be read, in at most 60 characters."""
    text = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
    return (text or type(error).__name__)[:60]


def number_in(file: Path) -> int | None:
    """The number in a file; ``None`` where there is no file."""
    text = read_text(file).strip()
    return int(text, 0) if text else None


_Found = Iterator[tuple[str, float, bool]]


def _edac(root: Path) -> _Found:
    for folder in root.glob("sys/devices/system/edac/mc/mc[0-9]*"):
        for name, key in (("ce_count", "edac_corrected"), ("ue_count", "edac_uncorrected")):
            if (value := number_in(folder / name)) is not None:
                yield key, value, True


def _machine_checks(root: Path) -> _Found:
    for line in read_text(root / "proc/interrupts").splitlines():
        if line.lstrip().startswith("MCE:"):
            yield "machine_checks", sum(int(word) for word in line.split()[1:] if word.isdecimal()), True


def _throttling(root: Path) -> _Found:
    packages: dict[str, int] = {}
    for cpu in root.glob("sys/devices/system/cpu/cpu[0-9]*"):
        if (value := number_in(cpu / "thermal_throttle/core_throttle_count")) is not None:
            yield "cpu_throttled", value, True
        if (value := number_in(cpu / "thermal_throttle/package_throttle_count")) is not None:
            packages[read_text(cpu / "topology/physical_package_id").strip()] = value
    for value in packages.values():
        yield "cpu_throttled", value, True


def _clocks(root: Path) -> _Found:
    files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
    clocks = [number_in(file) for file in files[:: -(-len(files) // _MOST_CLOCKS) or 1]]
    mhz = [clock / 1000 for clock in clocks if clock]
    if mhz:
        yield "cpu_least_mhz", min(mhz), False
        yield "cpu_most_mhz", max(mhz), False


def _memory(root: Path) -> _Found:
    for who, total in _PSI.findall(read_text(root / "proc/pressure/memory")):
        yield "memory_stalled_us" if who == "some" else "memory_all_stalled_us", int(total), True
    for name, value in _VMSTAT.findall(read_text(root / "proc/vmstat")):
        if name == "oom_kill":
            yield "oom_kills", int(value), True
    for kib in _MEMORY.findall(read_text(root / "proc/meminfo")):
        yield "memory_available_mib", int(kib) // 1024, False


def _fabric(root: Path) -> _Found:
    for folder in ("counters", "hw_counters"):
        for file in root.glob(f"sys/class/infiniband/*/ports/*/{folder}/*"):
            if _FABRIC.search(file.name):
                device, port = file.parts[-5], file.parts[-3]
                if (value := number_in(file)) is not None:
                    yield f"fabric {device}/{port} {file.name}", value, True


def _network(root: Path) -> _Found:
    for folder in root.glob("sys/class/net/*"):
        if folder.name != "lo":
            for name in _NETWORK:
                if (value := number_in(folder / "statistics" / name)) is not None:
                    yield f"net {name}", value, True


_HOST: dict[str, Callable[[Path], _Found]] = {
    "EDAC": _edac,
    "machine checks": _machine_checks,
    "thermal throttling": _throttling,
    "CPU clocks": _clocks,
    "memory": _memory,
    "fabric": _fabric,
    "network": _network,
}


# The kernel log.

#: What a line says: kind of the event, and an expression with groups ``device`` and ``code`` where there are such.
_LINES = tuple(
    (kind, re.compile(expression))
    for kind, expression in (
        ("Xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)\): (?P<code>\d+),? ?(?P<text>.*)"),
        ("RAS", r"amdgpu (?P<device>[0-9a-f:.]+): (?:amdgpu: )?(?P<text>.*\buncorrectable hardware error.*)"),
        ("RAS", r"amdgpu (?P<device>[0-9a-f:.]+): (?:amdgpu: )?(?P<text>.*\b(?:poison|RAS event|RAS (?:fatal|int)).*)"),
        ("GPU reset", r"amdgpu (?P<device>[0-9a-f:.]+): (?:amdgpu: )?(?P<text>GPU reset begin.*)"),
        ("EDAC", r"EDAC MC\d+: (?P<text>\d+ UE .*)"),
        ("machine check", r"mce: \[Hardware Error\]: (?P<text>Machine check.*|CPU \d+: Machine Check.*)"),
        ("OOM kill", r"(?:Out of memory|out of memory|oom-kill).*?: (?P<text>Killed process .*)"),
        ("segfault", r"(?P<text>\S+\[\d+\]: segfault at .*|traps: \S+\[\d+\] .*)"),
    )
)


class KernelLog:
    """The kernel log from where the last call of ``read`` has ended; ``problem`` says why it cannot be read."""

    def __init__(self, root: Path = Path("/"), *, from_end: bool = False) -> None:
        self.problem = ""
        self._file = -1
        try:
            self._file = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if from_end:
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.problem = reason_of(error)

    def read(self) -> list[HealthEvent]:
        """What was reported since; its time is exact to some milliseconds, or to hours after a suspend."""
        events: list[HealthEvent] = []
        started = time.time() - time.monotonic()
        while self._file >= 0:
            try:
                record = os.read(self._file, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # some were overwritten before they were read
                continue
            except OSError as error:
                self.problem = reason_of(error)
                break
            if not record:
                break
            for line in record.decode("utf-8", "replace").splitlines():
                event = event_of(line, started)
                events += [event] if event else []
        return events

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def event_of(record: str, started: float) -> HealthEvent | None:
    """The event of a record of ``/dev/kmsg``: ``priority,number,microseconds,flags;text``.

    ``started``: when the system has started, in seconds since the epoch.
    """
    head, separator, text = record.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdecimal():
        return None
    for kind, expression in _LINES:
        if found := expression.search(text):
            groups = found.groupdict()
            return HealthEvent(
                at=round(started + int(fields[2]) / 1e6, 3),
                kind=kind,
                code=int(groups["code"]) if groups.get("code") else None,
                device=None if groups.get("device") is None else pci_address(groups["device"]),
                text=(groups.get("text") or "").strip()[:200],
            )
    return None


def pci_address(text: str) -> str:
    """``0000:3b:00`` of ``PCI:0000:3B:00.0`` or ``00000000:3B:00.0``: without function, and with a short domain."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[-3][-4:].zfill(4) if len(parts) > 2 else "0000", *parts[-2:]])
