"""What processes hold by locks on files: devices, and temporary folders. The kernel releases both at their end.

Leases: a device is used by one task at a time, whichever process of this user on this host runs it.

Every device has two lock files. Who holds the lock (``flock``) of the first holds the device; the kernel takes it back
when its last descriptor is closed, however that comes about. The second is the *turn*: a request takes the turns of all
devices of its pool, in ascending order, and keeps them until it gets all the devices that it needs, at once. So no
requests wait for each other in a circle, and none for few devices passes one for many.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

# ``flock`` is called directly: a release of ``filelock`` *unlocks* the file, for every process that shares the
# descriptor, while a lease has to last until the last of them has gone.


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


#: Seconds between two looks at a turn, and at devices that others hold; a release in this process is seen at once.
_POLL_TURN, _POLL = 0.005, 0.02
#: Bytes in a lock file for the name of its holder.
_NAME = 200

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
        label: says who holds a device, in messages; the name of the program when not given.
    """

    def __init__(self, devices: Sequence[int], folder: Path | None = None, label: str | None = None) -> None:
        if len(set(devices)) < len(devices):
            raise ValueError(f"a pool names a device twice: {_listed(sorted(devices))}")
        self.devices = tuple(sorted(devices))
        self.folder = default_folder() if folder is None else folder
        self.label = (Path(sys.argv[0]).name or "python") if label is None else label
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def acquire(
        self, count: int, preferred: Sequence[int] = (), *, cancelled: Callable[[], bool] = lambda: False
    ) -> Lease:
        """Wait until ``count`` devices are free, and take them all at once.

        The holder of a lease should not wait for another one: two that do can wait for each other.

        Args:
            count: how many; 0 gives an empty lease at once.
            preferred: of the pool, those to take if they are free, the best first; then any others, ascending.
            cancelled: asked again and again while waiting, in this thread; has to answer quickly.

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
        turns = Locks()
        waiting = [self.folder / f"turn-{device}.lock" for device in self.devices]
        try:
            while not cancelled():
                # Releases in this process notify, and cannot come between the look and the wait.
                with RELEASES:
                    while waiting and turns.add_locked(waiting[0], os.O_CREAT):
                        del waiting[0]
                    lease = None if waiting else self._take(count, preferred)
                    if lease is not None:
                        return lease
                    if not waiting:
                        RELEASES.wait(_POLL)
                if waiting:  # nobody is woken: threads of this process have no better chance than other processes
                    time.sleep(_POLL_TURN)
        finally:
            with RELEASES:
                turns.close()
        raise LeaseCancelled(f"gave up waiting for {count} of the devices {_listed(self.devices)}")

    def _take(self, count: int, preferred: Sequence[int]) -> Lease | None:
        # Always as long, because cutting a file off can take milliseconds: ext4 then writes it to the disk.
        holder = f"{os.getpid()} {self.label}".encode(errors="replace")[:_NAME].ljust(_NAME)
        held = Locks()
        devices = []
        try:
            for device in dict.fromkeys((*(each for each in preferred if each in self.devices), *self.devices)):
                if held.add_locked(self._file(device), os.O_CREAT):
                    devices.append(device)
                    if len(devices) == count:
                        held.numbers = [number for _, number in sorted(zip(devices, held.numbers, strict=True))]
                        for descriptor in held.numbers:
                            os.pwrite(descriptor, holder, 0)
                        return Lease(sorted(devices), held)
        except BaseException:
            held.close()
            raise
        held.close()
        return None

    def holders(self) -> dict[int, str]:
        """Who holds the devices of the pool that are not free: ``pid 123 (pytest)``. For messages."""
        with RELEASES:
            return {device: _holder(file) for device in self.devices if _is_locked(file := self._file(device))}

    def inherited(self) -> dict[int, int]:
        """Devices of the pool whose locks another process has handed to this one, each with its descriptor."""
        files = {str(self._file(device).resolve()): device for device in self.devices}
        with RELEASES:  # while a thread of this process looks, the files are open without being held
            own = {descriptor for lease in list(_LEASES) for descriptor in lease.descriptors}
            inherited: dict[int, int] = {}
            for name in os.listdir("/proc/self/fd"):
                try:
                    device = files.get(os.readlink(f"/proc/self/fd/{name}"))
                except OSError:
                    continue
                if device is None or int(name) in own:
                    continue
                with contextlib.suppress(BlockingIOError):  # it is open here, but its lock is another one's
                    fcntl.flock(int(name), fcntl.LOCK_EX | fcntl.LOCK_NB)  # of a lock that is held: nothing
                    inherited[device] = int(name)
            return inherited

    def _file(self, device: int) -> Path:
        return self.folder / f"device-{device}.lock"


class Lease:
    """Devices that are held until ``release``, or until the end of this process."""

    def __init__(self, devices: Sequence[int], held: Locks) -> None:
        self.devices = tuple(devices)
        self._held = held
        _LEASES.add(self)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of the lock files, in the order of ``devices``; none after the release.

        A process that was sent them keeps the devices until it closes them or ends, also after a release here. It must
        not unlock them (``LOCK_UN``): that would release the devices for all who share them.
        """
        return tuple(self._held.numbers)

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


def _is_locked(file: Path) -> bool:
    probe = Locks()
    try:
        free = probe.add_locked(file, 0)
    except FileNotFoundError:
        return False
    probe.close()
    return not free


def _listed(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or "none"


# Temporary folders are removed when the process that uses them has gone, also when it was killed. Each holds a lock
# file that is locked as long as that process lives. What has none that is locked is removed by whatever sweeps next:
# the zygotes of that process, or the next run on this host.

PREFIX = "aorta-tmp-"

#: Prefix of lock files in the folder of a run, one per process that uses it.
_LOCK = ".lock."

#: Suffix of a file beside a kept folder; the folder stays until the time of this file.
_KEPT = ".kept"

#: The folder of short symbolic links to longer paths.
SHORT = Path("/tmp")


class UsedFolder:
    """A folder that this process uses.

    Args:
        make: makes one whose name begins with ``PREFIX``, or finds the one that several processes share.

    Attributes:
        path: of the folder.
    """

    def __init__(self, make: Callable[[], Path]) -> None:
        self._locks = Locks()
        while True:
            self.path = make()
            lock = self.path / f"{_LOCK}{secrets.token_hex(4)}"
            lock.write_text("\n".join(_host()))
            try:
                locked = self._locks.add_locked(lock, 0)
            except OSError:
                locked = True  # no locks on this file system, so no sweep finds it unlocked
            # Another process may have taken this for a dead run's in the meantime.
            if locked and lock.exists():
                return
            self._locks.close()

    def close(self) -> None:
        """Remove it, but for what is kept, unless another process uses it as well."""
        self._locks.close()
        _sweep_folder(self.path)


def make_own(base: Path | None = None) -> Path:
    """An empty folder in ``base``, or in the temporary directory."""
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))


def sweep_folders(base: Path) -> None:
    """Remove what this user's dead runs have left."""
    try:
        entries = list(os.scandir(base))
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if not entry.name.startswith(PREFIX) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            if entry.is_symlink():
                remove_dangling(Path(entry.path))
            elif entry.is_dir():
                _sweep_folder(Path(entry.path))


def keep_folder(path: Path, seconds: float) -> None:
    """Have a folder within one that is used stay, also when that is not used any more."""
    marker = path.with_name(path.name + _KEPT)
    marker.touch()
    until = time.time() + seconds
    os.utime(marker, (until, until))


def remove_dangling(path: Path) -> None:
    """Remove a symbolic link that leads nowhere."""
    if path.is_symlink() and not path.exists():
        path.unlink(missing_ok=True)


def _host() -> list[str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return [socket.gethostname(), boot]


def _sweep_folder(folder: Path) -> None:
    held = Locks()
    try:
        locks = list(folder.glob(f"{_LOCK}*"))
        for lock in locks:
            if set(lock.read_text().split()).isdisjoint(_host()) or not held.add_locked(lock, 0):
                return
        if not locks:
            return
        for path in folder.iterdir():
            kept = path.with_name(path.name + _KEPT)
            if path.is_dir() and not (kept.exists() and time.time() < kept.stat().st_mtime):
                shutil.rmtree(path, ignore_errors=True)
                kept.unlink(missing_ok=True)
        left = list(folder.iterdir())
        if not any(map(Path.is_dir, left)):
            for path in left:
                path.unlink(missing_ok=True)
            folder.rmdir()
    except OSError:
        pass  # another process sweeps, too
    finally:
        held.close()
