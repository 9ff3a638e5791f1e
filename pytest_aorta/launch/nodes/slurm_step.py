"""What SLURM says of the step that pytest is a task of."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_aorta.launch.launch_mode import LaunchModeError, under_launcher
from pytest_aorta.trials.elastic_options import ElasticOptions


def check_step(options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse trials of several nodes in a job of SLURM in which these would never meet.

    Where the user says which node this is, or there is no job, nothing is refused.

    Raises:
        LaunchModeError: pytest does not run once on each of as many nodes as the trials have.
    """
    job = environ.get("SLURM_JOB_ID")
    least, most = options.nnodes
    if most == 1 or options.node_rank is not None or job is None:
        return
    remedy = f"srun -N {least} --ntasks-per-node 1 pytest ..., or give --aorta-elastic node_rank=NUMBER"
    wanted = f"--aorta-elastic nnodes={least}" if least == most else f"--aorta-elastic nnodes={least}:{most}"
    if "SLURM_STEP_ID" not in environ:
        raise LaunchModeError(
            f"{wanted}: pytest was started by the script of SLURM job {job}, on one node only; start it with {remedy}"
        )
    nodes, tasks = (environ.get(f"SLURM_STEP_NUM_{name}", "") for name in ("NODES", "TASKS"))
    if not nodes.isdecimal() or not tasks.isdecimal():  # of another launcher, with variables of its own
        return
    if not least <= int(nodes) <= most:
        raise LaunchModeError(f"{wanted}: {_step(environ)} has SLURM_STEP_NUM_NODES={nodes}; use {remedy}")
    if int(tasks) != int(nodes):
        raise LaunchModeError(
            f"{wanted}: {_step(environ)} has SLURM_STEP_NUM_TASKS={tasks} on {nodes} nodes, but one pytest "
            f"starts all ranks of its node (--aorta-nproc); use {remedy}"
        )


def check_tasks(results: Path, options: ElasticOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse tasks of one step that would all run the same trials into one results directory.

    A directory that was given with the number of the task is taken for its own. In a step with a terminal
    (``srun --pty``), pytest was perhaps typed there, which the first task alone has.

    Raises:
        LaunchModeError: pytest is one of several tasks, and not a rank of a launcher.
    """
    tasks, task = environ.get("SLURM_STEP_NUM_TASKS", ""), environ.get("SLURM_PROCID", "")
    if "SLURM_STEP_ID" not in environ or not tasks.isdecimal() or int(tasks) < 2 or under_launcher(environ):
        return
    if options.nnodes[1] > 1:  # ``check_step`` looks at these tasks
        return
    if task in re.findall(r"\d+", str(results)) or (task == "0" and "SLURM_PTY_PORT" in environ):
        return
    raise LaunchModeError(
        f"{_step(environ)} has SLURM_STEP_NUM_TASKS={tasks}, and each of these pytest would run all trials into "
        f"{results}; use srun -N 1 -n 1 pytest ..., which starts the ranks of a trial itself (--aorta-nproc), or give "
        "each task a results directory of its own: --aorta-results-dir results-$SLURM_PROCID, in a shell of the task"
    )


def port_offset(environ: Mapping[str, str]) -> int | None:
    """A number that differs between steps which may share a node; ``None`` outside of jobs.

    Jobs that run at the same time have numbers that are close to each other.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0")
    return int(job) + 101 * int(step) if job.isdecimal() and step.isdecimal() else None


def _step(environ: Mapping[str, str]) -> str:
    return f"step {environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']} of SLURM"
