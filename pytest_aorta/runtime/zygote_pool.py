"""Zygotes that several tasks share: branches, which have prepared further, and a pool of those that are warm."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pytest_aorta.runtime.zygote import (
    LOOK,
    Seed,
    Server,
    StartLimits,
    Zygote,
    ZygoteError,
    ZygoteSpec,
    ZygoteUnwanted,
    exit_text,
)

#: Seconds that preparing a branch further may take.
EXTENSION_TIMEOUT = 60.0

#: Seconds that a zygote may take to notice a branch's death and to end what the branch has left.
_FATE_TIMEOUT = 10.0


_LIMITS = StartLimits()


class ExtensionFailed(ZygoteError):
    """A branch could not be prepared further; its zygote is as it was.

    Attributes:
        refused: what the function returned that was to do it, if it did.
    """

    refused: Mapping[str, Any] = MappingProxyType({})


class Branch(Server):
    """A fork of a zygote that has prepared further, and serves tasks of its own beside it. Ends with the zygote.

    Args:
        zygote: it is ready.
        extension: JSON value for ``ZygoteSpec.extend``.
        limit: seconds that this may take.
        wanted: asked again and again; a branch that is not wanted any more is ended.

    Raises:
        ExtensionFailed: ``extend`` raised, crashed, refused, did not end in time, or has made forks unsafe.
        ZygoteUnwanted: it was not wanted any more.
        ZygoteError: the zygote is gone.
    """

    def __init__(
        self,
        zygote: Zygote,
        extension: Any,
        limit: float = EXTENSION_TIMEOUT,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.zygote = zygote
        self.spec, self.info, self.against_forking = zygote.spec, zygote.info, []
        self.extension = extension
        files = dict.fromkeys(("stdout", "stderr", "stacks"))
        self._task = zygote._start({"extension": extension, **files, "descriptors": 0})
        self._asking = threading.Lock()
        self.control = self._task.open_channel()
        try:
            self._extend(limit, wanted)
        except BaseException:
            self.close()
            raise

    def _extend(self, limit: float, wanted: Callable[[], bool]) -> None:
        give_up = time.monotonic() + limit
        while True:
            if not wanted():
                raise ZygoteUnwanted("its start was cancelled")
            if time.monotonic() > give_up:
                raise ExtensionFailed(f"not done after {limit:g} s")
            try:
                report = self._task.next_message(time.monotonic() + LOOK)
                break
            except TimeoutError:
                continue
        if report is None:
            raise ExtensionFailed(str(self.death()).partition("\n")[0])
        if report["type"] == "failed":
            error = report["error"]
            raise ExtensionFailed(f"{error['type']}: {error['message']}", error=error)
        if report["refused"] or report["against_forking"]:
            failed = ExtensionFailed(", ".join(report["against_forking"]) or "refused")
            failed.refused = report["refused"]
            raise failed

    @property
    def pid(self) -> int:
        return self._task.pid

    def wake(self) -> None:
        self.zygote.wake()
        with contextlib.suppress(OSError, ZygoteError):
            os.kill(self.pid, signal.SIGCONT)

    def alive(self) -> bool:
        with self._asking:
            return not self._task.is_over()

    def death(self) -> ZygoteError:
        with self._asking:  # the threads of its tasks
            try:
                while self._task.ended is None:
                    self._task.next_message(time.monotonic() + _FATE_TIMEOUT)
                code = self._task.ended.returncode
            except TimeoutError:
                code = None
            except ZygoteError as error:
                return error
        how = "does not answer" if code is None else f"died with {exit_text(code)}"
        return ZygoteError(f"the zygote's branch {how}\n{self.zygote.output()}".rstrip(), returncode=code)

    def close(self) -> None:
        self._task.kill(0.0)
        self._task.close()


class _Entry:
    def __init__(self) -> None:
        self.starting = threading.Lock()
        self.zygote: Zygote | None = None
        self.error: ZygoteError | None = None
        self.users = 0

    def has_died(self) -> bool:
        return self.zygote is not None and not self.zygote.against_forking and not self.zygote.alive()


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
        wanted: Callable[[], bool] = lambda: True,
    ) -> Zygote:
        """A zygote, for all who ask for it; started by the first of them. Stays at least until it is released.

        One that must not be forked has gone already; its ``info`` and ``against_forking`` say what is known.

        Args:
            spec: what it is started from.
            limits: of its start.
            wanted: asked again and again, and must answer quickly; a start that is not wanted any more is ended.

        Raises:
            ZygoteTimeout: its start took too long.
            ZygoteUnwanted: it was not wanted any more.
            ZygoteError: it cannot be started or prepared (then all who wait for it get the error).
        """
        key = spec.key()
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            entry.users += 1
            surplus = self._surplus()
        for other in surplus:
            other.close()
        try:
            while not entry.starting.acquire(timeout=LOOK):
                self._check(wanted)
            try:
                self._check(wanted)
                if entry.has_died():
                    assert entry.zygote is not None
                    entry.zygote.death()  # tasks still waiting learn how it died, not that it was closed
                    entry.zygote.close()
                    entry.zygote = None
                if entry.error is not None:
                    raise entry.error
                if entry.zygote is None:
                    entry.zygote = self._start(spec, limits, wanted)
                return entry.zygote
            except ZygoteUnwanted:
                raise  # who waits starts it
            except ZygoteError as error:
                entry.error = error
                raise
            finally:
                entry.starting.release()
        except BaseException:
            with self._lock:
                entry.users -= 1
                if entry.zygote is None and (entry.error or not entry.users) and self._entries.get(key) is entry:
                    del self._entries[key]
            raise

    def _check(self, wanted: Callable[[], bool]) -> None:
        if self._closed:
            raise ZygoteError("the zygotes have been closed")
        if not wanted():
            raise ZygoteUnwanted("its start was cancelled")

    def _start(self, spec: ZygoteSpec, limits: StartLimits, wanted: Callable[[], bool]) -> Zygote:
        with self._lock:
            seed = self._seed if self._seed is not None and self._seed.fits(spec) else None
            if seed is not None:
                seed.used = True
        zygote = Zygote(spec, seed)
        with self._lock:
            self._starting.add(zygote)
        try:
            zygote.wait_ready(limits, lambda: not self._closed and wanted())
        except BaseException:
            zygote.close()
            raise
        finally:
            with self._lock:
                self._starting.discard(zygote)
        return zygote

    def _surplus(self) -> list[Zygote]:
        unused = [(key, entry.zygote) for key, entry in self._entries.items() if entry.users == 0]
        surplus = unused[: max(0, len(self._entries) - self._limit)]
        for key, _ in surplus:
            del self._entries[key]
        return [zygote for _, zygote in surplus if zygote is not None]

    def release(self, zygote: Zygote) -> None:
        """Give up one use; a zygote without uses may be closed to make room."""
        with self._lock:
            entry = self._entries.get(zygote.spec.key())
            if entry is not None and entry.zygote is zygote:
                entry.users -= 1

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
