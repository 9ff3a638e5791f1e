"""Recipes that are submitted to SLURM from a stage."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from support.processes import wait_until
from support.slurm import Slurm
from support.stage import PYTEST, Stage

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
        """Run ``pytest-aorta submit``."""
        command = (sys.executable, "-m", "pytest_aorta", "submit", "--cluster", "slurm", *options)
        return self.stage.command(*command, env=self.env)

    def pytest(self, *options: str) -> pytest.RunResult:
        return self.stage.command(*PYTEST, *options, env=self.env)

    def command(self, *arguments: str) -> str:
        """What ``pytest-aorta`` prints."""
        result = self.stage.command(sys.executable, "-m", "pytest_aorta", *arguments, env=self.env)
        assert result.ret == 0, (result.outlines, result.errlines)
        return "\n".join(result.outlines)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All jobs, by their numbers."""
        return {job["id"]: job for job in json.loads(self.command("jobs", "--all", "--json"))["jobs"]}

    def status(self) -> dict[str, dict[str, Any]]:
        """The rows of the status, by action."""
        return {row["name"]: row for row in json.loads(self.command("status", "--all", "--json"))["actions"]}

    def ids(self, action: str, state: str) -> list[str]:
        """The numbers of jobs in a state."""
        return [name for name, job in self.jobs().items() if job["action"] == action and job["state"] == state]

    def wait_for_end(self) -> None:
        """Until no job is left."""
        wait_until(lambda: all(job["over"] for job in self.jobs().values()), "all jobs to end")

    def wait_for_file(self, name: str) -> None:
        self.stage.wait_until((self.stage.path / name).exists)
