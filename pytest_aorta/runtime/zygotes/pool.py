"""Warm zygotes and their branches, lent to one user at a time; at most a bounded number of zygotes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future

from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError, ZygoteUnwanted
from pytest_aorta.runtime.zygotes.zygote_spec import ZygoteSpec

#: Warm zygotes per pool. One that has imported torch holds some 200 MB; its branches share them.
MAX_WARM = 8


class _Entry:
    """A zygote with its branches."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.root: Zygote | None = None
        self.started: Future[Zygote] = Future()
        self.idle: list[Server] = []
        #: How many have acquired, or wait for, one of these servers.
        self.users = 0
        #: How many of those who wait for its start do not want it any more.
        self.gave_up = 0

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for its start any more."""
        return self.gave_up >= self.users > 0

    def has_died(self) -> bool:
        """Whether its zygote was ready once, and is gone."""
        return (
            self.root is not None
            and self.started.done()
            and not self.root.against_forking  # that one is gone on purpose
            and not self.root.alive()
        )

    def unused(self) -> list[Server]:
        """What nobody uses, and may therefore be closed; the zygote first, as its end is theirs."""
        return sorted(self.idle, key=lambda server: server is not self.root)


class ZygotePool:
    """Zygotes by their specification's key; beyond the bound, the least recently used unused one is closed.

    Any thread may call anything. The lock is held for moments only; imports, forks and endings happen outside it.
    """

    def __init__(self, limit: int = MAX_WARM) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lent: dict[Server, _Entry] = {}
        self._closed = False

    def acquire(self, spec: ZygoteSpec) -> Server:
        """A server of tasks of ``spec``, for the caller alone until it is released.

        Its zygote is started when there is none, and branched when all are in use. One that must not be forked is only
        asked for its ``info`` and ``against_forking``, so everybody gets the same, and need not release it. A ``fresh``
        one serves one task and is then gone, so everybody gets a new one.

        Raises:
            ZygoteError: it cannot be started or prepared (then everybody who waits for it is told), or is gone.
        """
        key = spec.key()
        surplus: list[Server] = []
        with self._lock:
            self._check_open()
            entry = None if spec.fresh else self._entries.get(key)
            if entry is not None and entry.has_died():
                surplus += self._forget(entry)
                entry = None
            start = entry is None
            if entry is None:
                entry = _Entry(key)
                if not spec.fresh:
                    surplus += self._make_room()
                    self._entries[key] = entry
            else:
                self._entries.move_to_end(key)
            entry.users += 1
        try:
            return self._start(entry, spec, surplus) if start else self._take(entry)
        except BaseException:
            with self._lock:
                entry.users -= 1
            raise

    def _start(self, entry: _Entry, spec: ZygoteSpec, surplus: list[Server]) -> Server:
        try:
            _close(surplus)
            root = Zygote(spec)
            with self._lock:
                entry.root = root
                self._lent[root] = entry  # so that ``close`` can end it before it is ready
                closed = self._closed or entry.unwanted
            if closed:
                root.end()
            root.wait_ready()
        except BaseException as error:
            with self._lock:
                self._forget(entry)
                if entry.root is not None:
                    self._lent.pop(entry.root, None)
            if entry.root is not None:
                entry.root.close()
            told = error if isinstance(error, ZygoteError) else ZygoteError(f"its start was interrupted: {error!r}")
            if told is error and entry.unwanted:
                told = ZygoteUnwanted("nobody waited for its start any more")
            entry.started.set_exception(told)
            if isinstance(told, ZygoteUnwanted):
                raise told from None
            raise
        if root.against_forking:
            with self._lock:
                self._take_from(root)
        entry.started.set_result(root)
        return root

    def _take(self, entry: _Entry) -> Server:
        try:
            root = entry.started.result()
        except ZygoteError as error:
            raise error.again() from None
        server: Server | None = None
        dead: list[Server] = []
        with self._lock:
            self._check_open()
            if root.against_forking:
                entry.users -= 1
                return root
            while server is None and entry.idle:
                candidate = entry.idle.pop()
                if candidate.alive():
                    server = candidate
                    self._lent[server] = entry
                else:
                    dead.append(candidate)
        _close(dead)
        if server is None:
            server = root.branch()
            with self._lock:
                self._lent[server] = entry
        return server

    def _take_from(self, server: Server) -> _Entry | None:
        entry = self._lent.pop(server, None)
        if entry is not None:
            entry.users -= 1
        return entry

    def release(self, server: Server) -> None:
        """Give back what was acquired; a task that still runs there is ended, and a dead server forgotten."""
        with self._lock:
            if server not in self._lent:
                return
        fit = server.abandon_task() and server.alive() and not server.spec.fresh
        surplus = [server]
        with self._lock:
            entry = self._take_from(server)
            if entry is None:
                return  # released by two at a time
            if fit and self._entries.get(entry.key) is entry:
                entry.idle.append(server)
                surplus = []
            elif server is entry.root:
                surplus += self._forget(entry)
        _close(surplus)

    def discard(self, server: Server) -> None:
        """Close what was acquired and forget it: a branch alone, a zygote with all its branches."""
        with self._lock:
            entry = self._take_from(server) or self._entries.get(server.spec.key())
            others = self._forget(entry) if entry is not None and entry.root is server else []
        _close([server, *others])

    def abandon(self, spec: ZygoteSpec) -> None:
        """One of those who wait in ``acquire`` does not want it any more; once nobody does, its start is ended."""
        with self._lock:
            entry = self._entries.get(spec.key())
            if entry is None or entry.started.done():
                return
            entry.gave_up += 1
            root = entry.root if entry.unwanted else None
        if root is not None:
            root.hang_up()
            root.end()

    def _make_room(self) -> list[Server]:
        surplus = len(self._entries) - self.limit + 1
        unused = [entry for entry in self._entries.values() if entry.users == 0]
        return [server for entry in unused[: max(0, surplus)] for server in self._forget(entry)]

    def _forget(self, entry: _Entry) -> list[Server]:
        """No longer give it to anybody; what is to be closed now, outside the lock. The rest, when it is released."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        unused, entry.idle = entry.unused(), []
        return unused

    def _check_open(self) -> None:
        if self._closed:
            raise ZygoteError("the zygotes have been closed")

    def close(self) -> None:
        """Close all of them, for good. Whoever uses one is told by ``ZygoteError``, and should release it as ever."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            used = {*self._lent, *(entry.root for entry in entries if entry.root is not None)}
            unused = [server for entry in entries for server in self._forget(entry)]
        for server in used:
            server.hang_up()
        for server in used:
            server.end()
        _close(unused)


def _close(servers: Iterable[Server]) -> None:
    for server in servers:
        with contextlib.suppress(OSError):
            server.close()
