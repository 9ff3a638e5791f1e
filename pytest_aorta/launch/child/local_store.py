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
from pytest_aorta.launch.child.side_process import SideProcess
from pytest_aorta.launch.child.torch_compat.stores import serve_store


class StoreProcess:
    """Serves a ``TCPStore`` on the loopback interface from a process of its own, until it is closed or this one ends.

    Attributes:
        port: of the store; a free one where 0 was asked for.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        listening = _listen(port)
        self.port = int(listening.getsockname()[1])
        self._process = SideProcess(lambda: _serve(listening))
        listening.close()

    def close(self) -> None:
        """End it; twice is harmless."""
        self._process.close()


class StoreThread:
    """The same from a thread of this process, which asks no name server any more.

    Attributes:
        port: of the store; a free one where 0 was asked for.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        listening = _listen(port)
        self.port = int(listening.getsockname()[1])
        ask_files_only()
        _stores[self.port] = serve_store(listening)

    def close(self) -> None:
        """End it; twice is harmless."""
        _stores.pop(self.port, None)


#: Of the threads of this process, by port.
_stores: dict[int, dist.TCPStore] = {}  # type: ignore[name-defined]


def serve_local_store(port: int = 0, *, forks: bool) -> StoreProcess | StoreThread:
    """A store on the loopback interface, in a process of its own if this one may fork, else in a thread.

    Raises:
        OSError: the port is taken.
    """
    return StoreProcess(port) if forks else StoreThread(port)


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
