"""Where the agent and the ranks of one host meet: stores, and the rendezvous over them.

A store has a thread that looks up the names of its peers, and holds a lock of libc while it does. A rank that was
forked from that process at such a moment would wait for the lock without end, so an agent that forks has no store
itself: a process beside it does. An agent that has a store, or other threads of libraries, does not fork.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import signal
import socket
import traceback

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pytest_aorta.launch.child.name_service import LOOPBACK, ask_files_only, files_only
from pytest_aorta.launch.child.torch_compat import serve_store
from pytest_aorta.runtime import process_tree
from pytest_aorta.trials.execution import ElasticOptions


def rendezvous(options: ElasticOptions, trial_id: str) -> RendezvousHandler:
    """The handler for a trial on one host: ``OneHost``, or torch's own where another one is asked for.

    Raises ``OSError`` where the port for its store is taken.
    """
    run_id = options.rdzv_id or trial_id
    forks = options.start_method == "fork"
    if options.rdzv_backend is None and options.nnodes == (1, 1):
        return OneHost(run_id, options.master_addr, options.master_port, forks=forks)
    if options.rdzv_backend == "static":
        # As torch's, whose handler serves a store from a thread of the agent.
        if options.rdzv_endpoint is None:
            return OneHost(run_id, options.master_addr or LOOPBACK, options.master_port, forks=forks)
        host, _, port = options.rdzv_endpoint.rpartition(":")
        return OneHost(run_id, host, int(port), forks=forks)
    own_store = options.rdzv_backend in (None, "c10d")
    at = _store_here(options.rdzv_endpoint or f"{LOOPBACK}:0", forks) if own_store else options.rdzv_endpoint or ""
    parameters = RendezvousParameters(
        backend=options.rdzv_backend or "c10d",
        endpoint=at,
        run_id=run_id,
        min_nodes=options.nnodes[0],
        max_nodes=options.nnodes[1],
        local_addr=options.local_addr or LOOPBACK,
        **{"is_host": "0"} if own_store else {},
    )
    # torch would give the ranks of all attempts one store, in which those of a restart find the addresses of the dead.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return get_rendezvous_handler(parameters)


def free_port() -> int:
    """A port that no process of this host listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _store_here(at: str, forks: bool) -> str:
    host, _, port = at.rpartition(":")
    if not _is_here(host):
        return at
    try:
        return f"{LOOPBACK}:{LocalStore(int(port), forks=forks).port}"
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            f"port {port} of this host is taken, at which rdzv_endpoint={at} asks for the store; give a free one with "
            "--aorta-elastic rdzv_endpoint=HOST:PORT, or leave it out: each trial then has one of its own"
        ) from None


def _is_here(host: str) -> bool:
    # A socket can be bound only to a name or an address of this host.
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


class FixedAgents(RendezvousHandler):
    """Of agents whose number is fixed: none joins later, and none closes the rendezvous for the others.

    Ranks find ``run_id`` in ``TORCHELASTIC_RUN_ID``.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id


class OneHost(FixedAgents):
    """Rendezvous of a single agent: a new store on a free port, at once.

    torch's c10d backend first sleeps up to 0.3 s, to spread the load of many agents. With a ``master_addr`` or
    ``master_port``, rank 0 keeps the store of the ranks, as it does where several nodes meet. ``forks``: the agent
    forks its ranks, and has no store itself.
    """

    def __init__(
        self, run_id: str, master_addr: str | None = None, master_port: int | None = None, *, forks: bool
    ) -> None:
        super().__init__(run_id)
        self._forks = forks
        self._master = None if master_addr is None and master_port is None else (master_addr or LOOPBACK, master_port)
        self._store: LocalStore | None = None

    def get_backend(self) -> str:
        return "aorta-one-host"

    @property
    def use_agent_store(self) -> bool:
        return self._master is None

    def next_rendezvous(self) -> RendezvousInfo:
        """A fresh store for every attempt."""
        self.shutdown()
        self._store = LocalStore(forks=self._forks)
        at = (LOOPBACK, self._store.port) if self._master is None else (self._master[0], self._master[1] or free_port())
        return RendezvousInfo(connect(self._store.port), 0, 1, RendezvousStoreInfo(*at))

    def shutdown(self) -> bool:
        store, self._store = self._store, None
        if store is not None:
            store.close()
        return True


class LocalStore:
    """Serves a ``TCPStore`` on the loopback interface until it is closed or this process ends.

    Where this process ``forks``, a process of its own serves the store, else a thread of this one, which asks no name
    server any more. ``port`` 0 is a free one; raises ``OSError`` where the port is taken.
    """

    def __init__(self, port: int = 0, *, forks: bool) -> None:
        listening = socket.create_server((LOOPBACK, port), backlog=socket.SOMAXCONN)  # torch: on all interfaces
        self.port = int(listening.getsockname()[1])
        self._pid: int | None = None
        self._served: dist.TCPStore | None = None  # type: ignore[name-defined]
        if forks:
            agent = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                _serve(agent, listening)
            listening.close()
        else:
            ask_files_only()
            self._served = serve_store(listening)
        _open.append(self)

    def close(self) -> None:
        """End it; twice is harmless."""
        self._served = None
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None
        if self in _open:
            _open.remove(self)


#: Those that this process serves, or has served for it.
_open: list[LocalStore] = []


def close_stores() -> None:
    """End the stores of this process: what outlives a trial's process counts as left behind by the trial."""
    for store in list(_open):
        store.close()


def connect(port: int) -> dist.TCPStore:  # type: ignore[name-defined]
    """A client of such a store, which has no thread."""
    with files_only():
        return dist.TCPStore(LOOPBACK, port, is_master=False)  # type: ignore[attr-defined]


def _serve(agent: int, listening: socket.socket) -> None:
    try:
        process_tree.die_with_parent(agent)
        # The ranks may need it until they have ended, and its stacks say nothing about them.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        faulthandler.unregister(process_tree.STACK_SIGNAL)
        ask_files_only()
        store = serve_store(listening)
        while store is not None:
            signal.pause()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
