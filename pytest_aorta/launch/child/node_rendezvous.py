"""The rendezvous of the agents of several nodes, each of which is a client of the store where they meet."""

from __future__ import annotations

import os
import time
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pytest_aorta.launch.child.fixed_agents import FixedAgents
from pytest_aorta.launch.nodes.addressing import endpoint, meets_in_etcd, node_rank
from pytest_aorta.launch.nodes.meeting import connect
from pytest_aorta.trials.elastic_options import ElasticOptions

#: A node that has gone is noticed after three missed keep-alives, and the nodes wait last_call_timeout for more than
#: they need; in seconds.
_DYNAMIC: dict[str, Any] = {"last_call_timeout": "5", "keep_alive_interval": "1", "keep_alive_max_attempt": "3"}

#: Seconds that the store has for an answer, and to be there.
_PATIENCE = 60.0

#: Seconds between two looks at whether all nodes have come.
_LOOK_INTERVAL = 0.05


def rendezvous_of_nodes(
    options: ElasticOptions, trial_id: str, secret: str, local_addr: str | None
) -> RendezvousHandler:
    """torch's handler for ``c10d``, ``etcd`` and ``etcd-v2``; ``Static`` for ``static``.

    Raises:
        WrongStore: the store is not that of this run.
    """
    # torch would give the ranks of all attempts one store, in which those of a restart find the addresses of the dead.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    backend = options.rdzv_backend or "c10d"
    run_id = options.rdzv_id or trial_id
    parameters = RendezvousParameters(
        backend=backend,
        endpoint="{}:{}".format(*endpoint(options)),
        run_id=run_id,
        min_nodes=options.nnodes[0],
        max_nodes=options.nnodes[1],
        local_addr=local_addr,
        **_DYNAMIC if backend != "etcd" else {"last_call_timeout": _DYNAMIC["last_call_timeout"]},
    )
    if meets_in_etcd(options):
        # etcd remembers the nodes of earlier trials, for which this one would wait.
        parameters.run_id = f"{run_id}.{trial_id}"
        return get_rendezvous_handler(parameters)
    store = connect(options, trial_id, secret, _PATIENCE)
    store.announce(node_rank(options))
    if backend == "static":
        return Static(run_id, store.raw, node_rank(options), options.nnodes[1], local_addr)
    # torch unpickles the state that it finds: only nodes of this run can have written it.
    return create_handler(store.raw, C10dRendezvousBackend(store.sealed, run_id), parameters)  # type: ignore[arg-type]


class Static(FixedAgents):
    """As many nodes as there are, in the order of their numbers.

    torch's own has node 0's agent serve the store, from a thread beside which it forks, and gives the ranks of all
    trials the same one.

    Args:
        run_id: which ranks find in ``TORCHELASTIC_RUN_ID``.
        store: of the trial.
        node: number of this node.
        nodes: how many there are.
        local_addr: address of this node, for the others.
    """

    def __init__(self, run_id: str, store: Any, node: int, nodes: int, local_addr: str | None) -> None:
        super().__init__(run_id)
        self._store = store
        self._node = node
        self._nodes = nodes
        self._local_addr = local_addr
        self._round = -1

    def get_backend(self) -> str:
        """Its name in logs."""
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """Whether the ranks bootstrap through the agent's store."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes have come for this attempt.

        Raises:
            RendezvousError: another node has the same number.
        """
        self._round += 1
        store = PrefixStore(f"static/{self._round}", self._store)
        if store.add(f"node/{self._node}", 1) > 1:
            raise RendezvousError(f"two nodes say that they are node_rank={self._node}: each needs a number of its own")
        while not store.check([f"node/{node}" for node in range(self._nodes)]):
            time.sleep(_LOOK_INTERVAL)
        bootstrap = RendezvousStoreInfo.build(self._node, store, local_addr=self._local_addr)
        return RendezvousInfo(store, self._node, self._nodes, bootstrap)

    def shutdown(self) -> bool:
        """Nothing to end: node 0's pytest keeps the store."""
        return True
