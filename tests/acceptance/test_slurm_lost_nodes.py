"""Trials of two nodes of a real SLURM of which one loses its power: no record is ``ok``."""

from __future__ import annotations

import pytest
from support.slurm_steps import SRUN, Steps, hosts_of
from support.stage import text

#: The step goes on when SLURM notices that a node has gone.
KEPT = (*SRUN, "--no-kill")


def assert_names_the_second_node(step: Steps) -> None:
    trial = step.trial()
    lost = [rank["rank"] for rank in trial["ranks"] if rank["host"] != "n0"]
    assert len(lost) == 2
    assert trial["exit_status"] == "infrastructure_failed"
    assert trial["result"]["passed"] is False
    assert f"never heard of; of 4 ranks, there is no word of rank {lost[0]}, {lost[1]}" in trial["failure"]["message"]
    assert hosts_of(trial).count("n0") == 2


@pytest.mark.slow
@pytest.mark.long
def test_a_node_that_is_lost_in_run(steps: Steps) -> None:
    step = steps.start(*steps.command("second_node_sleeps"), srun=KEPT)
    steps.wait_for_file("sleeps")
    steps.slurm.kill_node("n1")
    steps.stage.finish(step)
    assert_names_the_second_node(steps)
    steps.wait_until_clean()


@pytest.mark.slow
@pytest.mark.long
def test_a_node_that_is_lost_when_the_first_one_is_done(steps: Steps) -> None:
    command = steps.command("second_node_lingers", "--aorta-elastic", "exit_barrier_timeout=3")
    step = steps.start(*command, srun=KEPT)
    steps.wait_for_file("lingers")
    steps.slurm.kill_node("n1")
    steps.stage.finish(step)
    assert_names_the_second_node(steps)
    assert [rank["passed"] for rank in steps.trial()["ranks"] if rank["host"] == "n0"] == [True, True]
    steps.wait_until_clean()


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_slurm_ends_because_of_a_lost_node(steps: Steps) -> None:
    """Without ``--no-kill``, it ends the job some seconds after the node has gone, in which node 0 waits for it."""
    step = steps.start(*steps.command("second_node_lingers"))
    steps.wait_for_file("lingers")
    job = steps.job()
    steps.slurm.kill_node("n1")
    ended = steps.stage.finish(step)
    trial = steps.trial()
    assert (trial["exit_status"], trial["result"]["passed"]) == ("infrastructure_failed", False)
    assert trial["failure"]["message"] == "interrupted: SIGTERM"
    steps.wait_for_state(job, "NODE_FAIL")
    assert "NODE FAILURE" in text(ended)
    steps.wait_until_clean()
