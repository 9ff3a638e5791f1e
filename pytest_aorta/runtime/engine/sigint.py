"""SIGINT between two steps of the runtime, never within one.

Python runs signal handlers on the main thread, wherever that is. A KeyboardInterrupt in the middle of a change to the
graph would leave a task half added, and a worker that waits for it at its end.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_SIGINT = int(signal.SIGINT)
_get_ident = threading.get_ident

# The C functions: ``signal``'s wrappers convert to enumeration members, which takes twenty times as long as the rest.
_raw = importlib.import_module("_signal")
_get_handler, _set_handler = _raw.getsignal, _raw.signal


class SigintGuard:
    """Defers SIGINT on the main thread. Other threads are never interrupted; for them, every method does nothing.

    ``begin`` and ``end`` install and remove a handler. Between them the main thread is interrupted only where it has
    released every hold, as around a blocking call.
    """

    def __init__(self) -> None:
        #: The handler that ours has replaced, and the thread that has installed ours; ``None`` while it is not.
        self._replaced: Handler | None = None
        self._thread: int | None = None
        self._holds = 0
        self._deferred: tuple[int, FrameType | None] | None = None

    def begin(self) -> bool:
        """Hold, and install the handler unless it is; ``end`` takes the result."""
        main = threading.main_thread().ident
        if _get_ident() != main:
            return False
        handler = _get_handler(_SIGINT)
        if not callable(handler) or handler == self._handle:  # SIG_DFL, SIG_IGN, one of C code, or ours
            self.hold()
            return False
        self._replaced, self._thread, self._holds = handler, main, 1
        try:
            _set_handler(_SIGINT, self._handle)
        except ValueError:  # the main thread of another interpreter
            self._replaced, self._thread, self._holds = None, None, 0
            return False
        return True

    def end(self, installed: bool) -> None:
        """The reverse of ``begin``; a deferred interrupt is raised here."""
        if not installed:
            self.release()
            return
        self._holds += 1
        replaced = self._replaced
        assert replaced is not None
        if _get_handler(_SIGINT) == self._handle:  # else other code has installed a handler meanwhile, which stays
            _set_handler(_SIGINT, replaced)
        self._replaced = self._thread = None
        self._holds = 0
        self._deliver(replaced)

    def hold(self) -> None:
        """Defer interrupts until ``release``. Nests."""
        if self._thread is not None and _get_ident() == self._thread:
            self._holds += 1

    def release(self) -> None:
        """The reverse of ``hold``; a deferred interrupt is raised with the last one."""
        if self._thread is not None and _get_ident() == self._thread:
            self._holds -= 1
            if self._deferred is not None and not self._holds and self._replaced is not None:
                self._deliver(self._replaced)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer interrupts within, and raise them at the end: for imports.

        An interrupted import may fail with another error (``__set_name__`` of a dataclass's field, before Python
        3.12). Where it executes generated code, as a dataclass does, Python exits with SIGINT's status although the
        interrupt was caught.
        """
        installed = self.begin()
        try:
            yield
        finally:
            self.end(installed)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let interrupts through within a hold."""
        try:
            self.release()
            yield
        finally:
            self.hold()

    def _deliver(self, handler: Handler) -> None:
        if self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            handler(*deferred)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holds and self._deferred is None:
            self._deferred = number, frame
            return
        # The second interrupt gets through, in case the first one waits for something that never ends.
        self._deferred = None
        # Without a replaced handler, other code has installed ours again after ``end``.
        (self._replaced or signal.default_int_handler)(number, frame)


#: A process has one main thread.
SIGINT_GUARD = SigintGuard()
