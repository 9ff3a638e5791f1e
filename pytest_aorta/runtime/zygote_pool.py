"""A pool of warm zygotes that tasks share."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_aorta.runtime.zygote import (
    LOOK,
    Seed,
    StartLimits,
    Zygote,
    ZygoteError,
    ZygoteSpec,
    ZygoteUnwanted,
)

_LIMITS = StartLimits()


@dataclass
class _Entry:
    starting: threading.Lock = field(default_factory=threading.Lock)
    zygote: Zygote | None = None
    error: ZygoteError | None = None
    users: int = 0


class ZygotePool:
    """Zygotes by their specification's key; beyond the bound, the least recently used unused one is closed.

    Any thread may call any method. The lock is held for moments only; imports and endings happen outside it.

    Args:
        limit: zygotes that are kept warm. One that has imported torch holds some 200 MB.
        seed: what the first zygote of its environment grows from.
    """

    def __init__(self, limit: int = 8, seed: Seed | None = None) -> None:
        self._limit = limit
        self._seed = seed
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._starting: set[Zygote] = set()
        self._closed = False

    def acquire(
        self,
        spec: ZygoteSpec,
        limits: StartLimits = _LIMITS,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Zygote:
        """The zygote of a specification, started by the first caller; it stays at least until it is released.

        A zygote that must not be forked has ended already; read its ``info`` and ``against_forking``.

        Args:
            spec: what it is started from.
            limits: of its start.
            cancelled: asked again and again, and must answer quickly; a start that is cancelled is ended.

        Raises:
            ZygoteTimeout: its start took too long.
            ZygoteUnwanted: it was cancelled.
            ZygoteError: it cannot be started or prepared (then all who wait for it get the error).
        """
        key, surplus = spec.key, []
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            entry.users += 1
            for other, held in list(self._entries.items()):
                if held.users == 0 and len(self._entries) > self._limit:
                    surplus.append(self._entries.pop(other).zygote)
        for zygote in surplus:
            if zygote is not None:
                zygote.close()
        has_turn = False
        try:
            while not has_turn:
                has_turn = entry.starting.acquire(timeout=LOOK)
                if self._closed:
                    raise ZygoteError("the zygotes have been closed")
                if cancelled():
                    raise ZygoteUnwanted("its start was cancelled")
            zygote = entry.zygote
            if zygote is not None and not zygote.against_forking and not zygote.alive():
                zygote.death()  # tasks still waiting learn how it died, not that it was closed
                zygote.close()
                entry.zygote = None
            if entry.error is not None:
                raise entry.error
            if entry.zygote is None:
                entry.zygote = self._start(spec, limits, cancelled)
            return entry.zygote
        except BaseException as error:
            if isinstance(error, ZygoteError) and not isinstance(error, ZygoteUnwanted) and has_turn:
                entry.error = error  # of one that is cancelled: who waits starts it
            with self._lock:
                entry.users -= 1
                if entry.zygote is None and (entry.error or not entry.users) and self._entries.get(key) is entry:
                    del self._entries[key]
            raise
        finally:
            if has_turn:
                entry.starting.release()

    def _start(self, spec: ZygoteSpec, limits: StartLimits, cancelled: Callable[[], bool]) -> Zygote:
        with self._lock:
            seed = self._seed if self._seed is not None and self._seed.fits(spec) else None
            if seed is not None:
                seed.used = True
        zygote = Zygote(spec, seed)
        with self._lock:
            self._starting.add(zygote)
        try:
            zygote.wait_ready(limits, lambda: self._closed or cancelled())
        except BaseException:
            zygote.close()
            raise
        finally:
            with self._lock:
                self._starting.discard(zygote)
        return zygote

    def release(self, zygote: Zygote) -> None:
        """Give up one use; a zygote without uses may be closed to make room."""
        with self._lock:
            entry = self._entries.get(zygote.spec.key)
            if entry is not None and entry.zygote is zygote:
                entry.users -= 1

    def discard(self, spec: ZygoteSpec) -> None:
        """Close a zygote that nobody will ask for again; one in use stays until the pool is closed."""
        with self._lock:
            entry = self._entries.get(spec.key)
            if entry is None or entry.users or entry.zygote is None:
                return
            del self._entries[spec.key]
        entry.zygote.close()

    def close(self) -> None:
        """Close all of them, for good. Tasks that still run end with ``ZygoteError``."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            self._entries.clear()
            zygotes = {*self._starting, *(entry.zygote for entry in entries if entry.zygote is not None)}
        if self._seed is not None:
            self._seed.close()
        for zygote in zygotes:
            zygote.hang_up()
        for zygote in zygotes:
            with contextlib.suppress(OSError):
                zygote.close()
