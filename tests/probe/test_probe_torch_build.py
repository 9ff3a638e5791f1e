"""What is recorded about torch: the real CPU build in a process of its own, and doubles of the GPU builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.guard import Facts, Guard
from pytest_aorta.probe.loaded import loaded_libraries
from pytest_aorta.probe.torch_facts import torch_build

if TYPE_CHECKING:
    import pytest


def in_a_fresh_process(code: str, **variables: str) -> Any:
    """What ``code`` prints, as JSON. This process may have imported torch long ago, with pools and all."""
    setup = "import json, os, sys\nfrom pytest_aorta.probe.collect import collect_env, collect_static\n"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    environ.pop("MKL_NUM_THREADS", None)
    command = [sys.executable, "-c", setup + code]
    return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def test_torch_is_never_imported_only_its_version_is_looked_up() -> None:
    code = (
        "print(json.dumps([collect_static().sections['torch'], 'torch' in sys.modules, collect_env().partial_reasons]))"
    )
    facts, imported, reasons = in_a_fresh_process(code)
    assert facts == {"imported": False, "version": metadata.version("torch")}
    assert not imported
    assert reasons == []


def test_a_real_build_is_described() -> None:
    code = "import torch\ns = collect_static()\nprint(json.dumps([s.sections, s.reasons, collect_env(s).process]))"
    sections, reasons, process = in_a_fresh_process(code, OMP_NUM_THREADS="1")
    facts = sections["torch"]
    assert reasons == []
    assert facts["imported"] is True
    assert facts["version"].partition("+")[0] == metadata.version("torch").partition("+")[0]
    assert len(facts["git_version"]) == 40
    assert "openmp" in facts["backends"]
    assert "gloo" in facts["distributed_backends"]
    assert facts["intraop_threads"] == process["torch_threads"]["intraop"] == 1
    assert any("ATen parallel backend" in line for line in facts["parallel_info"])
    assert any(Path(path).name.startswith("libtorch_cpu") for path in sections["libraries"])


def test_describing_a_process_does_not_change_it() -> None:
    """The zygote forks after this: no new thread, no child, and a torch that is as untouched as before."""
    code = """
import psutil, torch
me = psutil.Process()
before = me.num_threads()
static = collect_static()
collect_env(static)
after = me.num_threads()
torch.set_num_interop_threads(3)  # refused once the pool is there
os.environ["ATEN_CPU_CAPABILITY"] = "default"  # read once, at the first query
print(json.dumps([before, after, len(me.children()), torch.get_num_interop_threads(), torch.cuda.is_initialized(),
                  torch.backends.cpu.get_cpu_capability()]))
"""
    before, after, children, interop, initialised, capability = in_a_fresh_process(code, OMP_NUM_THREADS="4")
    assert after == before
    assert (children, interop, initialised, capability) == (0, 3, False, "DEFAULT")


class Forbidden:
    """Stands for a function that initialises a GPU's runtime, and must not be called."""

    def __call__(self) -> None:
        raise AssertionError("this would initialise a GPU")


def double_of_torch(monkeypatch: pytest.MonkeyPatch, *, cuda: str | None, hip: str | None) -> SimpleNamespace:
    """A double of a GPU build of torch, in the place of the real one."""
    nccl = ModuleType("torch.cuda.nccl")
    nccl.__dict__["version"] = lambda: (2, 26, 6)
    true, false = (lambda: True), (lambda: False)
    torch = SimpleNamespace(
        __version__="2.9.0+gpu",
        __file__="/site/torch/__init__.py",
        __config__=SimpleNamespace(parallel_info=lambda: "ATen/Parallel:\n", show=Forbidden()),
        version=SimpleNamespace(git_version="0" * 40, debug=False, cuda=cuda, hip=hip),
        compiled_with_cxx11_abi=true,
        cuda=SimpleNamespace(is_available=Forbidden(), get_arch_list=Forbidden(), nccl=nccl),
        backends=SimpleNamespace(
            cudnn=SimpleNamespace(is_available=true, version=lambda: 90100),
            mkl=SimpleNamespace(is_available=false),
            openmp=SimpleNamespace(is_available=true),
        ),
        get_num_threads=lambda: 8,
        get_num_interop_threads=lambda: 4,
        _C=SimpleNamespace(_nccl_version=lambda: 0, _cuda_getArchFlags=lambda: "gfx90a gfx942"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.cuda.nccl", nccl)
    monkeypatch.setitem(
        sys.modules,
        "torch.distributed",
        SimpleNamespace(is_available=true, is_nccl_available=true, is_mpi_available=false),
    )
    return torch


def described() -> Facts:
    guard = Guard()
    facts = torch_build(guard)
    assert guard.reasons == []
    return facts


def test_a_cuda_build_is_described_without_waking_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    double_of_torch(monkeypatch, cuda="12.8", hip=None)
    facts = described()
    assert (facts["cuda"], facts["cudnn_version"], facts["nccl_version"]) == ("12.8", 90100, "2.26.6")
    assert facts["backends"] == ["cudnn", "openmp"]
    assert facts["distributed_backends"] == ["nccl"]


def test_a_rocm_build_has_the_libraries_of_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    double_of_torch(monkeypatch, cuda=None, hip="7.0.1")
    facts = described()
    assert (facts["hip"], facts["miopen_version"], facts["rccl_version"]) == ("7.0.1", 90100, "2.26.6")
    assert facts["arch_list"] == ["gfx90a", "gfx942"]


def test_a_torch_that_is_half_imported_costs_only_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = double_of_torch(monkeypatch, cuda="12.8", hip=None)
    del torch.version
    guard = Guard()
    facts = torch_build(guard)
    assert facts["version"] == "2.9.0+gpu"
    assert facts["cuda"] is None
    assert "torch.cuda: AttributeError: 'types.SimpleNamespace' object has no attribute 'version'" in guard.reasons


def test_the_loaded_copies_of_the_libraries_that_matter(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 42                         "
    paths = [
        "/opt/rocm/lib/librccl.so.1.0.70001",
        "/opt/rocm/lib/librccl.so.1.0.70001",
        "/site/with space/libgomp-a34b3233.so.1.0.0",
        "/opt/rocm/lib/libhipblaslt.so.0",
        "/usr/lib/libssl.so.3",
        "/usr/lib/libc10-not",
        "[heap]",
    ]
    maps.write_text("".join(f"{line}{path}\n" for path in paths) + "7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n")
    assert loaded_libraries(maps) == [
        "/opt/rocm/lib/libhipblaslt.so.0",
        "/opt/rocm/lib/librccl.so.1.0.70001",
        "/site/with space/libgomp-a34b3233.so.1.0.0",
    ]
    assert loaded_libraries(tmp_path / "none") == []
