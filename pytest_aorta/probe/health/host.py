"""Health of the host: files of ``/sys`` and ``/proc``, and lines of the kernel log; how a part of it is read."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_aorta.probe.guard import read_text
from pytest_aorta.probe.health.model import HealthEvent, PartReading

# A part.

#: What a reader finds: a field of ``PartReading``, a key of it, and a value; ``None`` where there is none.
Found = Iterator[tuple[str, str, Any]]

#: NVML's codes of errors that say that a device has no such thing, and that it is lost.
_NOT_SUPPORTED, _LOST = 3, 15


def read_part(
    name: str,
    readers: Mapping[str, Callable[[], Found]],
    errors: type[Exception] | tuple[type[Exception], ...] = (OSError, ValueError),
    wanted: Collection[str] = (),
) -> PartReading:
    """What the readers find, but for those that raise one of ``errors``: why, is under their names in ``unreadable``.

    Equal counters are added up; of equal gauges the first one counts. A reader ``all`` that raises is the last one.
    Those that are ``wanted`` and find nothing are ``unreadable``, too.
    """
    found: dict[str, dict[str, Any]] = {field: {} for field in ("facts", "counters", "gauges", "throttled")}
    unreadable: dict[str, str] = {}
    for what, read in readers.items():
        values = []
        try:
            for field, key, value in read():
                if value is not None:
                    values.append(value)
                    there = found[field]
                    there[key] = there.get(key, 0) + int(value) if field == "counters" else there.get(key, value)
        except errors as error:
            code = getattr(error, "value", None)
            if what == "all" or code == _LOST:
                unreadable = {"all": reason_of(error)}
                break
            if code != _NOT_SUPPORTED:
                unreadable[what] = reason_of(error)
        else:
            if what in wanted and not values:
                unreadable[what] = "none"
    found_too = {"throttled": list(found["throttled"]), "unreadable": unreadable}
    return PartReading.model_validate({"name": name, **found, **found_too})


def reason_of(error: BaseException) -> str:
    """Why something could not be read, in at most 60 characters."""
    text = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
    return (text or type(error).__name__)[:60]


class Number(NamedTuple):
    """A number in each file that matches ``files``: the first group of ``pattern`` there, times ``unit``."""

    field: str
    key: str
    files: str
    pattern: str = r"(\d+)"
    unit: float = 1


def numbers(folder: Path, table: Collection[Number]) -> Found:
    """The numbers of a ``table``, in files below ``folder``."""
    for field, key, files, pattern, unit in table:
        for file in folder.glob(files):
            if found := re.search(pattern, read_text(file), re.MULTILINE):
                yield field, key, round(int(found[1]) * unit, 1)


def number_in(file: Path) -> int | None:
    """The number in a file; ``None`` where there is no file."""
    text = read_text(file).strip()
    return int(text) if text else None


# The host.

#: Clocks of at most so many processors are read, evenly spread; each costs some microseconds.
_MOST_CLOCKS = 8

#: Of a network interface.
_NETWORK = ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors")

#: Of a port of InfiniBand or RoCE; all others count traffic.
_FABRIC = re.compile(r"err|discard|drop|downed|recover|overrun|retr|timeout|out_of_|nak|congest|adp_|roce_slow")

_EDAC = (
    Number("counters", "edac_corrected", "sys/devices/system/edac/mc/mc[0-9]*/ce_count"),
    Number("counters", "edac_uncorrected", "sys/devices/system/edac/mc/mc[0-9]*/ue_count"),
)
_MEMORY = (
    Number("counters", "memory_stalled_us", "proc/pressure/memory", r"^some .*total=(\d+)"),
    Number("counters", "memory_all_stalled_us", "proc/pressure/memory", r"^full .*total=(\d+)"),
    Number("counters", "oom_kills", "proc/vmstat", r"^oom_kill (\d+)"),
    Number("gauges", "memory_available_mib", "proc/meminfo", r"^MemAvailable:\s*(\d+)", 1 / 1024),
)


def read_host(root: Path = Path("/")) -> PartReading:
    """Counters and gauges of the host whose file system is at ``root``; events are the kernel log's.

    ``edac_corrected`` and ``edac_uncorrected``: errors of memory. ``machine_checks``: exceptions. ``cpu_throttled``:
    times that cores and packages were slowed down by heat. ``memory_stalled_us``, ``memory_all_stalled_us``: time in
    which some, or all, tasks have waited for memory (``Documentation/accounting/psi.rst``). ``oom_kills``. ``fabric
    DEVICE/PORT NAME``: error counters of InfiniBand and RoCE. ``net NAME``: drops and errors of network interfaces.
    """
    readers: dict[str, Callable[[], Found]] = {
        "EDAC": partial(numbers, root, _EDAC),
        "machine checks": partial(_machine_checks, root),
        "thermal throttling": partial(_throttling, root),
        "CPU clocks": partial(_clocks, root),
        "memory": partial(numbers, root, _MEMORY),
        "fabric": partial(_fabric, root),
        "network": partial(_network, root),
    }
    return read_part("host", readers, wanted=readers)


def _machine_checks(root: Path) -> Found:
    for line in read_text(root / "proc/interrupts").splitlines():
        if line.lstrip().startswith("MCE:"):
            yield "counters", "machine_checks", sum(int(word) for word in line.split()[1:] if word.isdecimal())


def _throttling(root: Path) -> Found:
    packages: dict[str, int | None] = {}
    for cpu in root.glob("sys/devices/system/cpu/cpu[0-9]*"):
        yield "counters", "cpu_throttled", number_in(cpu / "thermal_throttle/core_throttle_count")
        package = read_text(cpu / "topology/physical_package_id").strip()
        packages[package] = number_in(cpu / "thermal_throttle/package_throttle_count")
    for value in packages.values():
        yield "counters", "cpu_throttled", value


def _clocks(root: Path) -> Found:
    files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
    clocks = [number_in(file) for file in files[:: -(-len(files) // _MOST_CLOCKS) or 1]]
    mhz = [clock / 1000 for clock in clocks if clock]
    yield "gauges", "cpu_least_mhz", min(mhz, default=None)
    yield "gauges", "cpu_most_mhz", max(mhz, default=None)


def _fabric(root: Path) -> Found:
    for file in root.glob("sys/class/infiniband/*/ports/*/*counters/*"):
        if _FABRIC.search(file.name):
            yield "counters", f"fabric {file.parts[-5]}/{file.parts[-3]} {file.name}", number_in(file)


def _network(root: Path) -> Found:
    for folder in root.glob("sys/class/net/*"):
        if folder.name != "lo":
            for name in _NETWORK:
                yield "counters", f"net {name}", number_in(folder / "statistics" / name)


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
