"""What a job script says to sbatch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import timedelta

from pytest_aorta.clusters.tables import Cluster, Partition
from pytest_aorta.workflow.actions import Action
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.recipe import SubmitOptions

#: Seconds before its time limit at which a job is asked to end; less for short ones. SLURM may be a minute early.
_NOTICE = 120

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,-]+")


def sbatch_options(action: Action, cluster: Cluster, partition: Partition | None, units: int) -> Iterator[str]:
    """The options of a job over so many units, in an order in which those of the user win.

    Raises:
        RecipeError: an option cannot be given to sbatch.
    """
    own = action.table.submit_options.get(cluster.name, SubmitOptions())
    resources = action.table.resources
    if partition is not None:
        yield f"--partition={quoted(partition.name)}"
    yield from _trial_sizes(action, units) if action.is_matrix else _command_sizes(action, partition, units)
    if resources.threads_per_process is not None:
        yield f"--cpus-per-task={resources.threads_per_process}"
    yield from _memory(action, partition)
    limit = resources.total_walltime(units)
    yield f"--time={max(1, math.ceil(limit / timedelta(minutes=1)))}"
    yield f"--signal=B:TERM@{min(_NOTICE, max(10, int(limit.total_seconds() / 10)))}"
    yield "--requeue"
    yield "--open-mode=append"
    yield from cluster.submit_options
    if own.account is not None:
        yield f"--account={quoted(own.account + ((partition and partition.account_suffix) or ''))}"
    for option in own.custom:
        if not option.isprintable():
            raise RecipeError(f"action {action.name!r}: submit option {option!r} is not one line of printable text")
        yield option


def _command_sizes(action: Action, partition: Partition | None, units: int) -> Iterator[str]:
    """Of a job whose command is started by launchers, on as many nodes as the partition says that it needs."""
    resources = action.table.resources
    yield f"--ntasks={resources.total_processes(units)}"
    if resources.gpus_per_process is not None:
        yield f"--gpus-per-task={resources.gpus_per_process}"
        total, per_node = resources.total_gpus(units), partition and partition.gpus_per_node
    else:
        total, per_node = resources.total_cpus(units), partition and partition.cpus_per_node
    if per_node:
        yield f"--nodes={math.ceil(total / per_node)}"


def _trial_sizes(action: Action, units: int) -> Iterator[str]:
    """Of a job whose trials have their ranks on one node, or on as many as ``nnodes`` says."""
    nodes, resources = nodes_of(action), action.table.resources
    tasks = math.ceil(resources.total_processes(units) / nodes)
    yield f"--nodes={nodes}"
    yield f"--ntasks-per-node={tasks}"
    if resources.gpus_per_process is not None:
        yield f"--gpus-per-node={resources.gpus_per_process * tasks}"


def _memory(action: Action, partition: Partition | None) -> Iterator[str]:
    """What the action asks for, or else what the partition has for each core or GPU."""
    resources, memory = action.table.resources, action.table.resources.memory
    if memory is not None and memory.per_gpu_mb is not None:
        if resources.gpus_per_process is None:
            raise RecipeError(
                f"action {action.name!r}: resources.memory.per_gpu_mb without resources.gpus_per_process; "
                "expected per_cpu_mb"
            )
        yield f"--mem-per-gpu={memory.per_gpu_mb}M"
    elif memory is not None:
        yield f"--mem-per-cpu={memory.per_cpu_mb}M"
    elif partition is not None and resources.gpus_per_process is not None:
        if partition.memory_per_gpu is not None:
            yield f"--mem-per-gpu={partition.memory_per_gpu}"
    elif partition is not None and partition.memory_per_cpu is not None:
        yield f"--mem-per-cpu={partition.memory_per_cpu}"


def nodes_of(action: Action) -> int:
    """Nodes that a trial of an action with a workload needs at least."""
    return int(str(action.table.distributed.elastic.get("nnodes", 1)).partition(":")[0])


def quoted(text: str) -> str:
    """A word of a line that sbatch reads.

    Raises:
        RecipeError: it cannot be written in one line.
    """
    if _PLAIN.fullmatch(text):
        return text
    if not text.isprintable():
        raise RecipeError(f"{text!r} is not one line of printable text, and cannot be given to sbatch")
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
