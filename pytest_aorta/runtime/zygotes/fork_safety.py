"""Whether a process may still be forked after it has imported user code."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

#: Seconds that a native thread may need to end after ``join()`` has returned.
_SETTLE = 0.2

_GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def reasons_against_forking() -> list[str]:
    """What makes a fork of this process unsafe, as short phrases; empty when nothing does.

    A thread's locks and a GPU's context do not survive a fork. The pool that OpenBLAS starts when it is loaded does
    not count: it registers fork handlers. An OpenMP pool counts: after a fork, GNU OpenMP hangs in the child.
    """
    reasons = []
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names:
        reasons.append(f"started Python threads: {', '.join(sorted(names))}")
    give_up = time.monotonic() + _SETTLE
    while (native := native_threads()) > 0 and time.monotonic() <= give_up:
        time.sleep(0.01)
    if native > 0:
        reasons.append(f"started {native} native thread(s)")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        reasons.append("initialised a GPU")
    elif devices := open_gpu_devices():
        reasons.append(f"opened {', '.join(devices)}")
    return reasons


def native_threads() -> int:
    """How many threads of this process libraries have started that may hold a lock when it is forked."""
    found = len(os.listdir("/proc/self/task")) - threading.active_count()
    return found - _openblas_threads() if found > 0 else 0


def _openblas_threads() -> int:
    before = os.environ.get("KMP_DUPLICATE_LIB_OK")
    from threadpoolctl import threadpool_info

    if before is None:
        # threadpoolctl sets it, and would silence in every trial an error of Intel's OpenMP that the user may hunt.
        os.environ.pop("KMP_DUPLICATE_LIB_OK", None)
    return sum(
        pool["num_threads"] - 1
        for pool in threadpool_info()
        if pool["internal_api"] == "openblas" and pool.get("threading_layer") == "pthreads"
    )


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
