"""Trials of two nodes as a step of a real SLURM, whose two nodes are on this machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_for
from support.slurm import Slurm
from support.stage import PYTEST, Stage, text

FAULTS = Path(__file__).parents[1] / "support" / "rank_faults.py"

SRUN = ("srun", "-N", "2", "--ntasks-per-node", "1")

TWO_NODES = ("--aorta-nproc", "2", "--aorta-elastic", "nnodes=2", "--aorta-timeout", "60")


#: On node 1, its import takes longer than any test waits.
LATE = """
import os
import time

from rank_faults import RankFaults

if os.environ["SLURM_NODEID"] == "1":
    open("imports", "w").close()
    time.sleep(1000)

class Late(RankFaults):
    pass
"""


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

    def wait_for_file(self, name: str) -> None:
        """Until a part has written it."""
        self.stage.wait_until((self.stage.path / name).exists)

    def trial(self) -> dict[str, Any]:
        """The record of the only trial that has one."""
        [record] = self.stage.trials().values()
        return record

    def wait_until_clean(self) -> None:
        """Until no process is left on either node, and no half-written file."""
        self.stage.close()


@pytest.fixture
def steps(stage: Stage, slurm: Slurm) -> Steps:
    stage.copy(FAULTS)
    return Steps(stage, slurm)


def hosts_of(trial: dict[str, Any]) -> list[str]:
    return [rank["host"] for rank in trial["ranks"]]


def assert_interrupted(steps: Steps, ended: pytest.RunResult, by: str) -> None:
    """On both nodes, and nothing of it is left."""
    assert sorted(re.findall(r"error: (n\d): task \d: Exited with exit code (\d+)", text(ended))) == [
        ("n0", "2"),
        ("n1", "2"),
    ]
    trial = steps.trial()
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert (trial["failure"]["kind"], trial["failure"]["message"]) == ("signal", f"interrupted: {by}")
    assert "no trial says anything about the workload" in text(ended)
    steps.wait_until_clean()


@pytest.mark.slow
def test_a_step_on_two_nodes_is_one_trial(steps: Steps) -> None:
    done = steps.run(*steps.command("nothing", "--aorta-trials", "2"))
    assert done.ret == 0
    done.assert_outcomes(passed=2)
    assert steps.stage.files() == ["RankFaults/trial_0.json", "RankFaults/trial_1.json"]
    for number, trial in enumerate(steps.stage.trials().values()):
        assert (trial["exit_status"], trial["host"]) == ("ok", "n0")
        assert [(rank["rank"], rank["local_rank"]) for rank in trial["ranks"]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
        # Which node has the first ranks is for c10d to decide; each has two that follow each other.
        assert hosts_of(trial) in (["n0", "n0", "n1", "n1"], ["n1", "n1", "n0", "n0"])
        for rank in trial["ranks"]:
            folder = f"trial_{number}" + (".node_1" if rank["host"] == "n1" else "")
            assert rank["stdout"] == f"{folder}/attempt_0/rank_{rank['rank']}.stdout.log"
        variables = trial["env"]["env_vars"]
        assert (variables["SLURM_NODEID"], variables["SLURM_STEP_NODELIST"]) == ("0", "n[0-1]")
    steps.wait_until_clean()


@pytest.mark.slow
def test_fsdp_with_a_rank_on_each_node(steps: Steps) -> None:
    options = ("--aorta-nproc", "1", "--aorta-elastic", "nnodes=2", "--aorta-steps", "2", "--aorta-timeout", "100")
    done = steps.run(*PYTEST, "--aorta-workload", "fsdp", *options)
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    trial = steps.trial()
    assert (trial["exit_status"], trial["result"]["executed_iterations"]) == ("ok", 2)
    assert sorted(hosts_of(trial)) == ["n0", "n1"]
    steps.wait_until_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "by"),
    [((), "SIGTERM"), (("--signal=TERM",), "SIGTERM"), (("--signal=INT",), "KeyboardInterrupt")],
    ids=["scancel", "scancel_with_sigterm", "scancel_with_sigint"],
)
def test_a_cancelled_job_is_an_interrupted_trial(steps: Steps, how: tuple[str, ...], by: str) -> None:
    """All processes of the step get the signal: pytest, its zygote, the agent and the ranks."""
    step = steps.start(*steps.command("second_node_sleeps"))
    steps.wait_for_file("sleeps")
    steps.slurm.command("scancel", *how, str(steps.job()))
    assert_interrupted(steps, steps.stage.finish(step), by)


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_is_cancelled_when_one_node_is_done(steps: Steps) -> None:
    step = steps.start(*steps.command("second_node_lingers"))
    steps.wait_for_file("lingers")
    steps.slurm.command("scancel", str(steps.job()))
    assert_interrupted(steps, steps.stage.finish(step), "SIGTERM")


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_is_cancelled_when_one_node_still_imports(steps: Steps) -> None:
    steps.stage.write(late=LATE)
    command = [word.replace("rank_faults.py::RankFaults", "late.py::Late") for word in steps.command("nothing")]
    step = steps.start(*command)
    steps.wait_for_file("imports")
    steps.wait_for_file("results/Late/trial_0/stdout.log")  # of node 0, which waits for the other one
    steps.slurm.command("scancel", str(steps.job()))
    assert_interrupted(steps, steps.stage.finish(step), "SIGTERM")


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_reaches_its_time_limit(steps: Steps) -> None:
    """SLURM counts in minutes: after one, SIGTERM to every process, and after KillWait SIGKILL."""
    step = steps.start(*steps.command("second_node_sleeps", "--aorta-timeout", "200"), srun=(*SRUN, "-p", "short"))
    steps.wait_for_file("sleeps")
    job = steps.job()
    ended = steps.stage.finish(step)
    assert "DUE TO TIME LIMIT" in text(ended)
    assert_interrupted(steps, ended, "SIGTERM")
    assert steps.slurm.jobs()[job] == "TIMEOUT"


@pytest.mark.slow
def test_the_first_failed_task_does_not_end_the_report(steps: Steps) -> None:
    """``-K``, or ``KillOnBadExit`` of a cluster: srun ends the job as soon as one node has failed."""
    options = ("--aorta-config", "at=second_node")
    done = steps.run(*steps.command("raises", *options), srun=(*SRUN, "-K1"))
    done.assert_outcomes(failed=1)
    assert "Traceback" not in text(done).rpartition("short test summary info")[2]
    assert re.search(r"error: n0: task 0: Exited with exit code 1$", text(done), re.MULTILINE)
    assert steps.trial()["exit_status"] == "workload_failed"
    assert (steps.stage.results / "matrix.json").exists()
    steps.wait_until_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("srun", "said"),
    [
        ((*SRUN[:3], "--ntasks-per-node", "2"), "has SLURM_STEP_NUM_TASKS=4 on 2 nodes, but one pytest starts all"),
        (("srun", "-N", "1"), "has SLURM_STEP_NUM_NODES=1; use srun -N 2 --ntasks-per-node 1 pytest"),
    ],
    ids=["two_tasks_on_each_node", "one_node"],
)
def test_a_step_whose_nodes_would_never_meet(steps: Steps, srun: tuple[str, ...], said: str) -> None:
    done = steps.run(*steps.command("nothing"), srun=srun)
    assert said in text(done)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert steps.stage.trials() == {}


@pytest.mark.slow
def test_a_script_of_sbatch_that_has_forgotten_srun(steps: Steps) -> None:
    script = steps.stage.write_file("job.sh", "#!/bin/sh\nexec " + " ".join(steps.command("nothing")))
    done = steps.run("--wait", "-N", "2", "-o", "said.txt", str(script), srun=("sbatch",))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    said = (steps.stage.path / "said.txt").read_text()
    assert re.search(r"pytest was started by the script of SLURM job \d+, on one node only; start it with srun", said)
