"""What the other nodes of a trial have left where all nodes see the same results directory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from pytest_aorta.launch.child.attempt_files import evidence_file, last_attempt, read_evidence
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, TrialEvidence

#: Seconds that another node may be behind with its deadline.
_PATIENCE = 5.0


def with_other_nodes(trial: TrialEvidence, folder: Path, node: int, nodes: int, grace: float) -> TrialEvidence:
    """The evidence of node 0, completed from the folders of the other nodes; of another node, its own ranks.

    Args:
        trial: of this node, which a limit has ended.
        folder: of the trial's artifacts on this node.
        node: of this one.
        nodes: how many may have taken part.
        grace: seconds between SIGTERM and SIGKILL.
    """
    if node != 0:
        return replace(trial, ranks=trial.own_ranks())
    others = [other for number in range(1, nodes) if (other := node_folder(folder, number)).exists()]
    if trial.group is None:  # they have not met
        others = []
    found: list[RankEvidence] = []
    network: list[str] = []
    give_up = time.monotonic() + grace + _PATIENCE
    while others:
        for other in list(others):
            read = read_evidence(evidence_file(other, last_attempt(other)))
            # The file of an earlier run may lie there, where the node has not come.
            if read is not None and read.group == trial.group:
                found += read.ranks
                network += [read.network] if read.network else []
                others.remove(other)
        if time.monotonic() > give_up:
            break
        time.sleep(0.05)
    return replace(trial.with_ranks(found), network="; ".join(network) or None)


def node_folder(folder: Path, node: int) -> Path:
    """The folder of a trial's artifacts on another node."""
    return folder.with_name(f"{folder.name}.node_{node}")
