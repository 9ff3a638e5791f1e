"""The machine and what is wrapped around a process: this one, and file trees as doubles of others."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_aorta.probe import collect
from pytest_aorta.probe import host as probe_host
from pytest_aorta.probe.collect import process
from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.host import (
    amd,
    cgroup_limits,
    compilers,
    container,
    cuda_toolkit_in_use,
    host,
    nvidia,
    rocm,
    runtime_context,
)

Double = Callable[[str, str], None]

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


# GPUs, toolkits and compilers: none is at hand, so tools and file trees are doubles.

MI300X = """\
cpu_cores_count 0
simd_count 1216
simd_per_cu 4
gfx_target_version 90402
location_id 1280
domain 0
unique_id 1311768467294899695
"""


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    """Puts a shell script in the place of a tool; the tools without a double are not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    # The scripts use only what the shell has built in; sleep is called by its path.
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def guard() -> Guard:
    return Guard()


def test_what_nvidia_smi_tells(tmp_path: Path, guard: Guard, double: Double) -> None:
    # Of a machine with one H200; the unit of memory.total is MiB.
    row = "0, NVIDIA H200, GPU-1111, 00000000:18:00.0, 550.54.15, 143771, 9.0, 96.00.A0, Disabled, [N/A]"
    double("nvidia-smi", f"echo '{row}'")
    found = nvidia(guard, tmp_path)
    assert found is not None
    (device,) = found["devices"]
    assert device == {
        "index": 0,
        "name": "NVIDIA H200",
        "uuid": "GPU-1111",
        "pci_bus_id": "00000000:18:00.0",
        "driver_version": "550.54.15",
        "memory_total_bytes": 143771 * 2**20,
        "compute_capability": "9.0",
        "vbios_version": "96.00.A0",
        "mig_mode": "Disabled",
        "ecc_mode": None,
    }

    # An old driver refuses the whole query for a field that it does not know.
    refused = "echo 'Field \"compute_cap\" is not a valid field to query.' >&2; exit 2"
    row = "0, Tesla V100, GPU-2222, 00000000:00:1E.0, 418.40, 16160"
    double("nvidia-smi", f"case \"$*\" in *compute_cap*) {refused};; esac; echo '{row}'")
    found = nvidia(guard, tmp_path)
    assert found is not None
    assert (found["driver_version"], found["devices"][0]["name"]) == ("418.40", "Tesla V100")
    assert guard.reasons == []

    # One that fails beside a driver is a reason.
    double("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build"
    root = tree(tmp_path, {"proc/driver/nvidia/version": version})
    assert nvidia(guard, root) == {"driver_version": "550.54.15", "devices": []}
    assert guard.reasons == ["accelerator.nvidia: ToolFailed: nvidia-smi exited with 9: NVIDIA-SMI has failed"]


@pytest.mark.usefixtures("double")
def test_what_the_kernel_tells_about_amd_devices_and_hides_from_a_container(
    tmp_path: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    root = tree(
        tmp_path,
        {
            f"{nodes}/0/gpu_id": "0\n",
            f"{nodes}/0/properties": "cpu_cores_count 96\n",
            f"{nodes}/1/gpu_id": "50432\n",
            f"{nodes}/1/name": "ip discovery\n",
            f"{nodes}/1/properties": MI300X,
            f"{nodes}/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992\n",
            f"{nodes}/1/mem_banks/1/properties": "heap_type 4\nsize_in_bytes 65536\n",
            "sys/bus/pci/devices/0000:05:00.0/vbios_version": "113-M3000100-102\n",
            "sys/bus/pci/devices/0000:05:00.0/current_compute_partition": "SPX\n",
            "sys/module/amdgpu/version": "6.12.12\n",
        },
    )
    assert amd(guard, root) == {
        "driver_version": "6.12.12",
        "devices": [
            {
                "node": 1,
                "gfx": "gfx942",
                "pci_bus_id": "0000:05:00.0",
                "unique_id": "0x1234567890abcdef",
                "compute_units": 304,
                "memory_total_bytes": 206141652992,
                "product_name": None,
                "vbios_version": "113-M3000100-102",
                "current_compute_partition": "SPX",
                "current_memory_partition": None,
            }
        ],
        "hidden_devices": 0,
    }

    read_text = Path.read_text

    def forbidden(file: Path, encoding: str | None = None, errors: str | None = None) -> str:
        # What KFD answers for a device that the control group forbids. File modes would not do: root may read all.
        if file.parent.name == "1" and file.name == "gpu_id":
            raise PermissionError(1, "Operation not permitted", str(file))
        return read_text(file, encoding, errors)

    monkeypatch.setattr(Path, "read_text", forbidden)
    assert amd(guard, tmp_path) == {"driver_version": "6.12.12", "devices": [], "hidden_devices": 1}
    assert guard.reasons == []


def test_the_rocm_release_of_a_folder_and_its_components(tmp_path: Path) -> None:
    assert rocm(tmp_path) is None
    tree(
        tmp_path,
        {
            ".info/version": "7.0.1-42\n",
            "lib/cmake/rccl/rccl-config-version.cmake": 'set(PACKAGE_VERSION "2.26.6")\n',
            "lib/cmake/rccl/rccl-config.cmake": 'set(PACKAGE_VERSION "wrong file")\n',
            "lib/cmake/composable_kernel/composable_kernelConfigVersion.cmake": 'set (PACKAGE_VERSION "1.1.0")\n',
        },
    )
    assert rocm(tmp_path) == {
        "path": str(tmp_path.resolve()),
        "version": "7.0.1-42",
        "components": {"rccl": "2.26.6", "composable_kernel": "1.1.0"},
    }


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", None])
def test_the_toolkit_that_torch_would_build_with(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    named = tree(tmp_path / "named", {"version.json": '{"cuda": {"version": "12.4.1"}}'})
    on_path = tree(tmp_path / "on path", {"version.json": '{"cuda": {"version": "13.0.2"}}', "bin/nvcc": "#!/bin/sh\n"})
    (on_path / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    if variable is not None:
        monkeypatch.setenv(variable, str(named))
    assert cuda_toolkit_in_use() == {
        "path": str(named if variable else on_path),
        "version": "12.4.1" if variable else "13.0.2",
    }
    (on_path / "version.json").unlink()  # nvcc may be a script that calls the real one
    assert cuda_toolkit_in_use(str(named)) == {"path": str(named), "version": "12.4.1"}


NVCC = "echo 'nvcc: NVIDIA (R) Cuda compiler driver'; echo 'Cuda compilation tools, release 12.4, V12.4.131'"


def test_compilers_say_their_version_in_the_line_that_has_it(tmp_path: Path, guard: Guard, double: Double) -> None:
    path = tmp_path / "bin"
    double("nvcc", NVCC)
    double("hipcc", "echo 'HIP version: 6.2.41133'; echo 'AMD clang version 18.0.0git'")
    double("clang", "echo 'clang version 18.1.3'; echo 'Target: x86_64'")
    assert compilers(guard) == {
        "gcc": None,
        "g++": None,
        "clang": {"path": str(path / "clang"), "version": "clang version 18.1.3"},
        "hipcc": {"path": str(path / "hipcc"), "version": "HIP version: 6.2.41133"},
        "nvcc": {"path": str(path / "nvcc"), "version": "Cuda compilation tools, release 12.4, V12.4.131"},
    }
    assert guard.reasons == []


def test_one_that_hangs_or_fails_is_a_reason_and_hides_no_other(
    tmp_path: Path, guard: Guard, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bin"
    double("hipcc", "exec /bin/sleep 600")
    double("clang", "exit 0")
    double("g++", "echo 'no licence' >&2; exit 3")
    (path / "gcc").write_text("not a program")
    (path / "gcc").chmod(0o755)
    double("nvcc", NVCC)
    monkeypatch.setattr(probe_host, "_TIMEOUT_SEC", 1.0)
    found = compilers(guard)
    assert found["hipcc"] == {"path": str(path / "hipcc"), "version": None}
    assert found["nvcc"]["version"].endswith("V12.4.131")
    assert [reason.split(": ")[:2] for reason in guard.reasons] == [
        ["compilers.gcc", "OSError"],
        ["compilers.g++", "ToolFailed"],
        ["compilers.clang", "ToolFailed"],
        ["compilers.hipcc", "ToolTimedOut"],
    ]
