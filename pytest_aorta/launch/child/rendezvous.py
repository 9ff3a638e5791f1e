"""Stores at which the agents and the ranks of a trial meet, and the rendezvous over them.

A store has a thread that looks up names of its peers under a lock of libc. A rank that is forked at such a moment would
wait for the lock for ever. So an agent that forks lets a process beside it serve the store, and an agent that has a
store, or other threads of libraries, does not fork.

As a program, ``python -m pytest_aorta.launch.child.rendezvous DESCRIPTOR``, this serves the store of several nodes.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from pytest_aorta.launch.diagnosis.evidence import AttemptEvidence, RankEvidence
from pytest_aorta.launch.launch_mode import LOOPBACK, endpoint, free_port, is_multi_node, node_rank
from pytest_aorta.runtime import process_tree
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.records import to_json

#: Seconds within which the store of several nodes must be reachable.
_STORE_PATIENCE = 60.0

#: A node that has gone is noticed after three missed keep-alives, and the nodes wait last_call_timeout for more than
#: they need; in seconds.
_DYNAMIC = {"last_call_timeout": "5", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}

#: Seconds between two looks at whether all nodes have joined.
_LOOK_INTERVAL = 0.05

#: Seconds that node 0 waits for the other nodes, once its ranks have ended; and before it starts them again.
_PATIENCE, _PATIENCE_BEFORE_RESTART = 5.0, 2.0

#: Seconds between two looks of a node at whether node 0 waits for it.
_ASKED_INTERVAL = 0.5

#: Errors of a store that has gone or has unexpected content.
_STORE_ERRORS = (RuntimeError, OSError, ValueError, LookupError)


def rendezvous(options: ElasticOptions, trial_id: str) -> RendezvousHandler:
    """torch's handler if nodes may come and go, else a handler for a fixed number of nodes.

    Raises:
        RuntimeError: there is no store at which several nodes meet.
    """
    run_id = options.rdzv_id or trial_id
    # torch would give the ranks of all attempts one store, in which those of a restart find the addresses of the dead.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if not is_multi_node(options):
        return _OneHost(options, run_id)
    host, port = endpoint(options)
    local_addr = options.local_addr or _address_towards(host, port)
    store = connect_nodes(options, trial_id, _STORE_PATIENCE)
    store.set(f"here/{node_rank(options)}", socket.gethostname())
    if options.rdzv_backend == "static":
        return _FixedNodes(options, run_id, store, local_addr)
    least, most = options.nnodes
    parameters = RendezvousParameters("c10d", f"{host}:{port}", run_id, least, most, local_addr, **_DYNAMIC)
    return create_handler(store, C10dRendezvousBackend(store, run_id), parameters)


class _OneHost(StaticTCPRendezvous):
    """A new store for every attempt, at once; on a free port, unless there is an ``rdzv_endpoint``.

    torch's c10d backend first sleeps up to 0.3 s, to spread the load of many agents. With an address or a port for
    rank 0, that rank keeps the store of the ranks, as it does where several nodes meet.
    """

    def __init__(self, options: ElasticOptions, run_id: str) -> None:
        host, port = options.master_addr, options.master_port
        self._options, self._port = options, 0
        if options.rdzv_backend == "static":
            host = host or LOOPBACK
            if options.rdzv_endpoint is not None:
                host, port = endpoint(options)
        elif options.rdzv_endpoint is not None:
            self._port = endpoint(options)[1]
        self._shares_store = host is None and port is None
        super().__init__(host or LOOPBACK, port or 0, 0, 1, run_id, timeout=0)

    @property
    def use_agent_store(self) -> bool:
        return self._shares_store

    def next_rendezvous(self) -> RendezvousInfo:
        close_stores()
        try:
            own = open_store(self._port, forks=self._options.start_method == "fork")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                f"port {self._port} of this host is taken, at which rdzv_endpoint={self._options.rdzv_endpoint} asks "
                "for the store; give a free one with --aorta-elastic rdzv_endpoint=HOST:PORT, or leave it out: each "
                "trial then has one of its own"
            ) from None
        port = own if self._shares_store else self.master_port or free_port()
        return RendezvousInfo(connect(own), 0, 1, RendezvousStoreInfo(self.master_addr, port))


class _FixedNodes(StaticTCPRendezvous):
    """A fixed number of nodes, in the order of their numbers.

    In torch's own handler, the agent of node 0 serves the store from a thread, beside which it forks, and the ranks of
    all trials share one store.
    """

    def __init__(self, options: ElasticOptions, run_id: str, common: Any, local_addr: str | None) -> None:
        super().__init__("", 0, node_rank(options), options.nnodes[1], run_id, timeout=0)
        self._common, self._local_addr, self._attempt = common, local_addr, 0

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        node, nodes = self.rank, self.world_size
        store = dist.PrefixStore(f"static/{self._attempt}", self._common)  # type: ignore[attr-defined]
        self._attempt += 1
        if store.add(f"node/{node}", 1) > 1:
            raise RendezvousError(f"two nodes say that they are node_rank={node}: each needs a number of its own")
        while not store.check([f"node/{each}" for each in range(nodes)]):
            time.sleep(_LOOK_INTERVAL)
        return RendezvousInfo(store, node, nodes, RendezvousStoreInfo.build(node, store, local_addr=self._local_addr))


def connect_nodes(options: ElasticOptions, trial_id: str, patience: float) -> Any:
    """Connect to a trial's part of the store of several nodes, within ``patience`` seconds."""
    host, port = endpoint(options)
    client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience))  # type: ignore[attr-defined]
    return dist.PrefixStore(trial_id, client)  # type: ignore[attr-defined]


def _address_towards(host: str, port: int) -> str | None:
    # Only this node may know its own host name.
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return None


#: The stores of this process, each served by a process of its own or by a thread.
_processes: list[int] = []
_threads: list[Any] = []


def open_store(port: int = 0, *, forks: bool) -> int:
    """Serve a ``TCPStore`` on the loopback interface until this process ends or closes it; returns its port.

    If this process ``forks``, a process beside it serves the store, else a thread of this one. ``port`` 0 takes a free
    port. Raises ``OSError`` if the port is taken.
    """
    listening = socket.create_server((LOOPBACK, port), backlog=socket.SOMAXCONN)  # torch: on all interfaces
    port = int(listening.getsockname()[1])
    if not forks:
        _threads.append(serve_store(listening))
        return port
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _serve(agent, listening)
    listening.close()
    _processes.append(pid)
    return port


def close_stores() -> None:
    """End the stores of this process: a process that outlives a trial's counts as left behind by the trial."""
    _threads.clear()
    while _processes:
        pid = _processes.pop()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def connect(port: int) -> Any:
    """A client of such a store; it has no thread."""
    return dist.TCPStore(LOOPBACK, port, is_master=False)  # type: ignore[attr-defined]


def _serve(agent: int, listening: socket.socket) -> None:
    try:
        process_tree.die_with_parent(agent)
        # The ranks may need it until they have ended, and its stacks say nothing about them.
        process_tree.disregard((*process_tree.TERMINATIONS, signal.SIGQUIT))
        faulthandler.unregister(process_tree.STACK_SIGNAL)
        store = serve_store(listening)
        while store is not None:
            signal.pause()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def serve_store(listening: socket.socket) -> dist.TCPStore:  # type: ignore[name-defined]
    """A store that serves on the socket ``listening`` and owns it from now on.

    If torch's newer server cannot take over a socket (2.6), the older server does; clients see no difference.
    """
    host, port = listening.getsockname()[:2]
    served: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listening.detach()}
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)  # its messages do not belong into the log of a workload
        return dist.TCPStore(host, port, **served)  # type: ignore[attr-defined]
    except NotImplementedError:
        return dist.TCPStore(host, port, **served, use_libuv=False)  # type: ignore[attr-defined]
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


# Several nodes.


class NodeExchange:
    """Exchanges messages between the nodes of one trial, under the name of an attempt's worker group."""

    def __init__(self, options: ElasticOptions, trial_id: str) -> None:
        self._options = options
        self._trial_id = trial_id
        self._node = node_rank(options)
        self._connected: Any = None
        self._answered: str | None = None
        self._next_look = 0.0

    def share(self, trial: AttemptEvidence, *, last: bool = True) -> AttemptEvidence:
        """Node 0 returns the evidence of all nodes; another node sends its own to node 0 and returns that.

        On node 0, ranks of nodes that did not answer in time stay without evidence; other nodes leave such ranks out.
        """
        if self._node != 0:
            self.answer(trial)
            return replace(trial, ranks=trial.own_ranks())
        try:
            return trial.with_ranks(self._gather(trial, _PATIENCE if last else _PATIENCE_BEFORE_RESTART))
        except _STORE_ERRORS as error:
            print(f"the other nodes cannot be asked: {error}", file=sys.stderr)
            return trial

    def is_asked(self, group: str) -> bool:
        """Whether node 0 waits for the evidence of this node, once per worker group; looked up only now and then."""
        now = time.monotonic()
        if self._node == 0 or group == self._answered or now < self._next_look:
            return False
        self._next_look = now + _ASKED_INTERVAL
        with contextlib.suppress(*_STORE_ERRORS):  # node 0 has gone
            if self._store().check([f"{group}/asked"]):
                self._answered = group
                return True
        return False

    def answer(self, trial: AttemptEvidence, *, still_running: bool = False) -> None:
        """Send the evidence of this node's ranks to node 0."""
        own = replace(trial, ranks=trial.own_ranks(still_running=still_running))
        try:
            self._store().set(f"{trial.group}/{self._node}", to_json(own))
        except _STORE_ERRORS as error:  # node 0 has gone; the failures that this caused are in the evidence
            print(f"the results of the ranks of this node cannot be sent to node 0: {error}", file=sys.stderr)

    def _store(self) -> Any:
        if self._connected is None:
            self._connected = connect_nodes(self._options, self._trial_id, _PATIENCE)
        return self._connected

    def _gather(self, trial: AttemptEvidence, patience: float) -> list[RankEvidence]:
        ranks: dict[int, RankEvidence] = {}
        waited_for = {rank.rank for rank in trial.ranks if not rank.started}
        give_up = time.monotonic() + patience
        self._store().set(f"{trial.group}/asked", "1")
        while time.monotonic() < give_up and (
            waited_for - ranks.keys() or any(rank.running for rank in ranks.values())
        ):
            for node in range(1, self._options.nnodes[1]):
                if self._store().check([f"{trial.group}/{node}"]):
                    sent = AttemptEvidence.from_json(self._store().get(f"{trial.group}/{node}"))
                    ranks |= {rank.rank: rank for rank in sent.ranks}
            time.sleep(0.02)
        return list(ranks.values())


def main(descriptor: int) -> None:
    """Serve a store until standard input ends; each line on it asks which nodes have joined a trial."""
    process_tree.disregard(process_tree.TERMINATIONS)  # of a batch system: its pytest ends it
    store = serve_store(socket.socket(fileno=descriptor))
    for line in sys.stdin:
        trial_id, nodes = json.loads(line)
        come = dist.PrefixStore(trial_id, store)  # type: ignore[attr-defined]
        hosts: dict[int, str] = {}
        with contextlib.suppress(RuntimeError):
            hosts = {node: come.get(f"here/{node}").decode() for node in range(nodes) if come.check([f"here/{node}"])}
        print(json.dumps(hosts), flush=True)
    os._exit(0)  # torch's own end takes a while


if __name__ == "__main__":
    main(int(sys.argv[1]))
