"""A store for the ranks of one host, in a process of its own.

A store has a thread that looks up the names of its peers, and holds a lock of libc while it does. A rank that was
forked from that process at such a moment would wait for the lock without end, so the agent, which forks, has no store.
"""

from __future__ import annotations

import signal
import socket

import torch.distributed as dist

from pytest_aorta.launch.child.name_service import LOOPBACK, files_only
from pytest_aorta.launch.child.side_process import SideProcess
from pytest_aorta.launch.child.torch_compat.stores import serve_store


class StoreProcess:
    """Serves a ``TCPStore`` on the loopback interface, until it is closed or this process ends.

    Attributes:
        port: of the store; a free one where 0 was asked for.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        # torch itself would listen on all interfaces.
        listening = socket.create_server((LOOPBACK, port), backlog=socket.SOMAXCONN)
        self.port = int(listening.getsockname()[1])
        self._process = SideProcess(lambda: _serve(listening))
        listening.close()

    def connect(self) -> dist.TCPStore:  # type: ignore[name-defined]
        """A client of the store, which has no thread."""
        with files_only():
            return dist.TCPStore(LOOPBACK, self.port, is_master=False)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End it; twice is harmless."""
        self._process.close()


def _serve(listening: socket.socket) -> None:
    store = serve_store(listening)
    while store is not None:
        signal.pause()
