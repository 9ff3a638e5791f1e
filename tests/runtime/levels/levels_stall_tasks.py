"""What tasks of the tests about stalls do; they run in other processes, and are found there by name."""

from __future__ import annotations

import os
import time
from typing import Any

PATIENCE = 120.0


def emit_until_cancelled(job: Any, payload: Any) -> None:
    """Emit the payload, then wait."""
    job.emit(payload)
    give_up = time.monotonic() + PATIENCE
    while not job.cancelled and time.monotonic() < give_up:
        time.sleep(0.005)
    raise RuntimeError("was cancelled")


def own_pid(args: Any) -> int:
    """Of the process."""
    return os.getpid()


def length(args: Any) -> int:
    """Of the configuration."""
    return len(args.config)


def nested(args: Any) -> list[Any]:
    """A list within a list, and so on."""
    made: list[Any] = []
    for _ in range(args.scalars[0]):
        made = [made]
    return made


def send_raw(args: Any) -> None:
    """Write what follows on the channel to the worker, past all that is meant for it."""
    import gc

    from pytest_aorta.runtime.channel import Channel

    (channel,) = (found for found in gc.get_objects() if isinstance(found, Channel) and found._end.fileno() >= 0)
    channel._end.send(args.scalars[0].encode())
    time.sleep(args.scalars[1])
