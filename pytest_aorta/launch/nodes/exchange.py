"""The exchange of what is known of the ranks between the nodes of a trial, through the store of their rendezvous."""

from __future__ import annotations

import contextlib
import json
import sys
import time

import pydantic

from pytest_aorta.launch.diagnosis.trial_evidence import RankEvidence, TrialEvidence, own_ranks, with_ranks
from pytest_aorta.launch.nodes.addressing import is_multi_node, node_rank
from pytest_aorta.launch.nodes.meeting import connect, store_errors
from pytest_aorta.launch.nodes.sealed_store import SealedStore
from pytest_aorta.trials.elastic_options import ElasticOptions

#: Seconds that node 0 waits for the other nodes, once its ranks have ended; and before it starts them again.
_PATIENCE, _PATIENCE_BEFORE_RESTART = 5.0, 2.0

#: Seconds between two looks of another node at whether node 0 waits for it.
_LOOK_INTERVAL = 0.5


class NodeExchange:
    """Messages between the nodes of one trial; of a single node, none."""

    def __init__(self, options: ElasticOptions, trial_id: str, secret: str | None) -> None:
        self._options = options
        self._trial_id = trial_id
        self._secret = secret
        self._connected: SealedStore | None = None
        self._answered: str | None = None
        self._next_look = 0.0

    def share(self, trial: TrialEvidence, group: str, *, last: bool = True) -> TrialEvidence:
        """On node 0, the evidence of all nodes; on another node its own, which is sent to node 0.

        Ranks of which nothing has come in time stay without evidence; on another node than 0, they are left out.

        Args:
            trial: of this node.
            group: name of the worker group, which is the same on all nodes and no other attempt's.
            last: whether no attempt follows.
        """
        if not is_multi_node(self._options):
            return trial
        node = node_rank(self._options)
        try:
            if node == 0:
                return with_ranks(trial, self._gather(trial, group, _PATIENCE if last else _PATIENCE_BEFORE_RESTART))
        except store_errors() as error:
            print(f"the other nodes cannot be asked: {error}", file=sys.stderr)
            return trial
        self.answer(trial, group)
        return trial if node == 0 else own_ranks(trial)

    def is_asked(self, group: str) -> bool:
        """Whether node 0 waits for what this one knows; once for each worker group. Looked up now and then only."""
        now = time.monotonic()
        if node_rank(self._options) == 0 or group == self._answered or now < self._next_look:
            return False
        self._next_look = now + _LOOK_INTERVAL
        with contextlib.suppress(*store_errors()):  # node 0 has gone
            if self._store().check([f"{group}/asked"]):
                self._answered = group
                return True
        return False

    def answer(self, trial: TrialEvidence, group: str) -> None:
        """Send node 0 what is known of the ranks of this node."""
        try:
            self._store().set(f"{group}/{node_rank(self._options)}", json.dumps(own_ranks(trial)["ranks"]))
        except store_errors() as error:  # node 0 has gone; the failures that this caused are in the evidence
            print(f"the results of the ranks of this node cannot be sent to node 0: {error}", file=sys.stderr)

    def _store(self) -> SealedStore:
        if self._connected is None:
            assert self._secret is not None
            self._connected = connect(self._options, self._trial_id, self._secret, _PATIENCE).sealed
        return self._connected

    def _gather(self, trial: TrialEvidence, group: str, patience: float) -> dict[int, RankEvidence]:
        """Of the other nodes, whose ranks may end within that time as well."""
        found: dict[int, RankEvidence] = {}
        waited_for = {rank["rank"] for rank in trial["ranks"] if not rank["started"]}
        give_up = time.monotonic() + patience
        self._store().set(f"{group}/asked", "1")
        while time.monotonic() < give_up and (
            waited_for - found.keys() or any(rank.get("running") for rank in found.values())
        ):
            for node in range(1, self._options.nnodes[1]):
                if self._store().check([f"{group}/{node}"]):
                    found |= {rank["rank"]: rank for rank in _read(self._store().get(f"{group}/{node}"))}
            time.sleep(0.02)
        return found


def _read(text: bytes) -> list[RankEvidence]:
    """What another node has sent.

    Raises:
        ValueError: it is not what nodes send.
    """
    return pydantic.TypeAdapter(list[RankEvidence]).validate_json(text)
