"""What tasks of the tests about stalls do; they run in other processes, and are found there by name."""

from __future__ import annotations

import os
import time
from typing import Any

PATIENCE = 120.0


def own_pid(args: Any) -> int:
    """Of the process."""
    return os.getpid()


def length(args: Any) -> int:
    """Of the configuration."""
    return len(args.config)


def send_raw(args: Any) -> None:
    """Write what follows on the channel to the worker, past all that is meant for it."""
    import gc

    from pytest_aorta.runtime.endpoint import MessageSocket

    (found,) = (found for found in gc.get_objects() if type(found) is MessageSocket)
    os.write(found._connection.fileno(), bytes.fromhex(args.scalars[0]))
    time.sleep(args.scalars[1])
