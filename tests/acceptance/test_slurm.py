"""Trials of two nodes as a step of a real SLURM, whose two nodes are on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.slurm import Slurm
from support.slurm_steps import SRUN, Steps
from support.stage import text

from pytest_aorta.workflow.submission import quoted


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
        assert [rank["host"] for rank in trial["ranks"]] in (["n0", "n0", "n1", "n1"], ["n1", "n1", "n0", "n0"])
        for rank in trial["ranks"]:
            folder = f"trial_{number}" + (".node_1" if rank["host"] == "n1" else "")
            assert rank["stdout"] == f"{folder}/attempt_0/rank_{rank['rank']}.stdout.log"
        variables = trial["env"]["env_vars"]
        assert (variables["SLURM_NODEID"], variables["SLURM_STEP_NODELIST"]) == ("0", "n[0-1]")
    steps.stage.close()


@pytest.mark.slow
def test_a_cancelled_job_is_an_interrupted_trial(steps: Steps) -> None:
    """All processes of the step get the signal: pytest, its zygote, the agent and the ranks."""
    step = steps.start(*steps.command("second_node_sleeps"))
    steps.stage.wait_for_file("sleeps")
    steps.slurm.command("scancel", str(steps.job()))
    ended = steps.stage.finish(step)
    exits = re.findall(r"error: (n\d): task \d: Exited with exit code (\d+)", text(ended))
    assert sorted(exits) == [("n0", "2"), ("n1", "2")]
    trial = steps.trial()
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert (trial["failure"]["kind"], trial["failure"]["message"]) == ("signal", "interrupted: SIGTERM")
    assert "not counted: 1 " in text(ended)
    steps.stage.close()


@pytest.mark.slow
@pytest.mark.long
def test_the_first_failed_task_does_not_end_the_report(steps: Steps) -> None:
    """``-K``, or ``KillOnBadExit`` of a cluster: srun ends the job as soon as one node has failed."""
    options = ("--aorta-config", "at=second_node")
    done = steps.run(*steps.command("raises", *options), srun=(*SRUN, "-K1"))
    done.assert_outcomes(failed=1)
    assert "Traceback" not in text(done).rpartition("short test summary info")[2]
    assert re.search(r"error: n0: task 0: Exited with exit code 1$", text(done), re.MULTILINE)
    assert steps.trial()["exit_status"] == "workload_failed"
    assert (steps.stage.results / "matrix.json").exists()
    steps.stage.close()


@pytest.mark.slow
@pytest.mark.long
def test_a_node_that_is_lost_when_the_first_is_done(steps: Steps) -> None:
    # With --no-kill, the step goes on when SLURM notices that a node has gone.
    command = steps.command("second_node_lingers", "--aorta-elastic", "exit_barrier_timeout=3")
    step = steps.start(*command, srun=(*SRUN, "--no-kill"))
    steps.stage.wait_for_file("lingers")
    steps.slurm.kill_node("n1")
    steps.stage.finish(step)
    trial = steps.trial()
    lost = [rank["rank"] for rank in trial["ranks"] if rank["host"] != "n0"]
    assert len(lost) == 2
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert f"never heard of; of 4 ranks, there is no word of rank {lost[0]}, {lost[1]}" in trial["failure"]["message"]
    assert [rank["passed"] for rank in trial["ranks"] if rank["host"] == "n0"] == [True, True]
    steps.stage.close()


@pytest.mark.slow
def test_sbatch_takes_all_golden_scripts(slurm: Slurm, tmp_path: Path) -> None:
    golden, file = Path(__file__).parents[1] / "workflow/golden", tmp_path / "cpu.sh"
    for difference in (None, *sorted(golden.glob("*.diff"))):
        shutil.copy(golden / "cpu.sh", file)
        if difference is not None:
            subprocess.run(["git", "apply", "--unidiff-zero", "-p0", difference], cwd=tmp_path, check=True)
        script = file.read_text().replace("act-NAME", "act").replace("#SBATCH --qos=low\n", "")  # needs accounting
        file.write_text(script)
        slurm.command("sbatch", "--test-only", file)


@pytest.mark.slow
def test_sbatch_reads_quoted_words_as_they_were(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    for word in (
        "plain",
        "two words",
        'a "b" c',
        "it's",
        "back\\slash",
        "$(touch x) `y` $HOME",
        "#hash # in",
        "ä;|&*?",
    ):
        script.write_text(
            f"#!/bin/bash\n#SBATCH --hold\n#SBATCH --comment={quoted(word)}\n#SBATCH --output=/dev/null\n"
        )
        number = slurm.command("sbatch", "--parsable", script)
        shown = json.loads(slurm.command("squeue", "--json"))
        assert [job["comment"] for job in shown["jobs"] if job["job_id"] == int(number)] == [word]
