"""The machine and what is wrapped around a process: this one, and file trees as doubles of others."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from pytest_aorta.probe.collect import process
from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.host import cgroup_limits, container, host, runtime_context

CPU = "sys/devices/system/cpu"


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """``root`` with these files in it, a double of a machine's file system."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.rstrip("\n") + "\n")
    return root


POLICY = {"cpuinfo_max_freq": "3700000", "scaling_max_freq": "3700000"}


def governed(root: Path) -> Path:
    """A double of a machine with two clocks, one of which is limited."""
    for number, (governor, limit) in enumerate([("performance", "3700000"), ("powersave", "2000000")]):
        values = {**POLICY, "scaling_governor": governor, "scaling_max_freq": limit}
        tree(root, {f"{CPU}/cpufreq/policy{number}/{name}": text for name, text in values.items()})
    return tree(root, {f"{CPU}/cpufreq/boost": "1"})


def test_the_clocks_of_a_double(tmp_path: Path) -> None:
    assert host(Guard(), governed(tmp_path))["cpu_frequency"] == {
        "governors": ["performance", "powersave"],
        "max_mhz": 3700.0,
        "limit_mhz": 2000.0,
        "boost": True,
    }


def test_the_settings_of_huge_pages_of_a_double(tmp_path: Path) -> None:
    folder = "sys/kernel/mm/transparent_hugepage"
    lines = {"enabled": "always [madvise] never", "defrag": "always defer [defer+madvise] madvise never"}
    machine = host(Guard(), tree(tmp_path, {f"{folder}/{name}": text for name, text in lines.items()}))
    assert machine["transparent_huge_pages"] == {"enabled": "madvise", "defrag": "defer+madvise"}


# set_mempolicy, which has no wrapper in libc.
SYSCALLS = {"x86_64": 238, "aarch64": 237}


INTERLEAVE = 3


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="a kernel without NUMA")
def test_the_policy_of_this_process_is_that_which_has_been_set() -> None:
    code = f"""
import ctypes, sys
from pytest_aorta.probe.collect import process
from pytest_aorta.probe.guard import Guard
before = process(Guard())["numa_policy"]
libc = ctypes.CDLL(None, use_errno=True)
mask = ctypes.c_ulong(1)
refused = libc.syscall({SYSCALLS.get(platform.machine(), -1)}, {INTERLEAVE}, ctypes.byref(mask), ctypes.c_ulong(64))
print(before, refused and "refused" or process(Guard())["numa_policy"])
"""
    assert ctypes.sizeof(ctypes.c_ulong) == 8
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    if after == "refused":
        pytest.skip("the kernel, or the container, refuses set_mempolicy")
    assert (before, after) == (process(Guard())["numa_policy"], "interleave:0")


def test_nice_level_and_scheduler_are_those_of_the_process() -> None:
    code = """
import json, os
from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.collect import process
os.nice(3)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
guard = Guard()
facts = process(guard)
print(json.dumps([facts["nice"], facts["scheduler"], guard.reasons]))
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout == f'[{nice + 3}, {{"policy": "batch", "priority": 0}}, []]\n'


def test_this_process_is_described_by_the_kernel() -> None:
    guard = Guard()
    facts = process(guard)
    assert guard.reasons == []
    assert facts["threads"] == psutil.Process().num_threads()
    assert facts["scheduler"] == {"policy": "other", "priority": 0}
    assert facts["cpu_clock_mhz"] is None
    assert facts["memory_available_bytes"] < psutil.virtual_memory().total


def test_a_secret_on_the_command_line_of_a_double_is_redacted(tmp_path: Path) -> None:
    line = 'BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro quiet ds="nocloud;api_token=canary x" mitigations=off'
    found = host(Guard(), tree(tmp_path, {"proc/cmdline": line}))["kernel_command_line"]
    assert found == "BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro quiet ds=<redacted> mitigations=off"


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("some avg10=12.34 avg60=1.00 avg300=0.10 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 12.34),
        ("", None),
        (None, None),
    ],
)
def test_the_pressure_on_the_host_is_that_of_the_last_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, percent: float | None
) -> None:
    from pytest_aorta.probe import collect as module

    if text is not None:
        (tmp_path / "cpu").write_text(text)
    monkeypatch.setattr(module, "_PRESSURE", str(tmp_path))
    guard = Guard()
    assert process(guard)["pressure"] == {"cpu": percent, "memory": None}
    assert guard.reasons == []


ID = "0123456789abcdef" * 4


def kind(root: Path, environ: Mapping[str, str] | None = None) -> str | None:
    found = container(root, environ or {})
    return None if found is None else found["kind"]


def test_no_container_on_a_plain_host(tmp_path: Path) -> None:
    assert container(tree(tmp_path, {"proc/self/cgroup": "0::/user.slice/session-1.scope\n"}), {}) is None


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


def test_a_virtual_environment_is_the_interpreters_not_the_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = true\n"})
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere/else")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert runtime_context(Guard())["venv"] == {
        "path": str(tmp_path),
        "base_prefix": "/usr",
        "system_site_packages": True,
    }
