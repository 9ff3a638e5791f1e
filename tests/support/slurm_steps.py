"""Pytest as a step of SLURM on its two nodes, and recipes that are submitted to it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import wait_for, wait_until
from support.slurm import NODES, Slurm, missing, start_server, stop_server
from support.stage import PYTEST, Stage

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
        return self.stage.start_command(*srun, *command, env=self.slurm.variables)

    def run(self, *command: str, srun: tuple[str, ...] = SRUN) -> pytest.RunResult:
        return self.stage.finish(self.start(*command, srun=srun))

    def job(self) -> int:
        def running() -> int | None:
            return next((number for number, state in self.slurm.jobs().items() if state == "RUNNING"), None)

        return wait_for(running, "a job that runs")

    def trial(self) -> dict[str, Any]:
        [record] = self.stage.trials().values()
        return record


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
    slurm_server.wait_for_nodes("idle")
    yield slurm_server
    slurm_server.cancel_all()
    for node in NODES:
        slurm_server.start_node(node)


@pytest.fixture
def steps(stage: Stage, slurm: Slurm) -> Steps:
    stage.copy(FAULTS)
    return Steps(stage, slurm)


#: A trial takes ``sec`` seconds; trial ``hangs`` takes for ever as long as there is a file ``hang``.
WORKLOAD = """
import os, time
from pathlib import Path

class Short:
    default_config = {"sec": 0.1, "bad": 0, "hang": "", "unless": ""}
    def __init__(self, config):
        self.config = config
    def setup(self):
        pass
    def run(self):
        here = Path(os.environ["STAGE"])
        hang = self.config["hang"]
        with (here / "began").open("a") as file:
            file.write("began\\n")
        time.sleep(float(self.config["sec"]))
        while hang and (here / hang).exists():
            time.sleep(0.1)
        unless = self.config["unless"]
        return {"passed": not self.config["bad"] and (not unless or unless in os.environ)}
"""


class SubmittingStage:
    def __init__(self, stage: Stage, slurm: Slurm) -> None:
        self.stage = stage
        self.slurm = slurm
        self.env = {**slurm.variables, "STAGE": str(stage.path), "PYTHONPATH": str(stage.path)}
        stage.write(work=WORKLOAD)
        stage.register(short="work:Short")

    def submit(self, *options: str) -> pytest.RunResult:
        command = (sys.executable, "-m", "pytest_aorta", "submit", "--cluster", "slurm", *options)
        return self.stage.command(*command, env=self.env)

    def pytest(self, *options: str) -> pytest.RunResult:
        return self.stage.command(*PYTEST, *options, env=self.env)

    def command(self, *arguments: str) -> str:
        result = self.stage.command(sys.executable, "-m", "pytest_aorta", *arguments, env=self.env)
        assert result.ret == 0, (result.outlines, result.errlines)
        return "\n".join(result.outlines)

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["id"]: job for job in json.loads(self.command("jobs", "--all", "--json"))["jobs"]}

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.command("status", "--all", "--json"))["actions"]}

    def ids(self, action: str, state: str) -> list[str]:
        return [name for name, job in self.jobs().items() if job["action"] == action and job["state"] == state]

    def wait_for_end(self) -> None:
        wait_until(lambda: all(job["over"] for job in self.jobs().values()), "all jobs to end")
