"""Which items of recipes have begun and ended in this run, in all of its processes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import Literal

import pytest

#: Seconds between two readings of the states of items of other processes.
_INTERVAL = 0.05

#: Seconds in which no process runs an item, after which none will.
_PATIENCE = 5.0

ItemState = Literal["to come", "running", "passed", "failed", "skipped", "lost"]


class ItemStates:
    """How far items are. With several processes each has a file, which is locked as long as the item runs.

    So the kernel says when a process dies with an item.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, ItemState] = {}
        self._open: dict[str, int] = {}
        self._busy: int | None = None
        self._patience = _PATIENCE

    @property
    def is_shared(self) -> bool:
        """Whether there are several processes."""
        return self._folder is not None

    def begin(self, nodeid: str) -> None:
        """An item of this process begins."""
        self._known[nodeid] = "running"
        if self._folder is not None and nodeid not in self._open:
            path = self._file(nodeid)
            temporary = path.with_suffix(f".{os.getpid()}")
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            temporary.rename(path)  # with the lock: without one it would look as if the item were over
            self._open[nodeid] = fd

    def end(self, nodeid: str, state: ItemState) -> None:
        """An item of this process is over."""
        self._known[nodeid] = state
        fd = self._open.pop(nodeid, None)
        if fd is not None:
            os.write(fd, state.encode())
            os.close(fd)

    def of(self, nodeid: str) -> ItemState:
        """How far an item is; ``lost`` when its process has died."""
        if nodeid in self._known or self._folder is None:
            return self._known.get(nodeid, "to come")
        try:
            with self._file(nodeid).open("rb") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                written = file.read().decode()
                return next((each for each in _ENDS if each == written), "lost")
        except FileNotFoundError:
            return "to come"
        return "running"

    def set_busy(self, busy: bool) -> None:
        """Whether this process runs an item now, of a recipe or not.

        One that has no item is not busy: xdist may have none for it, or give it its last one only at the end.
        """
        if self._folder is None:
            return
        if self._busy is None:
            name = self._folder / f"busy-{os.getpid()}"
            self._busy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._busy, fcntl.LOCK_EX if busy else fcntl.LOCK_UN)

    def wait(self, nodeid: str) -> None:
        """Block until an item that another process runs is over, or no process is left that may run it.

        That is when all of them wait like this one, have nothing to run, or have ended: by ``-x``, or because xdist
        has given an item to the process that waits for it.
        """
        if self._folder is None:
            return
        self.set_busy(False)
        try:
            give_up = time.monotonic() + self._patience
            while (state := self.of(nodeid)) in ("to come", "running"):
                if state == "running" or self._others_are_busy():
                    give_up = time.monotonic() + _PATIENCE
                elif time.monotonic() > give_up:
                    self._patience = 0.0
                    return
                time.sleep(_INTERVAL)
        finally:
            self.set_busy(True)

    def _others_are_busy(self) -> bool:
        assert self._folder is not None
        for path in self._folder.glob("busy-*"):
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        return False

    def close(self) -> None:
        """This process runs no more items."""
        if self._busy is not None:
            os.close(self._busy)
            self._busy = None

    def _file(self, nodeid: str) -> Path:
        assert self._folder is not None
        return self._folder / f"item-{hashlib.sha256(nodeid.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


_ENDS: tuple[ItemState, ...] = ("passed", "failed", "skipped")


class ItemStateHooks:
    """Notes the states of items by pytest's hooks, which are called whatever keeps an item from running."""

    def __init__(self, states: ItemStates) -> None:
        self.states = states
        self.nodeids: set[str] = set()
        self.selected: frozenset[str] = frozenset()
        self._worst: dict[str, ItemState] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """All items are known, and their order."""
        self.selected = frozenset(item.nodeid for item in session.items)

    def pytest_sessionfinish(self) -> None:
        """No item comes any more."""
        self.states.close()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """It begins."""
        self.states.set_busy(True)
        if nodeid in self.nodeids:
            self._worst[nodeid] = "passed"
            self.states.begin(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """How one of its phases has ended."""
        if report.nodeid not in self._worst or hasattr(report, "wasxfail"):
            return
        if report.failed or (report.skipped and self._worst[report.nodeid] == "passed"):
            self._worst[report.nodeid] = "failed" if report.failed else "skipped"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It is over."""
        if nodeid in self._worst:
            self.states.end(nodeid, self._worst.pop(nodeid))
        self.states.set_busy(False)
