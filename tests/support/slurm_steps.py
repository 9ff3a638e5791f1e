"""Pytest as a step of SLURM on its two nodes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import wait_for, wait_until
from support.slurm import NODES, Slurm, missing, start_server, stop_server
from support.stage import PYTEST, Stage, text

FAULTS = Path(__file__).with_name("rank_faults.py")

SRUN = ("srun", "-N", "2", "--ntasks-per-node", "1")

TWO_NODES = ("--aorta-nproc", "2", "--aorta-elastic", "nnodes=2", "--aorta-timeout", "60")


class Steps:
    """Pytest, started with srun in a stage."""

    def __init__(self, stage: Stage, slurm: Slurm) -> None:
        self.stage = stage
        self.slurm = slurm

    def command(self, part: str, *options: str) -> list[str]:
        """Of a pytest whose ranks play a part of ``RankFaults``."""
        return [*PYTEST, "rank_faults.py::RankFaults", "--aorta-config", f"script={part}", *TWO_NODES, *options]

    def start(self, *command: str, srun: tuple[str, ...] = SRUN) -> subprocess.Popen[bytes]:
        """Start a command on both nodes."""
        return self.stage.start_command(*srun, *command, env=self.slurm.variables)

    def run(self, *command: str, srun: tuple[str, ...] = SRUN) -> pytest.RunResult:
        """Run a command on both nodes."""
        return self.stage.finish(self.start(*command, srun=srun))

    def job(self) -> int:
        """The number of the job that runs."""

        def running() -> int | None:
            return next((number for number, state in self.slurm.jobs().items() if state == "RUNNING"), None)

        return wait_for(running, "a job that runs")

    def wait_for_state(self, job: int, state: str) -> None:
        wait_until(lambda: self.slurm.jobs()[job] == state, f"job {job} in state {state}")

    def wait_for_file(self, name: str) -> None:
        self.stage.wait_until((self.stage.path / name).exists)

    def trial(self) -> dict[str, Any]:
        """The record of the only trial that has one."""
        [record] = self.stage.trials().values()
        return record

    def wait_until_clean(self) -> None:
        self.stage.close()


@pytest.fixture(scope="session")
def slurm_server() -> Iterator[Slurm]:
    if reason := missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="aorta-slurm-"))
    start_server(folder)
    yield Slurm(folder)
    stop_server(folder)


@pytest.fixture
def slurm(slurm_server: Slurm) -> Iterator[Slurm]:
    """SLURM with two idle nodes."""
    slurm_server.wait_for_nodes("idle")
    yield slurm_server
    slurm_server.cancel_all()
    for node in NODES:
        slurm_server.start_node(node)


@pytest.fixture
def steps(stage: Stage, slurm: Slurm) -> Steps:
    stage.copy(FAULTS)
    return Steps(stage, slurm)


def hosts_of(trial: dict[str, Any]) -> list[str]:
    return [rank["host"] for rank in trial["ranks"]]


def assert_interrupted(steps: Steps, ended: pytest.RunResult, by: str) -> None:
    assert sorted(re.findall(r"error: (n\d): task \d: Exited with exit code (\d+)", text(ended))) == [
        ("n0", "2"),
        ("n1", "2"),
    ]
    trial = steps.trial()
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert (trial["failure"]["kind"], trial["failure"]["message"]) == ("signal", f"interrupted: {by}")
    assert "not counted: 1 " in text(ended)
    steps.wait_until_clean()
