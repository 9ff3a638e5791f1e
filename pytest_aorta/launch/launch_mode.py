"""How the ranks of a workload are launched, and the rules for it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from typing_extensions import NotRequired

from pytest_aorta.common import RequestError
from pytest_aorta.trials.command_line import COMMAND_TARGET
from pytest_aorta.trials.spec import TrialSpec

#: ``launch_mode`` of a script that takes the place of a workload.
SCRIPT = "script"

#: ``target`` of such a workload; which script, and how it is started, is in the options.
SCRIPT_TARGET = "pytest_aorta.launch.child.elastic:run_script"

#: ``target`` of a command whose ranks torchrun starts.
COMMAND_RANKS_TARGET = "pytest_aorta.launch.child.elastic:run_command_ranks"

#: ``launcher`` of commands that start exactly as they were typed.
AS_TYPED = "as-typed"

Mode = Literal["single", "elastic", "torchrun", "external"]


class LaunchModeError(RequestError):
    """A workload was launched in a way that it does not support."""


class EngineUnusable(RequestError):
    """No trial can run: a host cannot be reached, or runs other code."""


@dataclass(frozen=True)
class LaunchPlan:
    """How to start the processes of a trial: ``nproc`` ranks on this host."""

    mode: Mode
    nproc: int = 1


def is_command(target: str) -> bool:
    """Whether a trial runs a command."""
    return target in (COMMAND_TARGET, COMMAND_RANKS_TARGET)


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


def resolve_launch(
    spec: TrialSpec, launch_mode: str, min_world_size: int, environ: Mapping[str, str] = os.environ
) -> LaunchPlan:
    """Plan the launch of a trial."""
    name, execution = spec.workload.name, spec.execution
    size = world_size(environ)
    if launch_mode == SCRIPT:
        if size > 1:
            raise LaunchModeError(
                f"torchrun is to start {name}, but pytest is a rank already; start it without torchrun"
            )
        return LaunchPlan("torchrun", execution.nproc or 1)
    if execution.launcher == AS_TYPED and not is_command(spec.workload.target):
        raise LaunchModeError(f"--aorta-launcher {AS_TYPED} is for commands, and {name} is a workload")
    if launch_mode != "distributed":
        if size > 1:
            raise LaunchModeError(f"workload {name} is single_process; do not wrap with torchrun")
        if execution.nproc is not None and execution.nproc > 1:
            raise LaunchModeError(
                f"workload {name} is single_process; --aorta-nproc {execution.nproc} does not apply to it"
            )
        return LaunchPlan("single")
    external = execution.launcher == "external" or (execution.launcher == "auto" and under_launcher(environ))
    if external and spec.environment.enter:
        raise LaunchModeError(
            f"environment {spec.environment.name!r} is to be entered, but pytest is a rank already; start pytest "
            "without torchrun: its ranks are then started in the container"
        )
    if external:
        if size < min_world_size:
            raise LaunchModeError(
                f"workload {name} requires WORLD_SIZE >= {min_world_size} (got {size}); launch with "
                f"torchrun --nproc_per_node={min_world_size} -m pytest --aorta-workload {name} ..."
            )
        if not under_launcher(environ):
            raise LaunchModeError(
                "--aorta-launcher external: pytest is not a rank, for RANK and WORLD_SIZE are not set; launch with "
                f"torchrun --nproc_per_node={min_world_size} -m pytest --aorta-workload {name} ..."
            )
        return LaunchPlan("external", size)
    if size > 1 and not under_launcher(environ):
        raise LaunchModeError(
            f"WORLD_SIZE={size} is set, but RANK is not: no launcher has started this process as a rank of {name}; "
            "unset WORLD_SIZE, and the ranks are started from here"
        )
    if execution.isolation == "none":
        raise LaunchModeError(
            f"workload {name} is distributed; --aorta-isolation none runs it only as a rank of an outer launcher: "
            f"torchrun --nproc_per_node={min_world_size} -m pytest --aorta-isolation none --aorta-workload {name} ..."
        )
    if execution.elastic.nnodes[1] > 1 and execution.launcher == "torchrun":
        raise LaunchModeError(
            "--aorta-launcher torchrun runs the ranks of one node; several nodes (nnodes=) need --aorta-launcher auto"
        )
    nodes = execution.elastic.nnodes[0]
    nproc = execution.nproc if execution.nproc is not None else math.ceil(min_world_size / nodes)
    if nproc * nodes < min_world_size:
        given = f"--aorta-nproc {nproc}" + (f" on {nodes} nodes" if nodes > 1 else "")
        raise LaunchModeError(f"workload {name} requires WORLD_SIZE >= {min_world_size} (got {given})")
    return LaunchPlan("torchrun" if execution.launcher == "torchrun" else "elastic", nproc)


class WorkloadArgument(TypedDict):
    """A workload and its options, for ``launch.child.workload_main.load`` and ``prepare``.

    For a zygote, more is said; cells that differ in ``launcher`` share none. ``import_seed`` is that of the trial,
    where each trial imports the workload in a process of its own. ``preload`` names modules to import before the
    workload, ``learned`` those that an earlier trial has imported: they are imported after the workload, on the
    ``cores`` of a slot.
    """

    target: str
    overrides: dict[str, Any]
    steps: int | None
    launcher: NotRequired[str]
    import_seed: NotRequired[int | None]
    preload: NotRequired[list[str]]
    learned: NotRequired[list[str]]
    cores: NotRequired[list[int] | None]


class TrialPayload(WorkloadArgument):
    """For ``launch.child.workload_main.run``.

    ``overlay`` and ``watched`` hold names of variables, those set for this trial and those to record. ``place`` holds
    variables; in the folder ``sockets``, ranks make sockets for the host, and their agent has its temporary files.
    ``rank_seed`` takes the place of a seed that derives from ``seed``; ``launcher_pid`` is the process of an outer
    launcher. ``base_pid`` is added in the trial's process: the process with the variables that the launcher of the
    ranks starts from, if there is one.
    ``watch_imports``: report what the workload imports that its zygote could have imported before. ``cwd``: the trial's
    own working directory, ``None`` for that of its zygote.
    ``timeout`` and ``stall_timeout``, in seconds, are those that the host will end it by; ``source`` is the workload's
    file.
    """

    overlay: list[str]
    watched: list[str]
    environment: dict[str, Any]
    collect: list[str]
    place: dict[str, str]
    cwd: str | None
    sockets: str
    mode: Mode
    nproc: int
    trial_id: str
    folder: str
    grace: float
    memory: int | None
    elastic: dict[str, Any]
    seed: int
    rank_seed: int | None
    launcher_pid: int | None
    watch_imports: bool
    timeout: float | None
    stall_timeout: float | None
    source: str | None
    base_pid: NotRequired[int | None]
