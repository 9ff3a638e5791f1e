"""What is recorded of torch, of loaded libraries and of imported modules: at the start, and after run()."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from pytest_aorta.probe import loaded
from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.software import torch_state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "names"),
    [({"cuda": "13.0", "hip": None}, ("cudnn", "nccl")), ({"cuda": None, "hip": "7.0.1"}, ("miopen", "rccl"))],
    ids=["cuda", "rocm"],
)
def test_a_gpu_build_is_described_without_waking_the_gpu(told: dict[str, Any], names: tuple[str, str]) -> None:
    """The installed torch, told that it is a build for GPUs: only the libraries of cuDNN and NCCL are doubles."""
    code = f"""
import importlib, traceback, types
import torch
asked = []
def note(module, name, value):
    setattr(module, name, lambda *args, **more: (asked.append([name, traceback.format_stack()[-2]]), value)[1])
for name, value in dict(is_available=True, device_count=1, get_device_capability=(9, 0), get_device_properties=None,
                        _lazy_init=None, current_device=0, get_arch_list=["sm_90"]).items():
    note(torch.cuda, name, value)
note(torch._C, "_cuda_getDeviceCount", 1)  # after these two, torch refuses a GPU to each forked child
note(torch._C, "_cuda_getArchFlags", "sm_90")
note(torch.__config__, "show", "")
torch.version.cuda, torch.version.hip = {told["cuda"]!r}, {told["hip"]!r}
torch._C._cudnn = types.SimpleNamespace(is_cuda=True, getVersionInt=lambda: 91900,
                                        getRuntimeVersion=lambda: (9, 19, 0), getCompileVersion=lambda: (9, 19, 0))
torch._C._nccl_version = torch.cuda.nccl.version = lambda: (2, 26, 6)
importlib.reload(torch.backends.cudnn)
static = collect_static()
collect_env(static)
print(json.dumps([static.sections["torch"], static.reasons, asked]))
"""
    facts, *reasons_and_asked = in_a_fresh_process(code)
    assert reasons_and_asked == [[], []]
    dnn, collectives = names
    assert facts.items() >= {**told, f"{dnn}_version": 91900, f"{collectives}_version": "2.26.6"}.items()


def in_a_fresh_process(code: str, cwd: Path | None = None, **variables: str) -> Any:
    setup = "import json, os, sys\nfrom pytest_aorta.probe.collect import collect_end, collect_env, collect_static\n"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    environ.pop("MKL_NUM_THREADS", None)
    command = [sys.executable, "-c", setup + code]
    done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # gloo of torch 2.9 prints, too


TELL = "\nend = collect_end()\nprint(json.dumps([end, extra]))"


def end_of(code: str, cwd: Path | None = None, **variables: str) -> tuple[Facts, Any]:
    """The snapshot after ``code``, and what it has put into ``extra``; nothing may be missing from the snapshot."""
    found, extra = in_a_fresh_process("extra = None\n" + code + TELL, cwd, **variables)
    assert found["partial_reasons"] == []
    return found, extra


@pytest.mark.slow
def test_a_real_build_and_what_run_has_set_are_described_and_the_process_is_as_before() -> None:
    """The zygote forks after the first look: no new thread, no child, and a torch that is as untouched as before."""
    code = """
import psutil, torch
me = psutil.Process()
before = me.num_threads()
static = collect_static()
process = collect_env(static).process
after = me.num_threads()
if (pid := os.fork()) == 0:  # a build for GPUs says where a fork may not use them
    os._exit(getattr(torch._C, "_cuda_isInBadFork", int)())
refused = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
torch.set_num_interop_threads(3)  # refused once the pool is there
os.environ["ATEN_CPU_CAPABILITY"] = "default"  # read once, at the first query
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_default_dtype(torch.float64)
extra = [static.sections["torch"], static.reasons, process, after - before, len(me.children()),
         torch.get_num_interop_threads(), torch.cuda.is_initialized(), refused]
torch.set_num_threads(1)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.deterministic = True
torch.backends.cuda.enable_flash_sdp(False)
torch.set_grad_enabled(False)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
"""
    end, (facts, reasons, process, *state) = end_of(code, OMP_NUM_THREADS="4")
    assert reasons == []
    assert state == [0, 0, 3, False, 0]
    assert facts["imported"] is True
    assert facts["version"].partition("+")[0] == metadata.version("torch").partition("+")[0]
    assert len(facts["git_version"]) == 40
    assert "openmp" in facts["backends"]
    assert "gloo" in facts["distributed_backends"]
    assert facts["intraop_threads"] == process["torch_threads"]["intraop"] in range(1, 5)
    assert any("ATen parallel backend" in line for line in facts["parallel_info"])

    torch = end["torch"]
    assert torch["cpu_capability"] in ("DEFAULT", "NO AVX")  # as torch 2.6 calls it
    assert torch["deterministic"] == {"algorithms": True, "warn_only": True, "fill_uninitialized_memory": True}
    assert torch["default_dtype"] == "torch.float64"
    assert torch["threads"]["intraop"] == 1
    assert torch["float32_matmul_precision"] == "high"
    assert torch["cudnn"]["deterministic"] is True
    assert "flash" not in torch["sdpa"]
    assert torch["grad_enabled"] is False
    assert torch["process_group"] == {"backend": "gloo", "world_size": 1, "rank": 0}


@pytest.mark.slow
def test_torch_is_never_imported_and_settings_that_it_cannot_tell_or_start_are_no_reason() -> None:
    """Old and new settings of precision together, which torch refuses to read, and a GPU that is not there.

    Of a torch that was imported only after the first look.
    """
    code = """
static = collect_static()
first = [static.sections["torch"], "torch" in sys.modules, collect_env().partial_reasons]
import torch
torch.backends.cuda.matmul.allow_tf32 = True
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.set_default_device("cuda")
extra = [first]
extra += [hasattr(torch._C, f"_{name}") for name in ("accelerator_getAllocatorSettings", "cuda_getAllocatorBackend")]
"""
    end, (first, has_settings, is_for_gpus) = end_of(code, PYTORCH_ALLOC_CONF="max_split_size_mb:64")
    torch = end["torch"]
    assert first == [{"imported": False, "version": metadata.version("torch")}, False, []]
    assert torch["default_dtype"] == "torch.float32"
    assert any(path.endswith("libtorch_cpu.so") for path in end["libraries"]["relevant"])
    # A private name of torch; without it the settings are only those among the recorded variables.
    settings, backend = "max_split_size_mb:64" if has_settings else None, "native" if is_for_gpus else None
    assert torch["allocator"] == {"settings": settings, "backend": backend}
    assert torch["matmul"]["fp32_precision"] == "tf32"
    assert (torch["default_device"], torch["devices"], torch["process_group"]) == ("cuda", {}, None)


class Forbidden:
    """Stands for a function that starts a GPU, and must not be called."""

    def __call__(self, *arguments: object) -> NoReturn:
        raise AssertionError("this would start a GPU")


@pytest.mark.parametrize("initialised", [True, False])
def test_only_a_gpu_that_the_workload_has_used_is_described(monkeypatch: pytest.MonkeyPatch, initialised: bool) -> None:
    stats = {"allocated_bytes.all.peak": 1024, "reserved_bytes.all.peak": 2048, "num_ooms": 1, "num_alloc_retries": 0}
    cuda = SimpleNamespace(
        is_initialized=lambda: initialised,
        device_count=(lambda: 1) if initialised else Forbidden(),
        current_device=(lambda: 0) if initialised else Forbidden(),
        memory_stats=(lambda index: stats) if initialised else Forbidden(),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.delitem(sys.modules, "torch.xpu", raising=False)
    found = torch_state(Guard())
    assert found is not None
    memory = {"peak_allocated_bytes": 1024, "peak_reserved_bytes": 2048, "out_of_memory": 1, "retried_allocations": 0}
    assert found["devices"] == ({"cuda": {"count": 1, "current": 0, "memory": [memory]}} if initialised else {})


def test_the_mapped_objects_of_a_double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        "/opt/rocm/lib/librccl.so.1.0.70001",
        "/usr/lib/libc.so.6",
        "/usr/lib/libc.so.6",
        "/site/torch/_C.cpython-311-x86_64-linux-gnu.so",
        "/site/with space/libgomp-a34b3233.so.1.0.0 (deleted)",
        "/usr/bin/python3",
        "/data/weights.source",
        "[heap]",
    ]
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f0-7f1 r-xp 00000000 fe:00 42          {path}\n" for path in paths))
    monkeypatch.setattr(loaded, "_MAPS", str(maps))
    assert loaded.libraries() == {
        "count": 4,
        "relevant": ["/opt/rocm/lib/librccl.so.1.0.70001", "/site/with space/libgomp-a34b3233.so.1.0.0"],
        "replaced": ["/site/with space/libgomp-a34b3233.so.1.0.0"],
    }


def test_a_library_that_is_replaced_during_run_is_named(tmp_path: Path) -> None:
    code = f"""
import ctypes, shutil
path = {str(tmp_path / "libown.so.1")!r}
ctypes.CDLL("libutil.so.1")
source = next(line.split()[-1] for line in open("/proc/self/maps") if "libutil" in line)
shutil.copy(source, path)
shutil.copy(source, path + ".new")
ctypes.CDLL(path)
static = collect_static()
extra = collect_end()["libraries"]
os.replace(path + ".new", path)
"""
    found, before = end_of(code)
    assert before["replaced"] == []
    assert found["libraries"] == {**before, "replaced": [str(tmp_path / "libown.so.1")]}
