"""Long waits in short pieces, so that Ctrl-C always ends them.

CPython looks for signals, gives up its lock (the GIL), and blocks. A signal between these steps interrupts no system
call, so a main thread that blocks without a limit handles it only when the wait is over for another reason: on two
loaded cores, one Ctrl-C in 60 was lost so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

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


def wait_bounded(wait: Callable[[float], bool], timeout: float | None = None) -> bool:
    """Call ``wait``, which takes a limit in seconds, until it returns true or ``timeout`` has passed; its result."""
    return any(map(wait, pieces(timeout)))
