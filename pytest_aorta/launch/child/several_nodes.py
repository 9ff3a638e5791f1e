"""What agents of several nodes tell node 0 of their ranks, through the store of their run.

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
from typing import Any

import torch.distributed as dist

from pytest_aorta.launch.child.rendezvous import connect_nodes
from pytest_aorta.launch.child.torch_compat import serve_store
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, TrialEvidence
from pytest_aorta.launch.nodes import node_rank
from pytest_aorta.trials.execution import ElasticOptions

#: Seconds that node 0 waits for the other nodes, once its ranks have ended; and before it starts them again.
_PATIENCE, _PATIENCE_BEFORE_RESTART = 5.0, 2.0

#: Seconds between two looks of another node at whether node 0 waits for it.
_ASKED_INTERVAL = 0.5

#: What a store raises that has gone, or has what it should not have.
_STORE_ERRORS = (RuntimeError, OSError, ValueError, LookupError)


class NodeExchange:
    """Messages between the nodes of one trial, by the name of the worker group, which no other attempt has."""

    def __init__(self, options: ElasticOptions, trial_id: str) -> None:
        self._options = options
        self._trial_id = trial_id
        self._node = node_rank(options)
        self._connected: Any = None
        self._answered: str | None = None
        self._next_look = 0.0

    def share(self, trial: TrialEvidence, *, last: bool = True) -> TrialEvidence:
        """On node 0, the evidence of all nodes; on another node its own, which is sent to node 0.

        Ranks of which nothing has come in time stay without evidence; on another node than 0, they are left out.
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
        """Whether node 0 waits for what this one knows; once for each worker group. Looked up now and then only."""
        now = time.monotonic()
        if self._node == 0 or group == self._answered or now < self._next_look:
            return False
        self._next_look = now + _ASKED_INTERVAL
        with contextlib.suppress(*_STORE_ERRORS):  # node 0 has gone
            if self._store().check([f"{group}/asked"]):
                self._answered = group
                return True
        return False

    def answer(self, trial: TrialEvidence, *, still_running: bool = False) -> None:
        """Send node 0 what is known of the ranks of this node."""
        own = replace(trial, ranks=trial.own_ranks(still_running=still_running))
        try:
            self._store().set(f"{trial.group}/{self._node}", own.to_json())
        except _STORE_ERRORS as error:  # node 0 has gone; the failures that this caused are in the evidence
            print(f"the results of the ranks of this node cannot be sent to node 0: {error}", file=sys.stderr)

    def _store(self) -> Any:
        if self._connected is None:
            self._connected = connect_nodes(self._options, self._trial_id, _PATIENCE)
        return self._connected

    def _gather(self, trial: TrialEvidence, patience: float) -> list[RankEvidence]:
        found: dict[int, RankEvidence] = {}
        waited_for = {rank.rank for rank in trial.ranks if not rank.started}
        give_up = time.monotonic() + patience
        self._store().set(f"{trial.group}/asked", "1")
        while time.monotonic() < give_up and (
            waited_for - found.keys() or any(rank.running for rank in found.values())
        ):
            for node in range(1, self._options.nnodes[1]):
                if self._store().check([f"{trial.group}/{node}"]):
                    sent = TrialEvidence.from_json(self._store().get(f"{trial.group}/{node}"))
                    found |= {rank.rank: rank for rank in sent.ranks}
            time.sleep(0.02)
        return list(found.values())


def main(descriptor: int) -> None:
    """Serve a store until standard input ends, each line of which asks which nodes have come to a trial."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a batch system: its pytest ends it
        signal.signal(number, signal.SIG_IGN)
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
