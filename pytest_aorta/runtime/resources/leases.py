"""Leases: a device is used by one task at a time, whichever process of this user on this host runs it.

Every device has a lock file. A process that holds the file's lock (``flock``) holds the device, and the kernel takes
the lock back when the last descriptor of it is closed, however that comes about. So a death leaves nothing to clean up.

Which request takes a device is decided under one more lock, the *table*. It is held for the moment of looking and
taking, and its holder waits for nothing: that is why there can be no deadlock. A request that does not get all it needs
takes nothing, leaves a *ticket* (a file that is locked while the request waits), and looks again a little later. Small
requests pass a big one that waits in this manner. But once a ticket has waited for longer than its patience, all the
devices of its pool are reserved: only tickets that ran out of patience before it may take them. These are finitely
many, so each request is served in the end, and requests for other devices are not held up.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import re
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from uuid import uuid4

# Locks on files: ``flock`` on descriptors that no forked child keeps, and the table that decides about them.
#
# ``flock`` is called directly, though ``filelock`` is at hand: its release *unlocks* the file, for every process that
# shares the descriptor, while a lease has to last until the last of them has gone.


class Locks:
    """Descriptors that hold locks. A process that is forked from this one does not keep them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add_locked(self, file: Path, flags: int) -> bool:
        """Open and lock a file; false, and nothing is opened, when another descriptor holds its lock."""
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self.numbers.append(descriptor)
        _all.add(self)
        return True

    def close(self) -> None:
        """Close them; never unlock them."""
        while self.numbers:
            os.close(self.numbers.pop())
        _all.discard(self)


#: Guards what this process opens; notified when it gives something back. A fork waits for it, so that no descriptor
#: can slip into a child before ``_all`` knows it.
RELEASES = threading.Condition()
_all: set[Locks] = set()


def _in_forked_child() -> None:
    for held in list(_all):
        held.close()
    RELEASES.release()


os.register_at_fork(before=RELEASES.acquire, after_in_parent=RELEASES.release, after_in_child=_in_forked_child)


@contextlib.contextmanager
def table(folder: Path) -> Iterator[bool]:
    """Hold the table, unless another process does: then false."""
    descriptor = os.open(folder / "table.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_locked(file: Path) -> bool:
    """Whether any descriptor holds a file's lock; tried by taking it for a moment, so the table has to be held."""
    probe = Locks()
    try:
        free = probe.add_locked(file, 0)
    except FileNotFoundError:
        return False
    probe.close()
    return not free


#: A waiter that has not looked for so many seconds (a stopped process) reserves nothing until it looks again.
_AWAY = 10.0


class Ticket:
    """A request that waits. Its file lies in the folder from the first failed attempt on, locked while it waits.

    The name begins with the time at which patience ends (``CLOCK_MONOTONIC``, the same for all processes), so that
    sorted names are the order in which tickets are served; the file holds the pool and the time of the last look.
    """

    def __init__(self, folder: Path, devices: Sequence[int], patience: float) -> None:
        self._folder = folder
        self._devices = devices
        self._file = folder / f"{time.monotonic_ns() + int(patience * 1e9):020d}-{uuid4().hex}.ticket"
        self._held = Locks()

    def leave(self) -> None:
        """Note that the request waits, and has just looked; the table is held."""
        if not self._held.numbers:
            self._held.add_locked(self._file, os.O_CREAT | os.O_EXCL)
        # In nanoseconds the time never becomes shorter, so nothing of the last text is left behind the new one.
        content = json.dumps({"devices": self._devices, "looked": time.monotonic_ns()})
        os.pwrite(self._held.numbers[0], content.encode(), 0)

    def reserved_by_others(self) -> set[int]:
        """Devices that earlier tickets have lost patience over; the table is held."""
        reserved: set[int] = set()
        now = time.monotonic_ns()
        for file in sorted(self._folder.glob("*.ticket")):
            if file.name >= self._file.name or int(file.name.partition("-")[0]) > now:
                break
            if not is_locked(file):
                file.unlink(missing_ok=True)  # its process has died, or was just served
                continue
            with contextlib.suppress(OSError, ValueError):
                ticket = json.loads(file.read_bytes())
                if now - ticket["looked"] < _AWAY * 1e9:
                    reserved.update(ticket["devices"])
        return reserved

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with RELEASES:
            if self._held.numbers:
                self._file.unlink(missing_ok=True)
                self._held.close()
                RELEASES.notify_all()


#: Seconds between two looks at devices that others hold; a release in this process is seen at once.
_POLL = 0.02
#: The same while another process looks.
_POLL_TABLE = 0.002
#: Bytes in a lock file for the name of its holder.
_NAME = 200
#: How often ``holders`` tries to look.
_LOOKS = 500

#: Those of this process.
_LEASES: weakref.WeakSet[Lease] = weakref.WeakSet()


class LeaseError(Exception):
    """The lock files cannot be kept where they should be."""


class LeaseCancelled(Exception):
    """``cancelled()`` said so before the devices were there."""


class Leases:
    """Grants devices of a pool, in competition with every process and thread that uses the same folder.

    Args:
        devices: the pool.
        folder: where the lock files lie; ``default_folder()`` when not given. It must be on a local disk.
        patience: seconds for which others may pass a request that does not fit.
        label: says who holds a device, in messages; the name of the program when not given.
    """

    def __init__(
        self, devices: Sequence[int], folder: Path | None = None, patience: float = 5.0, label: str | None = None
    ) -> None:
        if len(set(devices)) < len(devices):
            raise ValueError(f"a pool names a device twice: {_listed(sorted(devices))}")
        if not (math.isfinite(patience) and patience >= 0):
            raise ValueError(f"patience must be a number of seconds, 0 or more, not {patience}")
        self.devices = tuple(sorted(devices))
        self.folder = default_folder() if folder is None else folder
        self.patience = patience
        self.label = (Path(sys.argv[0]).name or "python") if label is None else label
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def acquire(
        self, count: int, *, cancelled: Callable[[], bool] = lambda: False, prefer: Sequence[int] = ()
    ) -> Lease:
        """Wait until ``count`` devices are free, and take them all at once.

        The holder of a lease should not wait for another one: two that do can wait for each other.

        Args:
            count: how many; 0 gives an empty lease at once.
            cancelled: asked again and again while waiting, in this thread; has to answer quickly.
            prefer: devices that are taken first if they are free.

        Raises:
            ValueError: the pool has not as many devices.
            LeaseCancelled: ``cancelled()`` returned true.
        """
        if count < 0:
            raise ValueError(f"the number of devices must be 0 or more, not {count}")
        if count > len(self.devices):
            raise ValueError(f"needs {count} devices, the pool has {len(self.devices)}: {_listed(self.devices)}")
        if count == 0:
            return Lease((), Locks())
        order = [device for device in dict.fromkeys(prefer) if device in self.devices]
        order += [device for device in self.devices if device not in order]
        with Ticket(self.folder, self.devices, self.patience) as ticket:
            while not cancelled():
                # Releases in this process notify, and cannot come between the look and the wait.
                with RELEASES:
                    with table(self.folder) as entered:
                        lease = self._take(count, order, ticket) if entered else None
                    if lease is not None:
                        return lease
                    RELEASES.wait(_POLL if entered else _POLL_TABLE)
        raise LeaseCancelled(f"gave up waiting for {count} of the devices {_listed(self.devices)}")

    def _take(self, count: int, order: Sequence[int], ticket: Ticket) -> Lease | None:
        """``count`` devices, or none of them; the table is held."""
        reserved = ticket.reserved_by_others()
        # Always as long, because cutting a file off can take milliseconds: ext4 then writes it to the disk.
        holder = f"{os.getpid()} {self.label}".encode(errors="replace")[:_NAME].ljust(_NAME)
        held = Locks()
        devices = []
        try:
            for device in order:
                if device not in reserved and held.add_locked(self._file(device), os.O_CREAT):
                    devices.append(device)
                    if len(devices) == count:
                        for descriptor in held.numbers:
                            os.pwrite(descriptor, holder, 0)
                        return Lease(devices, held)
            ticket.leave()
        except BaseException:
            held.close()
            raise
        held.close()
        return None

    def holders(self) -> dict[int, str]:
        """Who holds the devices of the pool that are not free: ``pid 123 (pytest)``. For messages.

        Empty when other processes hold the table all the time.
        """
        for _ in range(_LOOKS):
            with RELEASES:
                with table(self.folder) as entered:
                    if entered:
                        return {
                            device: _holder(file)
                            for device, file in ((device, self._file(device)) for device in self.devices)
                            if file.exists() and is_locked(file)
                        }
                RELEASES.wait(_POLL_TABLE)
        return {}

    def inherited(self) -> dict[int, int]:
        """Devices of the pool whose locks another process has handed to this one, each with its descriptor."""
        files = {str(self._file(device).resolve()): device for device in self.devices}
        with RELEASES:  # while a thread of this process looks, the files are open without being held
            own = {descriptor for lease in list(_LEASES) for descriptor in lease.descriptors}
            found: dict[int, int] = {}
            for name in os.listdir("/proc/self/fd"):
                try:
                    device = files.get(os.readlink(f"/proc/self/fd/{name}"))
                except OSError:
                    continue
                if device is None or int(name) in own:
                    continue
                with contextlib.suppress(BlockingIOError):  # it is open here, but its lock is another one's
                    fcntl.flock(int(name), fcntl.LOCK_EX | fcntl.LOCK_NB)  # of a lock that is held: nothing
                    found[device] = int(name)
            return found

    def _file(self, device: int) -> Path:
        return self.folder / f"device-{device}.lock"


class Lease:
    """Devices that are held until ``release``, or until the end of this process."""

    def __init__(self, devices: Sequence[int], held: Locks) -> None:
        # Ascending, each with its descriptor.
        pairs = sorted(zip(devices, held.numbers, strict=True))
        self.devices = tuple(device for device, _ in pairs)
        self._order = tuple(descriptor for _, descriptor in pairs)
        self._held = held
        _LEASES.add(self)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of the lock files, in the order of ``devices``; none after the release.

        A process that was sent them keeps the devices until it closes them or ends, also after a release here. It must
        not unlock them (``LOCK_UN``): that would release the devices for all who share them.
        """
        return self._order if self._held.numbers else ()

    def release(self) -> None:
        """Give the devices back; twice is harmless. Those whose descriptors another process holds stay with it."""
        with RELEASES:
            if self._held.numbers:
                self._held.close()
                RELEASES.notify_all()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def default_folder(base: Path = Path("/tmp")) -> Path:
    """The folder on which all processes of this user on this host agree, created when it is not there.

    ``PYTEST_AORTA_LEASES_DIR`` names another one, for processes that have no ``/tmp`` in common (containers) or should
    not meet (tests). Neither TMPDIR nor XDG_RUNTIME_DIR counts: they differ between a login, a batch job and a service,
    which would all hold device 0 at once, and the latter is deleted at logout while jobs still run. The host's name is
    part of the path in case ``/tmp`` is shared by several hosts.

    Raises:
        LeaseError: the folder belongs to another user, or others can write to it.
    """
    if named := os.environ.get("PYTEST_AORTA_LEASES_DIR"):
        return Path(named).absolute()
    ours = base / f"pytest-aorta-{os.getuid()}"
    try:
        ours.mkdir(mode=0o700, exist_ok=True)
        facts = ours.lstat()
    except OSError as error:
        raise LeaseError(f"{ours}: the lock files of devices need a folder here: {error}") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
        # Others that could write there could keep devices, or give one to two processes.
        raise LeaseError(
            f"{ours} must be a folder that belongs to user {os.getuid()} and that no other user can write to; "
            "remove it, or name another one in PYTEST_AORTA_LEASES_DIR"
        )
    host = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node()) or "host"
    folder = ours / host / "devices"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _holder(file: Path) -> str:
    pid, _, label = file.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    if not pid.isdecimal():
        return "a process that has not left its name"
    named = f"pid {pid} ({label})"
    return named if Path("/proc", pid).exists() else f"a process that {named} has left behind"


def _listed(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or "none"
