"""A store for the ranks of one host.

A store has a thread that looks up the names of its peers, and holds a lock of libc while it does. A rank that was
forked from that process at such a moment would wait for the lock without end, so an agent that forks has no store, and
one that has a store, or other threads, does not fork.
"""

from __future__ import annotations

import signal
import socket

import torch.distributed as dist

from pytest_aorta.launch.child.name_service import LOOPBACK, ask_files_only, files_only
from pytest_aorta.launch.child.side_process import SideProcess, fork_side_process
from pytest_aorta.launch.child.torch_compat.stores import serve_store


class LocalStore:
    """Serves a ``TCPStore`` on the loopback interface until it is closed or this process ends.

    Args:
        port: of the store; 0 for a free one.
        forks: whether this process may fork. If so, a process of its own serves the store, else a thread of this one,
            which asks no name server any more.

    Attributes:
        port: of the store.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0, *, forks: bool) -> None:
        listening = _listen(port)
        self.port = int(listening.getsockname()[1])
        self._process: SideProcess | None = None
        if forks:
            self._process = fork_side_process(lambda: _serve(listening))
            listening.close()
        else:
            ask_files_only()
            _in_threads[self.port] = serve_store(listening)

    def close(self) -> None:
        """End it; twice is harmless."""
        if self._process is not None:
            self._process.close()
        else:
            _in_threads.pop(self.port, None)


#: The stores that threads of this process serve, by port.
_in_threads: dict[int, dist.TCPStore] = {}  # type: ignore[name-defined]


def connect(port: int) -> dist.TCPStore:  # type: ignore[name-defined]
    """A client of such a store, which has no thread."""
    with files_only():
        return dist.TCPStore(LOOPBACK, port, is_master=False)  # type: ignore[attr-defined]


def _listen(port: int) -> socket.socket:
    """torch itself would listen on all interfaces."""
    return socket.create_server((LOOPBACK, port), backlog=socket.SOMAXCONN)


def _serve(listening: socket.socket) -> None:
    store = serve_store(listening)
    while store is not None:
        signal.pause()
