"""SIGTERM, which batch systems send before they kill: pytest ends as with Ctrl-C, in order and with its results."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn

import pytest

_PREPARED = pytest.StashKey[bool]()


class Terminated(KeyboardInterrupt):
    """Pytest was sent SIGTERM."""


def reason_of(error: BaseException) -> str:
    """What has interrupted pytest, for the records of the trials that it ends."""
    return "SIGTERM" if isinstance(error, Terminated) else type(error).__name__


def end_in_order_when_terminated(config: pytest.Config) -> None:
    """From now on, and until pytest ends; unless somebody has an idea of his own of what SIGTERM should do.

    Not in an xdist worker: its controller writes what there is to write.
    """
    if _PREPARED in config.stash or hasattr(config, "workerinput"):
        return
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        config.stash[_PREPARED] = True
        signal.signal(signal.SIGTERM, _terminate)
        config.add_cleanup(_forget)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ending in order is all that another one could ask for
    raise Terminated("SIGTERM")


def _forget() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
