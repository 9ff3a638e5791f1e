"""Orphans of tasks: this process adopts them, so that they end with it, and has to collect those that end before."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys

from pytest_aorta.runtime.process_tree import children_of_self

#: Children that have ended before orphans are looked for among them, and tasks between two looks.
MANY = 256

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Orphans:
    """Collects those that have ended, once there are many: to tell them from the children of tasks takes a while."""

    def __init__(self) -> None:
        self._calls = 0

    def collect(self) -> None:
        """To be called after each task. Costs a system call where no child has ended."""
        try:
            if os.waitid(os.P_ALL, 0, _ENDED) is None:
                return
        except ChildProcessError:
            return
        self._calls += 1
        if self._calls % MANY == 0:
            collect_orphans()


def collect_orphans() -> None:
    """Collect children that have ended and that no ``Popen`` stands for, if there are many.

    The exit status of a process is taken once. That of a ``Popen``, which a later task may ask for, is left alone; that
    of a process that was started by ``os.fork`` and not waited for is lost.
    """
    ended = [pid for pid in children_of_self() if _has_ended(pid)]
    if len(ended) < MANY:
        return
    own = _pids_of_popen()
    if own is not None:
        for pid in set(ended) - own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, _ENDED) is not None
    except ChildProcessError:  # collected by another thread
        return False


def _pids_of_popen() -> set[int] | None:
    """Of processes that ``subprocess`` and ``multiprocessing`` have started; ``None`` while one is being started."""
    classes: tuple[type, ...] = (subprocess.Popen,)
    if "multiprocessing.popen_fork" in sys.modules:
        classes += (sys.modules["multiprocessing.popen_fork"].Popen,)
    # By type: what ``isinstance`` asks for may be computed by the object.
    pids = [vars(each).get("pid") for each in gc.get_objects() if issubclass(type(each), classes)]
    return None if None in pids else {pid for pid in pids if pid is not None}
