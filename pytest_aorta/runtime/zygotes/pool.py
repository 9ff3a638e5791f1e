"""Warm zygotes and their branches, lent to one user at a time; at most a bounded number of zygotes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from pytest_aorta.runtime.zygotes.branch import EXTENSION_TIMEOUT, Branch, start_branch
from pytest_aorta.runtime.zygotes.server import Server
from pytest_aorta.runtime.zygotes.zygote import Zygote
from pytest_aorta.runtime.zygotes.zygote_error import ZygoteError, ZygoteUnwanted
from pytest_aorta.runtime.zygotes.zygote_spec import StartLimits, ZygoteSpec

#: Warm zygotes per pool. One that has imported torch holds some 200 MB; its branches share them.
MAX_WARM = 8


class _Entry:
    """A zygote with its branches."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.root: Zygote | None = None
        self.started: Future[Zygote] = Future()
        self.idle: list[Server] = []
        #: Callers that have acquired, or wait for, one of these servers.
        self.users = 0
        #: Those of them that wait for its start and do not want it any more.
        self.gave_up = 0

    @property
    def unwanted(self) -> bool:
        """Whether none of them waits for its start any more."""
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
        """What is not in use, and may therefore be closed; the zygote first, as its end is theirs."""
        return sorted(self.idle, key=lambda server: server is not self.root)

    def shared(self) -> list[Server]:
        """Its zygote, where all callers have that and none releases it."""
        return [self.root] if self.root is not None and self.started.done() and _is_shared(self.root) else []


class ZygotePool:
    """Zygotes by their specification's key; beyond the bound, the least recently used unused one is closed.

    Any thread may call any method. The lock is held for moments only; imports, forks and endings happen outside it.
    """

    def __init__(self, limit: int = MAX_WARM) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lent: dict[Server, _Entry] = {}
        self._closed = False

    def acquire(
        self,
        spec: ZygoteSpec,
        limits: StartLimits = StartLimits(),  # noqa: B008  (frozen)
        extension: Any = None,
        extension_limit: float = EXTENSION_TIMEOUT,
    ) -> Server:
        """A server of tasks of ``spec``, for the caller alone until it is released.

        With an ``extension``: a branch that has been prepared further with it, so that the zygote stays as it was. This
        may take ``extension_limit`` seconds.

        Its zygote is started when there is none, and branched when all are in use. One that must not be forked is only
        asked for its ``info`` and ``against_forking``, so all callers get the same, and need not release it; as they do
        of one that is ``concurrent``. A
        ``fresh`` one serves one task and is then gone, so each caller gets a new one. ``limits`` count if it is this
        call that starts the zygote.

        Raises:
            ZygoteTimeout: its start took too long.
            ZygoteError: it cannot be started or prepared (then all who wait for it get the error), or is gone.
            ExtensionFailed: it cannot be prepared further.
        """
        entry, surplus = self._join(spec)
        try:
            if surplus is not None:
                root = self._start(entry, spec, limits, surplus)
                if extension is None or root.against_forking:
                    return root
                with self._lock:
                    del self._lent[root]
                    entry.idle.append(root)
            return self._take(entry, extension, extension_limit)
        except BaseException:
            with self._lock:
                entry.users -= 1
            raise

    def _join(self, spec: ZygoteSpec) -> tuple[_Entry, list[Server] | None]:
        """An entry with one more user; of a new one, whose zygote is to be started, also what to close before."""
        key = spec.key()
        with self._lock:
            self._check_open()
            entry = None if spec.fresh else self._entries.get(key)
            surplus: list[Server] | None = None
            if entry is None or entry.has_died():
                surplus = [] if entry is None else [*self._forget(entry), *entry.shared()]
                entry = _Entry(key)
                if not spec.fresh:
                    surplus += self._make_room()
                    self._entries[key] = entry
            else:
                self._entries.move_to_end(key)
            entry.users += 1
            return entry, surplus

    def _start(self, entry: _Entry, spec: ZygoteSpec, limits: StartLimits, surplus: list[Server]) -> Server:
        try:
            _close(surplus)
            root = self._launch(entry, spec, limits)
        except BaseException as error:
            self._forget_failed(entry)
            if not isinstance(error, ZygoteError):
                entry.started.set_exception(ZygoteError(f"its start was interrupted: {error!r}"))
                raise
            failure = ZygoteUnwanted("its start was cancelled") if entry.unwanted else error
            entry.started.set_exception(failure)
            if failure is error:
                raise
            raise failure from None
        if _is_shared(root):
            with self._lock:
                self._take_from(root)
        entry.started.set_result(root)
        return root

    def _launch(self, entry: _Entry, spec: ZygoteSpec, limits: StartLimits) -> Zygote:
        root = Zygote(spec)
        with self._lock:
            entry.root = root
            self._lent[root] = entry  # so that ``close`` can end it before it is ready
            unwanted = self._closed or entry.unwanted
        if unwanted:
            root.end()
        root.wait_ready(limits)
        return root

    def _forget_failed(self, entry: _Entry) -> None:
        with self._lock:
            self._forget(entry)
            if entry.root is not None:
                self._lent.pop(entry.root, None)
        if entry.root is not None:
            entry.root.close()

    def _take(self, entry: _Entry, extension: Any, limit: float) -> Server:
        try:
            root = entry.started.result()
        except ZygoteError as error:
            raise error.again() from None
        if _is_shared(root):
            with self._lock:
                self._check_open()
                entry.users -= 1
            return root
        server = self._take_idle(entry, extension)
        return self._branch(entry, root, extension, limit) if server is None else server

    def _branch(self, entry: _Entry, root: Zygote, extension: Any, limit: float) -> Branch:
        branch = start_branch(root, extension)
        with self._lock:
            self._lent[branch] = entry  # so that ``close`` can end it
        if extension is not None:
            try:
                branch.wait_extended(limit)
            except BaseException:
                with self._lock:
                    self._lent.pop(branch, None)
                raise
        return branch

    def _take_idle(self, entry: _Entry, extension: Any) -> Server | None:
        """An unused server of the entry, prepared like that; those that have died meanwhile are closed."""
        server: Server | None = None
        dead: list[Server] = []
        with self._lock:
            self._check_open()
            for candidate in [it for it in reversed(entry.idle) if it.extension == extension]:
                entry.idle.remove(candidate)
                if candidate.alive():
                    server = candidate
                    self._lent[server] = entry
                    break
                dead.append(candidate)
        _close(dead)
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
        """One caller that waits in ``acquire`` does not want it any more; once none does, its start is ended.

        Branches that are being prepared further are ended at once: those who wait for one can do without it.
        """
        with self._lock:
            entry = self._entries.get(spec.key())
            if entry is None:
                return
            unwanted: list[Server] = []
            if not entry.started.done():
                entry.gave_up += 1
                unwanted += [entry.root] if entry.unwanted and entry.root is not None else []
            else:
                unwanted += [it for it, its in self._lent.items() if its is entry and it.extending]
        for server in unwanted:
            server.hang_up()
            server.end()

    def _make_room(self) -> list[Server]:
        surplus = len(self._entries) - self.limit + 1
        unused = [entry for entry in self._entries.values() if entry.users == 0]
        return [server for entry in unused[: max(0, surplus)] for server in self._forget(entry)]

    def _forget(self, entry: _Entry) -> list[Server]:
        """Give it to no further caller; what is to be closed now, outside the lock. The rest, when it is released."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        unused, entry.idle = entry.unused(), []
        return unused

    def _check_open(self) -> None:
        if self._closed:
            raise ZygoteError("the zygotes have been closed")

    def close(self) -> None:
        """Close all of them, for good. Their users get ``ZygoteError``, and should release them nevertheless."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            used = {*self._lent, *(entry.root for entry in entries if entry.root is not None)}
            unused = [server for entry in entries for server in (*self._forget(entry), *entry.shared())]
        for server in used:
            server.hang_up()
        for server in used:
            server.end()
        _close(unused)


def _is_shared(root: Zygote) -> bool:
    """Whether all callers get the same, and none has to release it."""
    return bool(root.against_forking) or root.spec.concurrent


def _close(servers: Iterable[Server]) -> None:
    for server in servers:
        with contextlib.suppress(OSError):
            server.close()
