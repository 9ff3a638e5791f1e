"""How the agents of a trial find each other."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pytest_aorta.trials.elastic import ElasticOptions


def rendezvous(options: ElasticOptions, trial_id: str) -> RendezvousHandler:
    """The one that the options ask for: our own for one host, torch's for several."""
    run_id = options.rdzv_id or trial_id
    if options.nnodes == (1, 1) and options.rdzv_backend is None:
        return OneHost(run_id)
    parameters = RendezvousParameters(
        backend=options.rdzv_backend or "c10d",
        endpoint=options.rdzv_endpoint or "localhost:0",
        run_id=run_id,
        min_nodes=options.nnodes[0],
        max_nodes=options.nnodes[1],
        # A node that joins late is waited for so long after the least number has come.
        last_call_timeout=5 if options.nnodes[0] < options.nnodes[1] else 30,
    )
    return get_rendezvous_handler(parameters)


class OneHost(RendezvousHandler):
    """Rendezvous of a single agent: a store of its own on a free port, at once.

    torch's c10d backend first sleeps up to 0.3 s, to spread the load of many agents.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def get_backend(self) -> str:
        """Its name in logs."""
        return "aorta-one-host"

    @property
    def use_agent_store(self) -> bool:
        """The ranks bootstrap through the agent's store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A fresh store for every attempt."""
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("localhost", store.port))

    def is_closed(self) -> bool:
        """Never; nobody else could join."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """Nobody waits."""
        return 0

    def get_run_id(self) -> str:
        """The trial's id, which ranks find in ``TORCHELASTIC_RUN_ID``."""
        return self._run_id

    def shutdown(self) -> bool:
        """Nothing to shut down."""
        return True
