"""Which partition of a cluster a job goes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_aorta.clusters.tables import Cluster, Partition, megabytes
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.resources import Resources


@dataclass(frozen=True)
class Choice:
    """A partition, and what it would rather have.

    Attributes:
        partition: ``None`` for a cluster that names none: its default one.
        warnings: such as a number of CPUs that leaves part of a node idle.
    """

    partition: Partition | None
    warnings: tuple[str, ...] = ()


def choose_partition(cluster: Cluster, name: str | None, resources: Resources, directories: int) -> Choice:
    """The partition of this name, or else the first that takes such a job and needs not be asked for by its name.

    Raises:
        RecipeError: there is none; the message has a reason for each.
    """
    if not cluster.partition:
        return Choice(Partition(name=name) if name is not None else None)
    if name is not None:
        named = next((each for each in cluster.partition if each.name == name), None)
        if named is None:
            known = ", ".join(each.name for each in cluster.partition)
            raise RecipeError(f"cluster {cluster.name!r} has no partition {name!r}; there are {known}")
        candidates = [named]
    else:
        candidates = [each for each in cluster.partition if not each.prevent_auto_select]
    reasons = []
    for each in candidates:
        against = [*_against(each, resources, directories)]
        if not against:
            return Choice(
                each, tuple(f"partition {each.name}: {text}" for text in _notes(each, resources, directories))
            )
        reasons.append(f"{each.name}: {'; '.join(against)}")
    manual = [each.name for each in cluster.partition if each.prevent_auto_select and name is None]
    if manual:
        reasons.append(f"only by name (submit_options.{cluster.name}.partition): {', '.join(manual)}")
    raise RecipeError(
        f"no partition of cluster {cluster.name!r} takes a job with {resources.total_cpus(directories)} CPUs and "
        f"{resources.total_gpus(directories)} GPUs: {' | '.join(reasons)}"
    )


def _against(partition: Partition, resources: Resources, directories: int) -> Iterator[str]:
    """Why a partition does not take a job."""
    cpus, gpus = resources.total_cpus(directories), resources.total_gpus(directories)
    if partition.maximum_cpus_per_job is not None and cpus > partition.maximum_cpus_per_job:
        yield f"at most {partition.maximum_cpus_per_job} CPUs"
    if partition.require_cpus_multiple_of and cpus % partition.require_cpus_multiple_of:
        yield f"CPUs in multiples of {partition.require_cpus_multiple_of}"
    if partition.minimum_gpus_per_job is not None and gpus < partition.minimum_gpus_per_job:
        yield f"at least {partition.minimum_gpus_per_job} GPUs"
    if partition.maximum_gpus_per_job is not None and gpus > partition.maximum_gpus_per_job:
        yield "no GPUs" if partition.maximum_gpus_per_job == 0 else f"at most {partition.maximum_gpus_per_job} GPUs"
    if partition.require_gpus_multiple_of and (gpus == 0 or gpus % partition.require_gpus_multiple_of):
        yield f"GPUs in multiples of {partition.require_gpus_multiple_of}"
    memory = resources.memory
    for what, asked, limit in (
        ("CPU", memory and memory.per_cpu_mb, partition.memory_per_cpu),
        ("GPU", memory and memory.per_gpu_mb, partition.memory_per_gpu),
    ):
        if asked and limit is not None and asked > megabytes(limit):
            yield f"at most {limit} of memory per {what}, not {asked}M"


def _notes(partition: Partition, resources: Resources, directories: int) -> Iterator[str]:
    """What a partition would rather have."""
    cpus, gpus = resources.total_cpus(directories), resources.total_gpus(directories)
    if partition.warn_cpus_not_multiple_of and cpus % partition.warn_cpus_not_multiple_of:
        yield f"{cpus} CPUs are no multiple of {partition.warn_cpus_not_multiple_of}"
    if partition.warn_gpus_not_multiple_of and (gpus == 0 or gpus % partition.warn_gpus_not_multiple_of):
        yield f"{gpus} GPUs are no multiple of {partition.warn_gpus_not_multiple_of}"
