"""The exchange of rank records between the nodes of a trial, through the store of their rendezvous."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import torch.distributed as dist

from pytest_aorta.trials.events import RankData

#: Seconds that node 0 waits for the records of the other nodes, once its ranks have ended.
_PATIENCE = 5.0


class NodeExchange:
    """The records of one trial in the store."""

    def __init__(self, host: str, port: int, trial: str) -> None:
        client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_PATIENCE))  # type: ignore[attr-defined]
        self._store = dist.PrefixStore(f"aorta/{trial}", client)  # type: ignore[attr-defined]

    def send(self, node: int, records: list[RankData]) -> None:
        """Set the records of a node's ranks."""
        self._store.set(f"node/{node}", json.dumps(records))

    def gather(self, nodes: int, expected: int, own: list[RankData]) -> list[RankData]:
        """The records of all ranks, in their order; without those of nodes that have sent none.

        Args:
            nodes: how many may have taken part.
            expected: number of ranks in all.
            own: records of this node's ranks.
        """
        found = {record["rank"]: record for record in own}
        give_up = time.monotonic() + _PATIENCE
        while len(found) < expected and time.monotonic() < give_up:
            for node in range(1, nodes):
                if self._store.check([f"node/{node}"]):
                    found |= {record["rank"]: record for record in json.loads(self._store.get(f"node/{node}"))}
            time.sleep(0.02)
        return [found[rank] for rank in sorted(found)]
