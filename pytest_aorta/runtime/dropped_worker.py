"""A worker that is dropped without ``close``: its processes end once the garbage collector has found it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_aorta.runtime.endpoints.protocol import StartupError

if TYPE_CHECKING:
    from pytest_aorta.runtime.started_worker import StartedWorker
    from pytest_aorta.runtime.worker_spec import WorkerSpec


def weak_spec(spec: Callable[[], WorkerSpec]) -> Callable[[], WorkerSpec]:
    """The bound method ``spec`` of a worker, without keeping the worker alive."""
    reference = weakref.WeakMethod(spec)

    def describe() -> WorkerSpec:
        found = reference()
        if found is None:
            raise StartupError("its worker was dropped")
        return found()

    return describe


def end_when_dropped(worker: object, started: StartedWorker, grace: float) -> weakref.finalize[..., object]:
    """Have ``started`` abandoned with ``grace`` once nothing refers to ``worker``; detach it to close in order."""
    dropped = weakref.finalize(worker, _end_dropped, started, os.getpid(), grace)
    dropped.atexit = False  # its processes see the end of this one
    return dropped


def _end_dropped(started: StartedWorker, process: int, grace: float) -> None:
    if os.getpid() == process:  # forks of this process have copies of the worker
        started.abandon(grace)
