"""Which clusters and partitions there are, and which a job goes to. Faults of Row that are not here are marked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_aorta.workflow.clusters import Cluster, Configuration
from pytest_aorta.workflow.finding import RecipeError, UnknownKey
from pytest_aorta.workflow.recipe import JobResources

MINE = """
[[cluster]]
name = "mine"
identify.by_environment = ["WHERE", "mine"]
scheduler = "slurm"
[[cluster.partition]]
name = "only"
"""


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    (tmp_path / "project").mkdir()
    (tmp_path / "user/pytest-aorta").mkdir(parents=True)
    return Configuration.of_project(tmp_path / "project", {"XDG_CONFIG_HOME": str(tmp_path / "user")})


def write(configuration: Configuration, where: str, name: str, text: str) -> None:
    (configuration.folders[("project", "user").index(where)] / name).write_text(text)


def test_built_in_clusters_are_recognised_by_their_variables_and_this_host_always(configuration: Configuration) -> None:
    assert configuration.cluster(None, {"LMOD_SYSTEM_NAME": "frontier"}).name == "frontier"
    assert configuration.cluster(None, {"LMOD_SYSTEM_NAME": "Delta"}).name == "delta"
    assert configuration.cluster(None, {"RCAC_CLUSTER": "anvil"}).name == "anvil"
    assert configuration.cluster(None, {"CLUSTER_NAME": "greatlakes"}).name == "greatlakes"
    assert configuration.cluster(None, {}).name == "none"
    assert configuration.cluster("slurm", {}).scheduler == "slurm"
    with pytest.raises(RecipeError, match=r"no cluster is called 'forntier'; there are andes, .*frontier.*none"):
        configuration.cluster("forntier")


def test_a_cluster_of_the_project_comes_before_that_of_the_user_and_built_in_ones(configuration: Configuration) -> None:
    write(configuration, "user", "clusters.toml", MINE + MINE.replace('"mine"', '"andes"'))
    assert configuration.cluster("mine").partition[0].name == "only"
    assert configuration.cluster("andes").partition[0].name == "only"
    other = Configuration(configuration.folders)
    write(configuration, "project", "clusters.toml", MINE.replace("only", "first"))
    assert other.cluster(None, {"WHERE": "mine"}).partition[0].name == "first"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'name = "only"',
            'nam = "only"',
            r"clusters.toml:7: cluster\[0\].partition\[0\]: unknown key 'nam'; did you mean 'name'",
        ),
        ('scheduler = "slurm"', "", r"clusters.toml:2: cluster\[0\]: key 'scheduler' is missing$"),
        (
            '"slurm"',
            '"pbs"',
            r"clusters.toml:5: cluster\[0\].scheduler = 'pbs': expected 'bash', 'slurm', or one that PSI/J knows",
        ),
        ('name = "only"', 'name = "on\\nly"', "clusters.toml:7: .*one line of printable text"),
        ('name = "only"', 'name = "only"\nmemory_per_cpu = "lots"', "clusters.toml:8: .*a size such as 1970M or 5G"),
        ("identify.by_environment", "identify.always = true\nidentify.by_environment", "set exactly one of"),
        ('"mine"', "mine", "clusters.toml: is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_error_with_file_and_line(
    configuration: Configuration, old: str, new: str, message: str
) -> None:
    write(configuration, "project", "clusters.toml", MINE.replace(old, new, 1))
    with pytest.raises(RecipeError, match=message):
        configuration.cluster("mine")


def test_launchers_are_merged_by_cluster_and_need_a_default(configuration: Configuration) -> None:
    write(configuration, "user", "launchers.toml", '[mpi.none]\nexecutable = "mpiexec"\nprocesses = "-n "\n')
    write(configuration, "project", "launchers.toml", '[numa.default]\nexecutable = "numactl -l"\n')
    here, anvil = configuration.launchers_on("none"), configuration.launchers_on("anvil")
    assert (here["mpi"].executable, anvil["mpi"].executable) == ("mpiexec", "srun --mpi=pmi2")
    assert configuration.launchers_on("other")["mpi"].executable == "srun"
    assert here["numa"] == anvil["numa"]
    write(configuration, "user", "launchers.toml", '[other.none]\nexecutable = "numactl"\n')
    with pytest.raises(RecipeError, match=r"launcher 'other' has no table \[other.default\]"):
        Configuration(configuration.folders).launchers_on("none")


def chosen(partitions: list[dict[str, Any]], name: str | None = None, directories: int = 1, **resources: Any) -> str:
    """The name of the partition, with its warnings."""
    cluster = Cluster.model_validate(
        {"name": "c", "identify": {"always": True}, "scheduler": "slurm", "partition": partitions}
    )
    asked = JobResources.model_validate(resources)
    partition = cluster.choose_partition(name, asked, directories)
    assert partition is not None
    return "; ".join([partition.name, *partition.warnings(asked, directories)])


def of(name: str, **limits: Any) -> dict[str, Any]:
    return {"name": name, **limits}


ANY = of("any")


def test_the_first_partition_that_takes_the_job_is_chosen() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
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
    ]
    for limits, resources, fits in cases:
        assert chosen([of("first", **limits), ANY], **resources) == ("first" if fits else "any")


def test_keys_of_later_versions_of_row(configuration: Configuration) -> None:
    text = MINE.replace("[[cluster.partition]]", 'slurm_gpus_per_task = "--gres=gpu:"\n[[cluster.partition]]')
    write(configuration, "project", "clusters.toml", text + "memory_per_cpu_mb = 1970\nof_the_future = 3\n")
    with pytest.warns(UnknownKey, match=r"clusters.toml: unknown key 'of_the_future', perhaps of a later version"):
        cluster = configuration.cluster("mine")
    assert (cluster.slurm_gpus_per_task, cluster.partition[0].memory_per_cpu) == ("--gres=gpu:", "1970M")
    assert configuration.launchers_on("mine")["rayon"].words(JobResources(threads_per_process=4), 1) == (
        "RAYON_NUM_THREADS=4"
    )


def test_less_memory_than_there_is_is_warned_of() -> None:
    some = [of("some", memory_per_cpu="2G")]
    warned = "partition some: 2000M of memory per CPU is asked for, and 2G would be there"
    assert warned in chosen(some, memory={"per_cpu_mb": 2000})
    assert chosen(some, memory={"per_cpu_mb": 2048}) == "some"


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


ROOT = Path(__file__).parents[2]


def test_each_feature_of_row_has_a_test() -> None:
    text = (Path(__file__).parent / "features_of_row.md").read_text()
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == [*range(1, 35)]
    named = re.findall(r"`(\S+\.py)::(\w+)`", text)
    assert len(named) >= 34 + 6 + 13
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)
