"""Which partition a job goes to. Faults of Row that are not here are marked."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_aorta.workflow.clusters import Cluster
from pytest_aorta.workflow.finding import RecipeError
from pytest_aorta.workflow.recipe import Resources


def chosen(partitions: list[dict[str, Any]], name: str | None = None, directories: int = 1, **resources: Any) -> str:
    """The name of the partition, with its warnings."""
    cluster = Cluster.model_validate(
        {"name": "c", "identify": {"always": True}, "scheduler": "slurm", "partition": partitions}
    )
    asked = Resources.model_validate(resources)
    partition = cluster.choose_partition(name, asked, directories)
    assert partition is not None
    return "; ".join([partition.name, *partition.warnings(asked, directories)])


def of(name: str, **limits: Any) -> dict[str, Any]:
    return {"name": name, **limits}


ANY = of("any")


@pytest.mark.parametrize(
    ("limits", "resources", "fits"),
    [
        ({"maximum_cpus_per_job": 8}, {"threads_per_process": 8}, True),
        ({"maximum_cpus_per_job": 8}, {"threads_per_process": 9}, False),
        ({"require_cpus_multiple_of": 4}, {"threads_per_process": 8}, True),
        ({"require_cpus_multiple_of": 4}, {"threads_per_process": 6}, False),
        ({"minimum_gpus_per_job": 1}, {"gpus_per_process": 1}, True),
        ({"minimum_gpus_per_job": 1}, {}, False),
        ({"maximum_gpus_per_job": 0}, {"gpus_per_process": 1}, False),
        ({"maximum_gpus_per_job": 0}, {}, True),
        ({"require_gpus_multiple_of": 4}, {"gpus_per_process": 4}, True),
        ({"require_gpus_multiple_of": 4}, {"gpus_per_process": 2}, False),
        ({"require_gpus_multiple_of": 4}, {}, False),
        ({"memory_per_cpu": "2G"}, {"memory": {"per_cpu_mb": 2048}}, True),
        ({"memory_per_cpu": "2G"}, {"memory": {"per_cpu_mb": 2049}}, False),
        ({"memory_per_gpu": "60G"}, {"memory": {"per_gpu_mb": 61441}, "gpus_per_process": 1}, False),
        ({"prevent_auto_select": True}, {}, False),
    ],
)
def test_the_first_partition_that_takes_the_job_is_chosen(
    limits: dict[str, Any], resources: dict[str, Any], fits: bool
) -> None:
    assert chosen([of("first", **limits), ANY], **resources) == ("first" if fits else "any")


def test_processes_per_directory_count_for_the_whole_job() -> None:
    partitions = [of("small", maximum_cpus_per_job=8), ANY]
    asked: dict[str, Any] = {"processes": {"per_directory": 2}, "threads_per_process": 2}
    assert chosen(partitions, directories=2, **asked) == "small"
    assert chosen(partitions, directories=3, **asked) == "any"


def test_a_partition_that_is_never_chosen_by_itself_can_be_chosen_by_name() -> None:
    """Row refuses it then as well."""
    assert chosen([ANY, of("debug", prevent_auto_select=True)], "debug") == "debug"


def test_limits_hold_for_a_partition_that_is_chosen_by_name() -> None:
    with pytest.raises(RecipeError, match=r"takes .* 9 CPUs and 0 GPUs: debug: at most 8 CPUs"):
        chosen([ANY, of("debug", maximum_cpus_per_job=8)], "debug", threads_per_process=9)


def test_a_warning_does_not_end_the_look_at_further_limits() -> None:
    """Row takes a partition that has no GPUs at all, once it has warned of CPUs."""
    partitions = [of("cpu", warn_cpus_not_multiple_of=32, maximum_gpus_per_job=0), ANY]
    assert chosen(partitions, gpus_per_process=1) == "any"
    assert chosen(partitions) == "cpu; partition cpu: 1 CPUs are no multiple of 32"
    assert chosen([of("gpu", warn_gpus_not_multiple_of=8)], gpus_per_process=3).endswith("3 GPUs are no multiple of 8")


def test_the_refusal_has_a_reason_for_each_partition() -> None:
    partitions = [
        of("cpu", maximum_gpus_per_job=0),
        of("gpu", maximum_gpus_per_job=4, maximum_cpus_per_job=1),
        of("huge", prevent_auto_select=True),
    ]
    with pytest.raises(RecipeError) as refused:
        chosen(partitions, gpus_per_process=8, threads_per_process=2)
    assert str(refused.value) == (
        "no partition of cluster 'c' takes a job with 2 CPUs and 8 GPUs: cpu: no GPUs | gpu: at most 1 CPUs; at most 4 "
        "GPUs | only by name (submit_options.c.partition): huge"
    )


def test_an_unknown_name_is_refused_unless_the_cluster_names_no_partitions() -> None:
    with pytest.raises(RecipeError, match="cluster 'c' has no partition 'any2'; there are any"):
        chosen([ANY], "any2")
    assert chosen([], "anything") == "anything"
