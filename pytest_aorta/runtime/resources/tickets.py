"""Tickets: requests for devices that wait, in the order in which their patience ends."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from pytest_aorta.runtime.resources.file_locks import RELEASES, Locks, is_locked

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
