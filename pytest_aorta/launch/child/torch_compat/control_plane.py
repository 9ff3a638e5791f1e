"""torch's worker server, which serves the flight recorder of a rank."""

from __future__ import annotations

import ctypes
from pathlib import Path


def start_worker_server(path: Path) -> None:
    """Serve torch's diagnosis of this process on a Unix socket, from a thread without the GIL.

    Does nothing where torch has no such server.

    Raises:
        RuntimeError: the socket cannot be used.
    """
    try:
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        return
    server = _WorkerServer(str(path))
    # Its destructor would wait for its thread, and write to the rank's log.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
