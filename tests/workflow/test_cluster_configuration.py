"""Which clusters and launchers are known, and which one this is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.workflow.clusters import Configuration
from pytest_aorta.workflow.finding import RecipeError

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


def test_a_cluster_of_the_project_comes_before_that_of_the_user_and_built_in_ones(configuration: Configuration) -> None:
    write(configuration, "user", "clusters.toml", MINE + MINE.replace('"mine"', '"andes"'))
    assert configuration.cluster("mine").partition[0].name == "only"
    assert configuration.cluster("andes").partition[0].name == "only"
    other = Configuration(configuration.folders)
    write(configuration, "project", "clusters.toml", MINE.replace("only", "first"))
    assert other.cluster(None, {"WHERE": "mine"}).partition[0].name == "first"


def test_an_unknown_name_is_refused_with_those_that_there_are(configuration: Configuration) -> None:
    with pytest.raises(RecipeError, match=r"no cluster is called 'forntier'; there are andes, .*frontier.*none"):
        configuration.cluster("forntier")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'name = "only"',
            'nam = "only"',
            r"clusters.toml:7: cluster\[0\].partition\[0\]: unknown key 'nam'; did you mean 'name'",
        ),
        ('scheduler = "slurm"', "", r"clusters.toml:2: cluster\[0\]: key 'scheduler' is missing$"),
        ('"slurm"', '"pbs"', r"clusters.toml:5: cluster\[0\].scheduler = 'pbs': expected 'bash' or 'slurm'$"),
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


def test_launchers_are_merged_by_cluster(configuration: Configuration) -> None:
    write(configuration, "user", "launchers.toml", '[mpi.none]\nexecutable = "mpiexec"\nprocesses = "-n "\n')
    write(configuration, "project", "launchers.toml", '[numa.default]\nexecutable = "numactl -l"\n')
    here, anvil = configuration.launchers_on("none"), configuration.launchers_on("anvil")
    assert (here["mpi"].executable, anvil["mpi"].executable) == ("mpiexec", "srun --mpi=pmi2")
    assert configuration.launchers_on("other")["mpi"].executable == "srun"
    assert here["numa"] == anvil["numa"]


def test_a_launcher_without_a_default_is_refused(configuration: Configuration) -> None:
    write(configuration, "user", "launchers.toml", '[numa.none]\nexecutable = "numactl"\n')
    with pytest.raises(RecipeError, match=r"launcher 'numa' has no table \[numa.default\]"):
        configuration.launchers_on("none")
