"""Ctrl-C ends every wait, and damages nothing.

Long waits go in short pieces: CPython looks for signals, gives up its lock (the GIL), and blocks. A signal between
these steps interrupts no system call, so a main thread that blocks without a limit handles it only when the wait is
over for another reason: on two loaded cores, one Ctrl-C in 60 was lost so.

``SIGINT`` is deferred during an import, and while the main thread changes a worker's graph: Python runs signal handlers
wherever that thread is, and a KeyboardInterrupt in the middle of a change would leave a task half added, and a worker
that waits for it at its end.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: Seconds that a signal may have to wait.
PIECE = 1.0


def pieces(timeout: float | None) -> Iterator[float]:
    """Limits in seconds of waits that together take ``timeout``; without end for ``None``, at least one otherwise."""
    if timeout is None:
        yield from itertools.repeat(PIECE)
        return
    give_up = time.monotonic() + timeout
    left = timeout
    while left > PIECE:
        yield PIECE
        left = give_up - time.monotonic()
    yield max(0.0, left)


# The C functions: ``signal``'s wrappers convert to enumeration members, which takes twenty times as long as the rest.
_raw = importlib.import_module("_signal")
_SIGINT = int(signal.SIGINT)
_get_ident = threading.get_ident


class _SigintHold:
    def __init__(self) -> None:
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted: tuple[int, FrameType | None] | None = None
        self._main = threading.main_thread().ident
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._main = _get_ident()

    def piece(self) -> float:
        """Seconds that this thread may wait with SIGINT deferred."""
        return 0.1 if _get_ident() == self._main else PIECE

    def __enter__(self) -> None:
        if _get_ident() != self._main:
            return
        if self._depth == 0:
            self._noted = None
            handler = _raw.getsignal(_SIGINT)
            self._handler = handler if callable(handler) else None  # SIG_DFL, SIG_IGN, or one of C code
            if self._handler is not None:
                try:
                    _raw.signal(_SIGINT, self._note)
                except ValueError:  # the main thread of another interpreter
                    self._handler = None
        self._depth += 1  # once no interrupt can come in between

    def __exit__(self, *_: object) -> None:
        if _get_ident() != self._main:
            return
        # Never below 0: an interrupt that is raised at the end of ``released`` leaves fewer holds than there were.
        self._depth = max(0, self._depth - 1)
        if self._depth > 0:
            return
        handler, self._handler = self._handler, None
        if handler is not None:
            if _raw.getsignal(_SIGINT) == self._note:  # else other code has installed a handler, which stays
                _raw.signal(_SIGINT, handler)
            noted, self._noted = self._noted, None
            if noted is not None:
                handler(*noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Let interrupts through within a hold: around code of users, and around waits."""
        if _get_ident() != self._main or self._depth == 0:
            yield
            return
        depth, self._depth = self._depth, 1
        try:
            self.__exit__()
            yield
        finally:
            self.__enter__()
            self._depth = depth


#: A process has one main thread.
SIGINT_HELD = _SigintHold()


def wait_for(event: threading.Event, timeout: float | None) -> bool:
    """Wait for an event; whether it is set within ``timeout`` seconds.

    SIGINT is raised between pieces of the wait: within the Python code of ``threading``, it would leave a lock broken.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    while True:
        piece = SIGINT_HELD.piece()
        left = piece if give_up is None else max(0.0, min(piece, give_up - time.monotonic()))
        with SIGINT_HELD:
            if event.wait(left):
                return True
        if give_up is not None and time.monotonic() >= give_up:
            return False
