"""What node 0 takes from the folders of the other nodes, after a deadline."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.launch.child.attempt_files import keep_evidence
from pytest_aorta.launch.diagnosis.evidence import RankEvidence, TrialEvidence
from pytest_aorta.launch.host import evidence as node_files
from pytest_aorta.launch.host.evidence import node_folder, with_other_nodes


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_files, "_NODE_PATIENCE", 0.0)


def evidence(started: int, group: str | None, network: str | None = None) -> TrialEvidence:
    """Of two ranks, one of which runs on the node."""
    ranks = [RankEvidence(rank, started=rank == started) for rank in range(2)]
    return TrialEvidence("elastic", world_size=2, group=group, network=network, ranks=ranks, overdue=1.0)


def seen_by_node_0(folder: Path, group: str | None = "a:1") -> TrialEvidence:
    return with_other_nodes(evidence(0, group), folder, 0, 2, grace=0.0)


def test_the_ranks_of_another_node_and_what_it_found_of_the_network(tmp_path: Path) -> None:
    keep_evidence(node_folder(tmp_path / "trial_0", 1), evidence(1, "a:1", "node1 does not reach node0:1"))
    found = seen_by_node_0(tmp_path / "trial_0")
    assert [rank.started for rank in found.ranks] == [True, True]
    assert found.network == "node1 does not reach node0:1"


def test_what_another_worker_group_has_left_does_not_count(tmp_path: Path) -> None:
    keep_evidence(node_folder(tmp_path / "trial_0", 1), evidence(1, "a:2", "of another time"))
    for group in ("a:1", None):
        found = seen_by_node_0(tmp_path / "trial_0", group)
        assert [rank.started for rank in found.ranks] == [True, False]
        assert found.network is None
