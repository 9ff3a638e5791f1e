"""Temporary folders that are removed when the process that uses them has gone, also when it was killed.

Each holds a lock file that is locked as long as that process lives. What has none that is locked is removed by
whatever sweeps next: the zygotes of that process, or the next run on this host.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_aorta.runtime.resources.leases import Locks

PREFIX = "aorta-tmp-"

#: In the folder of a run, one per process that uses it.
_LOCK = ".lock."

#: Beside what stays until the time of this file.
_KEPT = ".kept"

#: Where a longer path gets a short name, which is a symbolic link.
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


def sweep(base: Path) -> None:
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


def keep(path: Path, seconds: float) -> None:
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
