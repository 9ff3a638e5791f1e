"""GPUs of a host, which of them may be used, and variables that restrict a process to some.

A device is an integer: its place among all GPUs that this host shows to this process's container, counted as the
vendor's lowest layer counts them. Variables that hide devices renumber what a program sees, never what is meant here:
processes with different variables have to agree on what "device 2" is, or their leases would protect nothing.

Only files are read: the vendors' tools talk to every GPU of the host, and hang when one of them does.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

from pytest_aorta.common.kfd_topology import kfd_nodes, kfd_properties
from pytest_aorta.common.texts import format_ranges, parse_ranges

Vendor = Literal["nvidia", "amd", "none"]

#: The most devices that one list may name; no host has as many, and a slip of the keyboard should not fill the memory.
MAX_DEVICES = 4096

_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"

#: Hides every device. HIP takes an empty list for no list at all; an impossible index ends the list for all of them.
_NOTHING = "-1"


@dataclass(frozen=True)
class Devices:
    """The GPUs of this host.

    ``present`` holds all ids, ``hidden`` those that the variables in ``hidden_by`` (``NAME=value``) take away. What an
    entry of these would show that names no device found here, such as a MIG instance, is never leased.
    """

    vendor: Vendor
    present: tuple[int, ...]
    hidden: tuple[int, ...] = ()
    hidden_by: tuple[str, ...] = ()

    @property
    def visible(self) -> tuple[int, ...]:
        return tuple(device for device in self.present if device not in self.hidden)


def parse_devices(text: str) -> tuple[int, ...]:
    """``0``, ``0-3`` or ``0,2-4`` to ascending ids; ``none`` to no device.

    Raises:
        ValueError: anything else, a device that is named twice, more than ``MAX_DEVICES`` devices.
    """
    if text.strip() == "none":
        return ()
    try:
        ranges = parse_ranges(text)
    except ValueError as error:
        raise ValueError(f"{error}: expected {_EXPECTED}") from None
    if sum(map(len, ranges)) > MAX_DEVICES:
        raise ValueError(f"{text[:100]!r} names more than {MAX_DEVICES} devices: expected {_EXPECTED}")
    numbers = list(chain(*ranges))
    twice = [device for device, times in Counter(numbers).items() if times > 1]
    if twice:
        raise ValueError(f"{text!r} names device {devices_text(twice)} twice: expected {_EXPECTED}")
    return tuple(sorted(numbers))


_EXPECTED = "a list such as 0-3 or 0,2-4, or none"


def devices_text(devices: Iterable[int]) -> str:
    """Ids as ``parse_devices`` reads them: ``0,2-4``, or ``none``."""
    return format_ranges(devices) or "none"


def find_devices(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Devices:
    """The GPUs of this host and the variables in ``environ`` that hide some; NVIDIA's where it has both vendors'.

    ``root`` is where ``/proc``, ``/dev`` and ``/sys`` are looked for.
    """
    if uuids := _nvidia(root):
        return _masked("nvidia", uuids, [_entries(environ, _CUDA)])
    if uuids := _amd(root):
        # Two filters, one behind the other: HIP counts within what ROCr lets through. HIP reads CUDA's variable when
        # its own is empty, and takes an empty list for no list; to ROCr, an empty list means no device.
        hip = next((it for it in (_entries(environ, _HIP), _entries(environ, _CUDA)) if it and it[1] != [""]), None)
        return _masked("amd", uuids, [_entries(environ, _ROCR), hip])
    return Devices("none", ())


def are_named_only(present: Devices) -> bool:
    """Whether the host has no GPU, so that ids are names of slots and nothing more."""
    return present.vendor == "none"


def choose_devices(wanted: tuple[int, ...] | None, present: Devices) -> tuple[int, ...]:
    """The devices to use, ascending: those ``wanted``, or with ``None`` all that are visible.

    On a host without a GPU any ids will do (see ``are_named_only``). All that are visible may be none because the
    user's variables hold something that cannot be leased: a process is then best left with these variables as they are,
    since ``device_variables`` of no device hide everything.

    Raises:
        ValueError: the host has GPUs, but not these, or variables hide them.
    """
    if wanted is None:
        return present.visible
    if are_named_only(present):
        return tuple(sorted(wanted))
    has = f"this host has {present.vendor} devices {devices_text(present.present)}"
    missing = sorted(set(wanted) - set(present.present))
    if missing:
        raise ValueError(f"no such device: {devices_text(missing)}; {has}")
    hidden = sorted(set(wanted) - set(present.visible))
    if hidden:
        raise ValueError(
            f"device {devices_text(hidden)} is hidden by {' and '.join(present.hidden_by)}; "
            f"{has}, of which {devices_text(present.visible)} may be used"
        )
    return tuple(sorted(wanted))


def device_variables(devices: Sequence[int], present: Devices) -> dict[str, str]:
    """The variables that show ``devices`` to a process, and no others; its GPUs then count from 0.

    NVIDIA: ``CUDA_VISIBLE_DEVICES`` with the ids. AMD: the ids go into ``ROCR_VISIBLE_DEVICES``, the lowest layer, as
    AMD recommends for Linux ("GPU isolation techniques" and "HIP environment variables" in the ROCm documentation);
    ``HIP_VISIBLE_DEVICES`` and ``CUDA_VISIBLE_DEVICES``, which HIP reads when the former is missing, select *within*
    what is left and therefore hold ``0..k-1``: with ids in both, device 2 alone would be the third of one, and gone.
    Both are set all the same, because values inherited from the user would count within the wrong devices.

    Neither depends on what the user has set: ROCr always counts all devices of the host, so ids that were chosen from
    what the user's variables show may simply replace these variables.

    Without a GPU all three hold the ids, for programs that want to know which slot they are in.
    """
    ids = ",".join(map(str, devices)) or _NOTHING
    if present.vendor == "nvidia":
        return {_CUDA: ids}
    if present.vendor == "amd":
        ranks = ",".join(map(str, range(len(devices)))) or _NOTHING
        return {_ROCR: ids, _HIP: ranks, _CUDA: ranks}
    return dict.fromkeys((_CUDA, _HIP, _ROCR), ids) if devices else {}


# How each vendor counts: lists of UUIDs, "" where one is not known; the place in the list is the id.


def _nvidia(root: Path) -> list[str]:
    """The driver lists the GPUs of the host; a container is given the device nodes of some, which count from 0 there.

    A host creates the nodes when a GPU is used first, so that without any node the driver's list is believed.
    Lists by PCI address, as nvidia-smi does. CUDA does so too among equal GPUs, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    nodes = {int(path.name[6:]) for path in root.glob("dev/nvidia[0-9]*") if path.name[6:].isdecimal()}
    uuids: list[str] = []
    for folder in sorted(root.glob("proc/driver/nvidia/gpus/*")):
        facts = _pairs(folder / "information")
        minor = facts.get("Device Minor", "")
        if not nodes or not minor.isdecimal() or int(minor) in nodes:
            uuids.append(facts.get("GPU UUID", ""))
    return uuids or [""] * len(nodes)


def _amd(root: Path) -> list[str]:
    """Nodes of the KFD topology that have SIMD units, in its order; the others are CPUs.

    The kernel refuses to show a node whose GPU a container was not given, and ROCr then does not count it either.
    """
    uuids: list[str] = []
    for node in kfd_nodes(root):
        try:
            facts = kfd_properties(node)
        except (OSError, ValueError):
            continue
        if facts.get("simd_count", 0) > 0:
            unique = facts.get("unique_id", 0)
            uuids.append(f"GPU-{unique:016x}" if unique else "")
    return uuids


def _pairs(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


# The variables that hide devices.

_Filter = tuple[str, list[str]]


def _entries(environ: Mapping[str, str], name: str) -> _Filter | None:
    text = environ.get(name)
    return None if text is None else (f"{name}={text}", [entry.strip() for entry in text.split(",")])


def _masked(vendor: Vendor, uuids: list[str], filters: Sequence[_Filter | None]) -> Devices:
    visible = list(range(len(uuids)))
    hidden_by: list[str] = []
    for spelled, entries in filter(None, filters):
        left: dict[int, None] = {}
        for entry in entries:
            device = _device_of(entry, visible, uuids)
            if device is None:
                break
            left[device] = None
        if len(left) < len(visible):
            hidden_by.append(spelled)
        visible = list(left)
    present = tuple(range(len(uuids)))
    hidden = tuple(device for device in present if device not in visible)
    return Devices(vendor, present, hidden, tuple(hidden_by))


def _device_of(entry: str, visible: Sequence[int], uuids: Sequence[str]) -> int | None:
    if re.fullmatch(r"[0-9]{1,9}", entry):
        return visible[int(entry)] if int(entry) < len(visible) else None
    if not entry.startswith("GPU-"):
        return None
    named = [device for device in visible if uuids[device].lower().startswith(entry.lower())]
    return named[0] if len(named) == 1 else None


def core_shares(slots: int, available: Collection[int] | None = None, root: Path = Path("/")) -> list[tuple[int, ...]]:
    """One set of CPUs (as the kernel numbers them, ascending) for each of ``slots`` slots.

    Shares are disjoint, next to each other, and as equal as they can be; the first ones get what is left over. The
    hyper-threads of a core stay together while there are as many cores as slots; beyond, they are dealt out one by one.
    """
    cpus = sorted(os.sched_getaffinity(0) if available is None else set(available))
    units = _cores(cpus, root)
    if len(units) < slots:
        units = [(cpu,) for core in units for cpu in core]
    size, more = divmod(len(units), slots)
    starts = [slot * size + min(slot, more) for slot in range(slots + 1)]
    return [tuple(sorted(cpu for unit in units[start:end] for cpu in unit)) for start, end in pairwise(starts)]


def equal_shares(
    shares: int, available: Collection[int] | None = None, root: Path = Path("/")
) -> list[tuple[int, ...]] | None:
    """As ``core_shares``, but of equally many physical cores; what is left over is in none.

    ``None`` with fewer cores than shares.
    """
    cores = _cores(sorted(os.sched_getaffinity(0) if available is None else set(available)), root)
    size = len(cores) // shares
    if size == 0:
        return None
    return [tuple(sorted(chain(*cores[start : start + size]))) for start in range(0, shares * size, size)]


def threads_of(share: Collection[int], root: Path = Path("/")) -> int:
    """How many computing threads suit a share: its physical cores, at least 1.

    Two threads on one core's hyper-threads only take turns at its arithmetic units.
    """
    return max(1, len(_cores(sorted(share), root)))


def _cores(cpus: Iterable[int], root: Path) -> list[tuple[int, ...]]:
    cores: dict[frozenset[int], list[int]] = {}
    for cpu in cpus:
        file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            siblings = frozenset(chain(*parse_ranges(file.read_text(encoding="ascii"))))
        except (OSError, ValueError):  # a container, or a kernel, without this information
            siblings = frozenset((cpu,))
        cores.setdefault(siblings, []).append(cpu)
    return list(map(tuple, cores.values()))
