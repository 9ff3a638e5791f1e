"""The rendezvous of the agents of a trial."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pytest_aorta.launch.child.fixed_agents import FixedAgents
from pytest_aorta.launch.child.local_store import LocalStore, connect
from pytest_aorta.launch.child.name_service import LOOPBACK
from pytest_aorta.launch.nodes.addressing import endpoint, is_multi_node, meets_in_etcd
from pytest_aorta.trials.elastic_options import ElasticOptions


def rendezvous(options: ElasticOptions, trial_id: str, nodes_secret: str | None) -> RendezvousHandler:
    """The handler for the options: ``OneHost`` for one host, torch's for several.

    Args:
        options: of the agent.
        trial_id: of the trial, which is the name of the rendezvous where none is given.
        nodes_secret: of a run on several nodes.

    Raises:
        OSError: the port for its store is taken.
    """
    if is_multi_node(options):
        from pytest_aorta.launch.child.node_rendezvous import rendezvous_of_nodes

        assert nodes_secret is not None
        local_addr = options.local_addr or address_towards(*endpoint(options))
        return rendezvous_of_nodes(options, trial_id, nodes_secret, local_addr)
    run_id = options.rdzv_id or trial_id
    forks = options.start_method == "fork"
    if options.rdzv_backend is None and options.nnodes == (1, 1):
        return OneHost(run_id, options.master_addr, options.master_port, forks=forks)
    if options.rdzv_backend == "static":
        return _at_master(options, run_id, forks)
    if meets_in_etcd(options) and options.rdzv_id is None:
        # etcd remembers the nodes of earlier runs of the trial, for which this one would wait.
        run_id = f"{trial_id}.{secrets.token_hex(8)}"
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


def _at_master(options: ElasticOptions, run_id: str, forks: bool) -> RendezvousHandler:
    """What torch's ``static`` rendezvous is on one host; its own handler serves a store from a thread of the agent."""
    if options.rdzv_endpoint is None:
        return OneHost(run_id, options.master_addr or LOOPBACK, options.master_port, forks=forks)
    host, _, port = options.rdzv_endpoint.rpartition(":")
    return OneHost(run_id, host, int(port), forks=forks)


def free_port() -> int:
    """A port that no process of this host listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _store_here(at: str, forks: bool) -> str:
    """Serve the store of a rendezvous if its endpoint is on this host; where to reach it.

    Raises:
        OSError: the port is taken.
    """
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
    """Whether ``host`` is a name or an address of this host: only then a socket can be bound to it."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def address_towards(host: str, port: int) -> str | None:
    """The address of this node on the route to the endpoint; its host name may be known only to itself."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return None


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
        """Its name in logs."""
        return "aorta-one-host"

    @property
    def use_agent_store(self) -> bool:
        """Whether the ranks bootstrap through the agent's store."""
        return self._master is None

    def next_rendezvous(self) -> RendezvousInfo:
        """A fresh store for every attempt."""
        self.shutdown()
        self._store = LocalStore(forks=self._forks)
        at = (LOOPBACK, self._store.port) if self._master is None else (self._master[0], self._master[1] or free_port())
        return RendezvousInfo(connect(self._store.port), 0, 1, RendezvousStoreInfo(*at))

    def shutdown(self) -> bool:
        """End the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
        return True
