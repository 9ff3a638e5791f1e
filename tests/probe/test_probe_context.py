"""Containers, control groups and virtual environments, recognised by their files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_aorta.probe.host import cgroup_limits, conda_environment, container, virtual_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

ID = "0123456789abcdef" * 4


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """``root`` with these files in it, standing in for a machine's file system."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def kind(root: Path, environ: Mapping[str, str] | None = None) -> str | None:
    found = container(root, environ or {})
    return None if found is None else found["kind"]


def test_no_container_on_a_plain_host(tmp_path: Path) -> None:
    assert container(tree(tmp_path, {"proc/self/cgroup": "0::/user.slice/session-1.scope\n"}), {}) is None


def test_no_container_where_there_is_no_proc(tmp_path: Path) -> None:
    assert container(tmp_path, {}) is None


def test_docker_by_its_file_with_its_id_from_the_mounts(tmp_path: Path) -> None:
    mount = f"716 715 254:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda1 rw\n"
    root = tree(tmp_path, {".dockerenv": "", "proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount})
    assert container(root, {}) == {
        "kind": "docker",
        "detected_by": ["/.dockerenv"],
        "id": ID,
        "image": None,
        "image_id": None,
    }


def test_docker_by_its_control_group(tmp_path: Path) -> None:
    found = container(tree(tmp_path, {"proc/self/cgroup": f"12:cpu:/docker/{ID}\n0::/system.slice\n"}), {})
    assert found == {"kind": "docker", "detected_by": ["cgroup docker"], "id": ID, "image": None, "image_id": None}


def test_podman_tells_its_image(tmp_path: Path) -> None:
    found = container(
        tree(tmp_path, {"run/.containerenv": 'engine="podman-4"\nimage="quay.io/rocm:7"\nimageid="5ab"\n'}), {}
    )
    assert found is not None
    assert (found["kind"], found["image"], found["image_id"]) == ("podman", "quay.io/rocm:7", "5ab")


def test_a_pod_is_kubernetes_although_its_container_is_dockers(tmp_path: Path) -> None:
    root = tree(tmp_path, {".dockerenv": "", "proc/self/cgroup": f"0::/kubepods.slice/cri-containerd-{ID}.scope\n"})
    assert kind(root) == "kubernetes"
    assert kind(tree(tmp_path / "pod", {".dockerenv": ""}), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "kubernetes"


def test_singularity_by_its_folder_and_by_its_variable(tmp_path: Path) -> None:
    assert kind(tree(tmp_path / "a", {".singularity.d/runscript": ""})) == "singularity"
    assert kind(tmp_path / "b", {"APPTAINER_CONTAINER": "/images/x.sif"}) == "singularity"


def test_apptainer_tells_its_image(tmp_path: Path) -> None:
    found = container(tmp_path, {"APPTAINER_CONTAINER": "/images/x.sif"})
    assert found is not None
    assert found["image"] == "/images/x.sif"


def test_the_tightest_limit_of_version_2_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": "1000\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
    }
    assert cgroup_limits(tree(tmp_path, files)) == {"memory_limit_bytes": 1000, "cpu_limit": 1.5}


def test_the_limits_of_version_1_where_only_the_containers_root_is_mounted(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": f"4:memory:/docker/{ID}\n2:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/x:y\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2048\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup_limits(tree(tmp_path, files)) == {"memory_limit_bytes": 2048, "cpu_limit": 0.5}


def test_no_limit_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n2:cpu:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup_limits(tree(tmp_path, files)) == {"memory_limit_bytes": None, "cpu_limit": None}
    assert cgroup_limits(tmp_path / "nothing") == {"memory_limit_bytes": None, "cpu_limit": None}


def test_a_virtual_environment_is_the_interpreters_not_the_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n"})
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere/else")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert virtual_environment() == {"path": str(tmp_path), "base_prefix": "/usr", "system_site_packages": True}


def test_no_virtual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert virtual_environment() is None


def test_a_conda_environment_is_told_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "envs" / "rocm7"))
    assert conda_environment() is None
    (tmp_path / "envs" / "rocm7" / "conda-meta").mkdir(parents=True)
    assert conda_environment() == {"path": str(tmp_path / "envs" / "rocm7"), "name": "rocm7"}
