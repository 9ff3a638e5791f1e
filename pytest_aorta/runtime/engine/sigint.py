"""Ctrl-C between two steps of the runtime, never within one.

Python runs signal handlers on the main thread, wherever that is. An exception in the middle of a turn would leave a
task half in the graph, and a worker that waits for it at its end.
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

# Without ``signal``'s making of enumeration members, which takes twenty times as long as the rest.
_raw = importlib.import_module("_signal")
_get_handler, _set_handler = _raw.getsignal, _raw.signal


class Interrupts:
    """SIGINT of the main thread. On other threads, which it never interrupts, all of this does nothing."""

    def __init__(self) -> None:
        self._before: Handler | None = None
        self._main: int | None = None
        self._held = 0
        self._waiting: tuple[int, FrameType | None] | None = None

    def begin(self) -> bool:
        """Take the handler's place, if nobody has yet, and put interrupts off until ``end`` is given the result."""
        main = threading.main_thread().ident
        if _get_ident() != main:
            return False
        before = _get_handler(_SIGINT)
        if not callable(before) or before == self._handle:  # or it ends the process, or is ignored
            self.hold()
            return False
        self._before, self._main, self._held = before, main, 1
        try:
            _set_handler(_SIGINT, self._handle)
        except ValueError:  # the main thread of another interpreter
            self._before, self._main, self._held = None, None, 0
            return False
        return True

    def end(self, mine: bool) -> None:
        """The reverse of ``begin``; raises what was put off."""
        if not mine:
            self.release()
            return
        self._held += 1
        before = self._before
        assert before is not None
        if _get_handler(_SIGINT) == self._handle:  # nobody else has taken it
            _set_handler(_SIGINT, before)
        self._before = self._main = None
        self._held = 0
        self._deliver(before)

    def hold(self) -> None:
        """Put interrupts off until ``release``. Nests."""
        if self._main is not None and _get_ident() == self._main:
            self._held += 1

    def release(self) -> None:
        """The reverse of ``hold``; raises what was put off."""
        if self._main is not None and _get_ident() == self._main:
            self._held -= 1
            if self._waiting is not None and not self._held and self._before is not None:
                self._deliver(self._before)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Put interrupts off within, and raise them at the end: for imports.

        One that is interrupted may fail with something else (``__set_name__`` of a dataclass's field, before Python
        3.12), and where it executes text, as a dataclass does, Python ends with SIGINT's status though it was caught.
        """
        mine = self.begin()
        try:
            yield
        finally:
            self.end(mine)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Somewhere in between, where one does no harm."""
        try:
            self.release()
            yield
        finally:
            self.hold()

    def _deliver(self, handler: Handler) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            handler(*waiting)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # The second one comes from somebody who has waited long enough.
        if self._held and self._waiting is None:
            self._waiting = number, frame
        else:
            self._waiting = None
            # Without one, somebody has put us back who had found us here.
            (self._before or signal.default_int_handler)(number, frame)


#: There is one main thread.
INTERRUPTS = Interrupts()
