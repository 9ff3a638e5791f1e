"""The machine and what is wrapped around a process: this one, and file trees as doubles of others."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_aorta.probe import collect
from pytest_aorta.probe.collect import process
from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.host import cgroup_limits, container, host, runtime_context

SYSCALLS = {"x86_64": 238, "aarch64": 237}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """``root`` with these files in it, a double of a machine's file system."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.rstrip("\n") + "\n")
    return root


def test_clocks_huge_pages_and_the_command_line_of_a_double(tmp_path: Path) -> None:
    cpu, pages = "sys/devices/system/cpu/cpufreq", "sys/kernel/mm/transparent_hugepage"
    files = {
        f"{cpu}/boost": "1",
        f"{pages}/enabled": "always [madvise] never",
        f"{pages}/defrag": "always defer [defer+madvise] madvise never",
        "proc/cmdline": 'BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro quiet ds="nocloud;api_token=canary x" mitigations=off',
    }
    for number, (governor, limit) in enumerate([("performance", "3700000"), ("powersave", "2000000")]):
        policy = {"cpuinfo_max_freq": "3700000", "scaling_governor": governor, "scaling_max_freq": limit}
        files |= {f"{cpu}/policy{number}/{name}": text for name, text in policy.items()}
    machine = host(Guard(), tree(tmp_path, files))
    governors = ["performance", "powersave"]
    frequency = {"governors": governors, "max_mhz": 3700.0, "limit_mhz": 2000.0, "boost": True}
    assert machine["cpu_frequency"] == frequency
    assert machine["transparent_huge_pages"] == {"enabled": "madvise", "defrag": "defer+madvise"}
    line = "BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro quiet ds=<redacted> mitigations=off"
    assert machine["kernel_command_line"] == line


def test_nice_level_scheduler_and_policy_of_memory_are_those_of_the_process() -> None:
    # set_mempolicy has no wrapper in libc.
    code = f"""
import ctypes, json, os
from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.collect import process
os.nice(3)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
number, interleave, mask = {SYSCALLS.get(platform.machine(), -1)}, 3, ctypes.c_ulong(1)
refused = ctypes.CDLL(None).syscall(number, interleave, ctypes.byref(mask), ctypes.c_ulong(64))
guard = Guard()
facts = process(guard)
print(json.dumps([facts["nice"], facts["scheduler"], guard.reasons, refused, facts["numa_policy"]]))
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    nice, scheduler, reasons, refused, policy = json.loads(done.stdout)
    assert (nice, reasons) == (os.getpriority(os.PRIO_PROCESS, 0) + 3, [])
    assert scheduler == {"policy": "batch", "priority": 0}
    assert policy == (process(Guard())["numa_policy"] if refused else "interleave:0")


def test_this_process_is_described_by_the_kernel() -> None:
    guard = Guard()
    facts = process(guard)
    assert guard.reasons == []
    assert facts["threads"] == psutil.Process().num_threads()
    assert facts["scheduler"] == {"policy": "other", "priority": 0}
    assert facts["cpu_clock_mhz"] is None
    assert facts["memory_available_bytes"] < psutil.virtual_memory().total


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
    if text is not None:
        (tmp_path / "cpu").write_text(text)
    monkeypatch.setattr(collect, "_PRESSURE", str(tmp_path))
    guard = Guard()
    assert process(guard)["pressure"] == {"cpu": percent, "memory": None}
    assert guard.reasons == []


ID = "0123456789abcdef" * 4


MOUNT = f"716 715 254:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda1 rw"


@pytest.mark.parametrize(
    ("files", "environ", "found"),
    [
        ({"proc/self/cgroup": "0::/user.slice/session-1.scope"}, {}, None),
        (
            {".dockerenv": "", "proc/self/cgroup": "0::/", "proc/self/mountinfo": MOUNT},
            {},
            {"kind": "docker", "detected_by": ["/.dockerenv"], "id": ID, "image": None, "image_id": None},
        ),
        (
            {"run/.containerenv": 'engine="podman-4"\nimage="quay.io/rocm:7"\nimageid="5ab"'},
            {},
            {"kind": "podman", "image": "quay.io/rocm:7", "image_id": "5ab"},
        ),
        (
            {".dockerenv": "", "proc/self/cgroup": f"0::/kubepods.slice/cri-containerd-{ID}.scope"},
            {},
            {"kind": "kubernetes"},
        ),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"kind": "kubernetes"}),
    ],
    ids=["plain", "docker", "podman", "pod", "pod by variable"],
)
def test_a_container_is_known_by_what_it_leaves_and_a_pod_is_kubernetes(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], found: dict[str, Any] | None
) -> None:
    told = container(tree(tmp_path, files), environ)
    assert (told and {name: told[name] for name in found or ()}) == found


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
