"""A store for the ranks of one host.

A store has a thread that looks up the names of its peers, and holds a lock of libc while it does. A rank that was
forked from that process at such a moment would wait for the lock without end, so an agent that forks has no store, and
one that has a store, or other threads, does not fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
from collections.abc import Iterator

import torch.distributed as dist

from pytest_aorta.launch.child.name_service import LOOPBACK, ask_files_only, files_only
from pytest_aorta.launch.child.torch_compat.stores import serve_store
from pytest_aorta.runtime.zygotes import process_tree


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
        agent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            with _no_return():
                _serve(agent, listening)
        listening.close()
        _served.append(self)

    def close(self) -> None:
        """End it; twice is harmless."""
        if self not in _served:
            return
        _served.remove(self)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


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
        self._store: dist.TCPStore | None = serve_store(listening)  # type: ignore[name-defined]
        _served.append(self)

    def close(self) -> None:
        """End it; twice is harmless."""
        if self in _served:
            _served.remove(self)
        self._store = None


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


#: Those of this process that are not closed.
_served: list[StoreProcess | StoreThread] = []


def close_stores() -> None:
    """End those of this process that still run: what outlives a trial's process counts as left behind by the trial."""
    for store in list(_served):
        store.close()


def _listen(port: int) -> socket.socket:
    """torch itself would listen on all interfaces."""
    return socket.create_server((LOOPBACK, port), backlog=socket.SOMAXCONN)


@contextlib.contextmanager
def _no_return() -> Iterator[None]:
    """End the process with the block, whatever happens in it."""
    try:
        yield
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _serve(agent: int, listening: socket.socket) -> None:
    process_tree.die_with_parent(agent)
    # The ranks may need it until they have ended, and its stacks say nothing about them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.unregister(process_tree.STACK_SIGNAL)
    ask_files_only()
    store = serve_store(listening)
    while store is not None:
        signal.pause()
