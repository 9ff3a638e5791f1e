"""Which way a workload's ranks come to be, and the four rules that a launch must obey."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pytest_aorta.trials.spec import TrialSpec

#: ``launch_mode`` of a script that takes the place of a workload.
SCRIPT = "script"

Mode = Literal["single", "elastic", "torchrun", "external"]

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LaunchModeError(ValueError):
    """A workload was launched in a way that it does not support."""


class EngineUnusable(Exception):
    """There is nothing that trials could run on: a host cannot be reached, or runs other code."""


@dataclass(frozen=True)
class Launch:
    """How to start a trial's process or processes."""

    mode: Mode
    nproc: int = 1


def world_size(environ: Mapping[str, str] = os.environ) -> int:
    """``WORLD_SIZE``, 1 when unset.

    Raises:
        LaunchModeError: it is not a positive integer.
    """
    text = environ.get("WORLD_SIZE", "1")
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise LaunchModeError(f"WORLD_SIZE={text!r} in the environment is not a positive integer")
    return size


def own_rank(environ: Mapping[str, str] = os.environ) -> int:
    """``RANK``; 0 when unset or malformed."""
    try:
        return int(environ.get("RANK", "0"))
    except ValueError:
        return 0


def under_launcher(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one rank among several already."""
    return "WORLD_SIZE" in environ and "RANK" in environ


def resolve_launch(spec: TrialSpec, description: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Launch:
    """Apply the rules to one trial.

    Args:
        spec: the trial.
        description: of its workload, as ``trials.loading.describe`` gives it.
        environ: pytest's own environment, which says whether it is a rank.

    Raises:
        LaunchModeError: the workload cannot be launched this way; the message says what to type instead.
    """
    name, execution = spec.workload.name, spec.execution
    size = world_size(environ)
    minimum = description["min_world_size"]
    if description["launch_mode"] == SCRIPT:
        if size > 1:
            raise LaunchModeError(
                f"torchrun is to start {name}, but pytest is a rank already; start it without torchrun"
            )
        return Launch("torchrun", execution.nproc or 1)
    if description["launch_mode"] != "distributed":
        if size > 1:
            raise LaunchModeError(f"workload {name} is single_process; do not wrap with torchrun")
        if execution.nproc is not None and execution.nproc > 1:
            raise LaunchModeError(
                f"workload {name} is single_process; --aorta-nproc {execution.nproc} does not apply to it"
            )
        return Launch("single")
    external = execution.launcher == "external" or (execution.launcher == "auto" and under_launcher(environ))
    if external:
        if size < minimum:
            raise LaunchModeError(
                f"workload {name} requires WORLD_SIZE >= {minimum} (got {size}); launch with "
                f"torchrun --nproc_per_node={minimum} -m pytest --aorta-workload {name} ..."
            )
        if not under_launcher(environ):
            raise LaunchModeError(
                "--aorta-launcher external: pytest is not a rank, for RANK and WORLD_SIZE are not set; launch with "
                f"torchrun --nproc_per_node={minimum} -m pytest --aorta-workload {name} ..."
            )
        return Launch("external", size)
    if execution.isolation == "none":
        raise LaunchModeError(
            f"workload {name} is distributed; --aorta-isolation none runs it only as a rank of an outer launcher: "
            f"torchrun --nproc_per_node={minimum} -m pytest --aorta-isolation none --aorta-workload {name} ..."
        )
    if execution.elastic.nnodes[1] > 1 and execution.launcher == "torchrun":
        raise LaunchModeError(
            "--aorta-launcher torchrun runs the ranks of one node; several nodes (nnodes=) need --aorta-launcher auto"
        )
    nodes = execution.elastic.nnodes[0]
    nproc = execution.nproc if execution.nproc is not None else math.ceil(minimum / nodes)
    if nproc * nodes < minimum:
        given = f"--aorta-nproc {nproc}" + (f" on {nodes} nodes" if nodes > 1 else "")
        raise LaunchModeError(f"workload {name} requires WORLD_SIZE >= {minimum} (got {given})")
    return Launch("torchrun" if execution.launcher == "torchrun" else "elastic", nproc)
