"""Trials of two nodes of a real SLURM of which one loses its power: no record is ``ok``."""

from __future__ import annotations

import pytest
from acceptance.test_slurm import SRUN, Steps, hosts_of, steps
from support.stage import text

__all__ = ["steps"]

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
