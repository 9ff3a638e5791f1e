"""Trials of two nodes of which one is lost, late, or wrong: each record says what is lost, and none is ``ok``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.processes import free_port
from support.stage import Stage

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"


class Nodes:
    """Pytest on two nodes, with two ranks on each."""

    def __init__(self, stage: Stage, part: str, *options: str) -> None:
        self.stage = stage
        self.where = f"localhost:{free_port()}"
        self.arguments = ("rank_faults.py::RankFaults", "--aorta-nproc", "2", "--aorta-config", f"script={part}")
        self.options = ("--aorta-timeout", "40", "--aorta-results-dir", "results", *options)

    def start(self, node: int, *more: str) -> subprocess.Popen[bytes]:
        """The pytest of one node."""
        elastic = ("nnodes=2", f"node_rank={node}", f"rdzv_endpoint={self.where}", *more)
        options = (text for each in elastic for text in ("--aorta-elastic", each))
        return self.stage.start(*self.arguments, *self.options, *options)

    def run(self, *more: str) -> tuple[int, int]:
        """The exit statuses of both, of node 0 first."""
        other, first = self.start(1, *more), self.start(0, *more)
        return finish(first), finish(other)

    def trial(self) -> dict[str, Any]:
        """The record."""
        return self.stage.trial("RankFaults/trial_0.json")


@pytest.fixture
def faults(stage: Stage) -> Stage:
    stage.copy(FAULTS)
    return stage


def finish(process: subprocess.Popen[bytes]) -> int:
    """Wait for a node; its exit status."""
    process.communicate(timeout=110)
    return int(process.returncode)


def ranks_of(trial: dict[str, Any], node: int) -> list[dict[str, Any]]:
    """Records of a node's ranks: which these are is for c10d to decide."""
    assert [rank["rank"] for rank in trial["ranks"]] == [0, 1, 2, 3]
    halves: tuple[list[dict[str, Any]], ...] = (trial["ranks"][:2], trial["ranks"][2:])
    first = next(half for half in halves if half[0]["stdout"] and "/trial_0/" in f"/{half[0]['stdout']}")
    return first if node == 0 else halves[1 - halves.index(first)]


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_of_the_second_node_that_raises(faults: Stage) -> None:
    nodes = Nodes(faults, "raises", "--aorta-config", "at=second_node")

    assert nodes.run() == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.TESTS_FAILED)
    trial = nodes.trial()
    raised = ranks_of(trial, 1)[1]
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("workload_failed", raised["rank"])
    assert "rank 1 has a bug" in trial["failure"]["message"]
    assert [rank["local_rank"] for rank in trial["ranks"]] == [0, 1, 0, 1]
    assert raised["blame"] == "cause"


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_of_the_second_node_for_which_the_others_have_given_up(faults: Stage) -> None:
    nodes = Nodes(faults, "gives_up", "--aorta-config", "at=second_node", "--aorta-timeout", "25")

    assert nodes.run() == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.TESTS_FAILED)
    trial = nodes.trial()
    missing = ranks_of(trial, 1)[1]
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("workload_failed", missing["rank"])
    expected = f"rank {missing['rank']} is missing: play_alone() at rank_faults.py line"
    assert trial["failure"]["message"].startswith(expected)
    assert sorted(rank["blame"] for rank in trial["ranks"]) == ["cause", *["collateral"] * 3]
    assert missing["blame"] == "cause"


@pytest.mark.slow
@pytest.mark.long
def test_a_first_node_that_is_not_done_knows_that_the_second_one_is(faults: Stage) -> None:
    nodes = Nodes(faults, "first_node_lingers", "--aorta-timeout", "25")

    assert nodes.run("exit_barrier_timeout=2") == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK)
    trial = nodes.trial()
    assert trial["exit_status"] == "timeout"
    assert [(rank["passed"], rank["blame"]) for rank in ranks_of(trial, 1)] == [(True, None)] * 2
