"""Trials of two nodes of which one is lost, late, or wrong: each record says what is lost, and none is ``ok``."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.stage import Stage

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def assert_second_node_is_lost(trial: dict[str, Any]) -> None:
    assert trial["exit_status"] == "infrastructure_failed"
    assert trial["result"]["passed"] is False
    assert [rank["rank"] for rank in trial["ranks"]] == [0, 1, 2, 3]
    assert (trial["failure"]["kind"], trial["failure"]["rank"]) == ("rank", 2)
    assert "never heard of" in trial["failure"]["message"]
    assert "rank 2, 3" in trial["failure"]["message"]


@pytest.mark.slow
def test_a_node_that_is_killed_after_the_first_one_is_done(faults: Stage) -> None:
    nodes = Nodes(faults, "second_node_lingers")
    barrier = "exit_barrier_timeout=3"
    other, first = nodes.start(1, barrier), nodes.start(0, barrier)
    faults.wait_until((faults.path / "lingers").exists)
    other.send_signal(signal.SIGKILL)
    finish(other)

    assert finish(first) == pytest.ExitCode.TESTS_FAILED
    trial = nodes.trial()
    assert_second_node_is_lost(trial)
    assert [rank["passed"] for rank in trial["ranks"]] == [True, True, None, None]
    faults.wait_until(lambda: not faults.left_running())


@pytest.mark.slow
def test_a_node_that_is_killed_in_run(faults: Stage) -> None:
    nodes = Nodes(faults, "second_node_sleeps")
    other, first = nodes.start(1), nodes.start(0)
    faults.wait_until((faults.path / "sleeps").exists)
    other.send_signal(signal.SIGKILL)
    finish(other)

    assert finish(first) == pytest.ExitCode.TESTS_FAILED
    trial = nodes.trial()
    assert_second_node_is_lost(trial)
    assert {rank["blame"] for rank in trial["ranks"][:2]} == {"collateral"}
    faults.wait_until(lambda: not faults.left_running())


@pytest.mark.slow
def test_a_node_that_hangs_is_seen_from_the_first_one(faults: Stage) -> None:
    nodes = Nodes(faults, "second_node_sleeps", "--aorta-timeout", "25")
    other, first = nodes.start(1), nodes.start(0)

    assert finish(first) == finish(other) == pytest.ExitCode.TESTS_FAILED
    trial = nodes.trial()
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("timeout", 2)
    assert "rank 2 is missing: play() at rank_faults.py line" in trial["failure"]["message"]
    assert [rank["blame"] for rank in trial["ranks"]][2] == "cause"


@pytest.mark.slow
def test_a_rank_of_the_second_node_that_raises(faults: Stage) -> None:
    nodes = Nodes(faults, "raises", "--aorta-config", "at=3")
    other, first = nodes.start(1), nodes.start(0)

    assert finish(first) == finish(other) == pytest.ExitCode.TESTS_FAILED
    trial = nodes.trial()
    assert (trial["exit_status"], trial["failure"]["rank"]) == ("workload_failed", 3)
    assert "rank 1 has a bug" in trial["failure"]["message"]
    assert [(rank["rank"], rank["local_rank"]) for rank in trial["ranks"]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert trial["ranks"][3]["blame"] == "cause"


@pytest.mark.slow
def test_a_node_that_never_comes(faults: Stage) -> None:
    nodes = Nodes(faults, "raises", "--aorta-timeout", "8")

    assert finish(nodes.start(0)) != 0
    trial = nodes.trial()
    assert trial["exit_status"] == "timeout"
    assert f"the nodes have not all met at {nodes.where}" in trial["failure"]["message"]
    assert "nnodes=MIN:MAX" in trial["failure"]["message"]


@pytest.mark.slow
def test_a_second_node_whose_trials_never_begin(faults: Stage) -> None:
    nodes = Nodes(faults, "raises", "--aorta-timeout", "8")

    assert finish(nodes.start(1)) != 0


@pytest.mark.slow
def test_the_port_of_the_store_is_in_use(faults: Stage) -> None:
    with socket.socket() as taken:
        nodes = Nodes(faults, "raises", "--aorta-timeout", "20")
        taken.bind(("", int(nodes.where.rpartition(":")[2])))
        taken.listen()
        process = nodes.start(0)
        said = b"".join(process.communicate(timeout=110)).decode()

    assert process.returncode == pytest.ExitCode.USAGE_ERROR, said
    port = nodes.where.rpartition(":")[2]
    assert f"the nodes cannot meet at port {port} of this host: Address already in use" in said
    assert "--aorta-elastic rdzv_endpoint=HOST:PORT" in said
    assert faults.trials() == {}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["auto", "torchrun"])
def test_a_backend_that_does_not_exist(faults: Stage, launcher: str) -> None:
    options = ("--aorta-launcher", launcher, "--aorta-elastic", "rdzv_backend=telepathy", "--aorta-timeout", "30")
    done = faults.run("rank_faults.py::RankFaults", *options)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    trial = faults.trial("RankFaults/trial_0.json")
    assert (trial["exit_status"], trial["failure"]["kind"]) == ("infrastructure_failed", "exception")
    assert "telepathy" in trial["failure"]["message"]
    assert "rdzv_backend=" in trial["failure"]["message"]
