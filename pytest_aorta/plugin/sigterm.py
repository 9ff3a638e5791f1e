"""SIGTERM, which batch systems send before they kill: pytest ends as with Ctrl-C, in order and with its results."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

import pytest

from pytest_aorta.plugin.xdist_roles import is_worker

_PREPARED = pytest.StashKey[bool]()


class Terminated(KeyboardInterrupt):
    """Pytest was sent SIGTERM."""


def reason_of(error: BaseException) -> str:
    """What has interrupted pytest, for the records of the trials that it ends."""
    return "SIGTERM" if isinstance(error, Terminated) else type(error).__name__


def end_in_order_when_terminated(config: pytest.Config) -> None:
    """Handle SIGTERM until pytest ends, unless something else handles it.

    An xdist worker has no results to write: it ends at once when its controller does.
    """
    if _PREPARED in config.stash:
        return
    if is_worker(config):
        from pytest_aorta.runtime.process_tree import die_with_parent

        config.stash[_PREPARED] = True
        die_with_parent(os.getppid())  # execnet would wait five seconds for the test that runs
        return
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        config.stash[_PREPARED] = True
        signal.signal(signal.SIGTERM, _terminate)
        config.add_cleanup(_restore)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # pytest is ending already
    raise Terminated("SIGTERM")


def ignore_from_now_on() -> None:
    """At the end of pytest, when all is reported: end in order, with the exit status of the run."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.flush()


def _restore() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
