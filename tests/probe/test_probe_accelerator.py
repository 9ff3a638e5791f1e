"""GPUs, toolkits and compilers: no GPU is at hand, so tools and file trees are doubles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_aorta.probe import host as module
from pytest_aorta.probe.guard import Guard
from pytest_aorta.probe.host import amd, compilers, cuda_toolkit_in_use, nvidia, rocm

Double = Callable[[str, str], None]


DRIVER = {
    "proc/driver/nvidia/version": (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version:  gcc 12.3.0\n"
    ),
}


# A double of nvidia-smi on a machine with one H200; the unit of memory.total is MiB.
ANSWERS_IN_FULL = """
echo "0, NVIDIA H200, GPU-1111, 00000000:18:00.0, 550.54.15, 143771, 9.0, 96.00.A0, Disabled, [N/A]"
"""


# One of a driver that does not know compute_cap, and refuses the whole query for it.
KNOWS_LESS = """
case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.' >&2; exit 2;; esac
echo "0, Tesla V100, GPU-2222, 00000000:00:1E.0, 418.40, 16160"
"""


NO_DRIVER = 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9'


MI300X = """\
cpu_cores_count 0
simd_count 1216
simd_per_cu 4
gfx_target_version 90402
location_id 1280
domain 0
unique_id 1311768467294899695
"""


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """``root`` with these files in it, standing in for a machine's file system."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


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
    double("nvidia-smi", ANSWERS_IN_FULL)
    assert nvidia(guard, tree(tmp_path, DRIVER)) == {
        "driver_version": "550.54.15",
        "devices": [
            {
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
        ],
    }
    assert guard.reasons == []


def test_an_old_driver_is_asked_for_less(tmp_path: Path, guard: Guard, double: Double) -> None:
    double("nvidia-smi", KNOWS_LESS)
    found = nvidia(guard, tmp_path)
    assert found is not None
    assert (found["driver_version"], found["devices"][0]["name"]) == ("418.40", "Tesla V100")
    assert guard.reasons == []


def test_nvidia_smi_that_fails_beside_a_driver_is_a_reason(tmp_path: Path, guard: Guard, double: Double) -> None:
    double("nvidia-smi", NO_DRIVER)
    found = nvidia(guard, tree(tmp_path, DRIVER))
    assert found is not None
    assert found == {"driver_version": "550.54.15", "devices": []}
    assert guard.reasons == [
        "accelerator.nvidia: ToolFailed: nvidia-smi exited with 9: "
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    ]


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
    monkeypatch.setattr(module, "_TIMEOUT_SEC", 1.0)
    found = compilers(guard)
    assert found["hipcc"] == {"path": str(path / "hipcc"), "version": None}
    assert found["nvcc"]["version"].endswith("V12.4.131")
    assert [reason.split(": ")[:2] for reason in guard.reasons] == [
        ["compilers.gcc", "OSError"],
        ["compilers.g++", "ToolFailed"],
        ["compilers.clang", "ToolFailed"],
        ["compilers.hipcc", "ToolTimedOut"],
    ]
