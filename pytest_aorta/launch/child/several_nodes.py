"""What agents of several nodes do at the store of their run: meet, and tell node 0 of their ranks.

As a program, ``python -m pytest_aorta.launch.child.several_nodes DESCRIPTOR``, it serves that store.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
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

from pytest_aorta.launch.child.name_service import ask_files_only
from pytest_aorta.launch.child.rendezvous import FixedAgents
from pytest_aorta.launch.child.torch_compat import serve_store
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, TrialEvidence, ranks_from_json
from pytest_aorta.launch.nodes.addressing import endpoint, node_rank
from pytest_aorta.trials.execution import ElasticOptions
from pytest_aorta.trials.records import to_json

#: Seconds that the store has for an answer, and to be there.
_STORE_PATIENCE = 60.0

#: A node that has gone is noticed after three missed keep-alives, and the nodes wait last_call_timeout for more than
#: they need; in seconds.
_DYNAMIC = {"last_call_timeout": "5", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}

#: Seconds between two looks at whether all nodes have come.
_LOOK_INTERVAL = 0.05

#: Seconds that node 0 waits for the other nodes, once its ranks have ended; and before it starts them again.
_PATIENCE, _PATIENCE_BEFORE_RESTART = 5.0, 2.0

#: Seconds between two looks of another node at whether node 0 waits for it.
_ASKED_INTERVAL = 0.5

#: What a store raises that has gone, or has what it should not have.
_STORE_ERRORS = (RuntimeError, OSError, ValueError, LookupError)


def rendezvous_of_nodes(options: ElasticOptions, trial_id: str) -> RendezvousHandler:
    """torch's handler for ``c10d``, ``Static`` for ``static``. Raises ``RuntimeError`` where there is no store."""
    # torch would give the ranks of all attempts one store, in which those of a restart find the addresses of the dead.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    host, port = endpoint(options)
    local_addr = options.local_addr or _address_towards(host, port)
    run_id = options.rdzv_id or trial_id
    store = _connect(options, trial_id, _STORE_PATIENCE)
    store.set(f"here/{node_rank(options)}", socket.gethostname())
    if options.rdzv_backend == "static":
        return Static(run_id, store, node_rank(options), options.nnodes[1], local_addr)
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{host}:{port}",
        run_id=run_id,
        min_nodes=options.nnodes[0],
        max_nodes=options.nnodes[1],
        local_addr=local_addr,
        **_DYNAMIC,
    )
    return create_handler(store, C10dRendezvousBackend(store, run_id), parameters)


def _connect(options: ElasticOptions, trial_id: str, patience: float) -> Any:
    host, port = endpoint(options)
    client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience))  # type: ignore[attr-defined]
    return dist.PrefixStore(trial_id, client)  # type: ignore[attr-defined]


def _address_towards(host: str, port: int) -> str | None:
    # The host name of this node may be known only to itself.
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return None


class Static(FixedAgents):
    """As many nodes as there are, in the order of their numbers.

    torch's own has node 0's agent serve the store, from a thread beside which it forks, and gives the ranks of all
    trials the same one.
    """

    use_agent_store = False

    def __init__(self, run_id: str, store: Any, node: int, nodes: int, local_addr: str | None) -> None:
        super().__init__(run_id)
        self._store = store
        self._node = node
        self._nodes = nodes
        self._local_addr = local_addr
        self._round = -1

    def get_backend(self) -> str:
        return "static"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes have come for this attempt."""
        self._round += 1
        store = dist.PrefixStore(f"static/{self._round}", self._store)  # type: ignore[attr-defined]
        if store.add(f"node/{self._node}", 1) > 1:
            raise RendezvousError(f"two nodes say that they are node_rank={self._node}: each needs a number of its own")
        while not store.check([f"node/{node}" for node in range(self._nodes)]):
            time.sleep(_LOOK_INTERVAL)
        bootstrap = RendezvousStoreInfo.build(self._node, store, local_addr=self._local_addr)
        return RendezvousInfo(store, self._node, self._nodes, bootstrap)

    def shutdown(self) -> bool:
        """Nothing to end: node 0's pytest keeps the store."""
        return True


class NodeExchange:
    """Messages between the nodes of one trial.

    A worker ``group`` has a name that is the same on all its nodes, and no other attempt's.
    """

    def __init__(self, options: ElasticOptions, trial_id: str) -> None:
        self._options = options
        self._trial_id = trial_id
        self._connected: Any = None
        self._answered: str | None = None
        self._next_look = 0.0

    def share(self, trial: TrialEvidence, group: str, *, last: bool = True) -> TrialEvidence:
        """On node 0, the evidence of all nodes; on another node its own, which is sent to node 0.

        Ranks of which nothing has come in time stay without evidence; on another node than 0, they are left out.
        """
        if node_rank(self._options) != 0:
            self.answer(trial.own_ranks(), group)
            return replace(trial, ranks=trial.own_ranks())
        try:
            return trial.with_ranks(self._gather(trial, group, _PATIENCE if last else _PATIENCE_BEFORE_RESTART))
        except _STORE_ERRORS as error:
            print(f"the other nodes cannot be asked: {error}", file=sys.stderr)
            return trial

    def is_asked(self, group: str) -> bool:
        """Whether node 0 waits for what this one knows; once for each worker group. Looked up now and then only."""
        now = time.monotonic()
        if node_rank(self._options) == 0 or group == self._answered or now < self._next_look:
            return False
        self._next_look = now + _ASKED_INTERVAL
        with contextlib.suppress(*_STORE_ERRORS):  # node 0 has gone
            if self._store().check([f"{group}/asked"]):
                self._answered = group
                return True
        return False

    def answer(self, ranks: list[RankEvidence], group: str) -> None:
        """Send node 0 what is known of the ranks of this node."""
        try:
            self._store().set(f"{group}/{node_rank(self._options)}", to_json(ranks))
        except _STORE_ERRORS as error:  # node 0 has gone; the failures that this caused are in the evidence
            print(f"the results of the ranks of this node cannot be sent to node 0: {error}", file=sys.stderr)

    def _store(self) -> Any:
        if self._connected is None:
            self._connected = _connect(self._options, self._trial_id, _PATIENCE)
        return self._connected

    def _gather(self, trial: TrialEvidence, group: str, patience: float) -> list[RankEvidence]:
        found: dict[int, RankEvidence] = {}
        waited_for = {rank.rank for rank in trial.ranks if not rank.started}
        give_up = time.monotonic() + patience
        self._store().set(f"{group}/asked", "1")
        while time.monotonic() < give_up and (
            waited_for - found.keys() or any(rank.running for rank in found.values())
        ):
            for node in range(1, self._options.nnodes[1]):
                if self._store().check([f"{group}/{node}"]):
                    sent = ranks_from_json(self._store().get(f"{group}/{node}"))
                    found |= {rank.rank: rank for rank in sent}
            time.sleep(0.02)
        return list(found.values())


def main(descriptor: int) -> None:
    """Serve a store until standard input ends, each line of which asks which nodes have come to a trial."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a batch system: its pytest ends it
        signal.signal(number, signal.SIG_IGN)
    ask_files_only()
    store = serve_store(socket.socket(fileno=descriptor))
    for line in sys.stdin:
        trial_id, nodes = json.loads(line)
        come = dist.PrefixStore(trial_id, store)  # type: ignore[attr-defined]
        found: dict[int, str] = {}
        with contextlib.suppress(RuntimeError):
            found = {node: come.get(f"here/{node}").decode() for node in range(nodes) if come.check([f"here/{node}"])}
        print(json.dumps(found), flush=True)
    os._exit(0)  # torch's own end takes a while


if __name__ == "__main__":
    main(int(sys.argv[1]))
