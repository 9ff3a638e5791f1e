"""Whether a process may still be forked after it has imported user code."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

#: Seconds that a native thread may need to end after ``join()`` has returned.
_SETTLE = 0.2

_GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def reasons_against_forking() -> list[str]:
    """What makes a fork of this process unsafe, as short phrases; empty when nothing does.

    A thread's locks and a GPU's context do not survive a fork. An OpenMP pool counts: after a fork, GNU OpenMP hangs in
    the child.
    """
    reasons = []
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names:
        reasons.append(f"started Python threads: {', '.join(sorted(names))}")
    if (native := native_threads()) > 0:
        reasons.append(f"started {native} native thread(s)")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        reasons.append("initialised a GPU")
    elif devices := open_gpu_devices():
        reasons.append(f"opened {', '.join(devices)}")
    return reasons


def native_threads() -> int:
    """How many threads of this process libraries have started that may hold a lock when it is forked.

    The pool of OpenBLAS does not count: its fork handler ends it, before each fork, until it is used again. It would be
    wrong to count the threads that OpenBLAS could have instead: after a fork, it has none.
    """
    if _native_threads() == 0:
        return 0
    _run_fork_handlers()
    give_up = time.monotonic() + _SETTLE
    while (found := _native_threads()) > 0 and time.monotonic() <= give_up:
        time.sleep(0.01)
    return found


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task")) - threading.active_count()


def _run_fork_handlers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    # It may hang in a handler of its own.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def open_gpu_devices() -> list[str]:
    """Files of GPU drivers that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith(_GPU_DEVICES):
            found.add(target)
    return sorted(found)
