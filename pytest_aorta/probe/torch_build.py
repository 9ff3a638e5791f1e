"""How the installed torch was built, without ever importing it and without waking a GPU."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from pytest_aorta.probe.guard import Facts, Guard

_BACKENDS = ("cpu", "cudnn", "cusparselt", "miopen", "mkl", "mkldnn", "nnpack", "openmp")
_DISTRIBUTED = ("gloo", "mpi", "nccl", "ucc", "xccl")


def torch_build(guard: Guard) -> Facts:
    """Facts about torch; only ``imported`` and ``version`` while it is not imported.

    Only what is compiled in is asked for. Questions that look as harmless initialise a GPU's runtime, after which no
    forked child can use it: ``torch.cuda.is_available()`` and, on ROCm, ``torch.__config__.show()``.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return guard.facts("torch", {"imported": lambda: False, "version": _installed_version})
    return guard.facts(
        "torch",
        {
            "imported": lambda: True,
            "version": lambda: torch.__version__,
            "path": lambda: torch.__file__,
            "git_version": lambda: torch.version.git_version,
            "debug": lambda: torch.version.debug,
            "cuda": lambda: torch.version.cuda,
            "hip": lambda: torch.version.hip,
            "cxx11_abi": lambda: torch.compiled_with_cxx11_abi(),
            "arch_list": lambda: _arch_list(torch),
            "backends": lambda: _backends(torch),
            "distributed_backends": lambda: _distributed_backends(torch),
            **_library_versions(torch),
            "parallel_info": lambda: torch.__config__.parallel_info().splitlines(),
            "intraop_threads": lambda: torch.get_num_threads(),
            "interop_threads": lambda: torch.get_num_interop_threads(),
        },
    )


def _installed_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _on_gpu(torch: ModuleType) -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def _arch_list(torch: ModuleType) -> list[str] | None:
    """The GPU architectures the build has code for; None without any.

    Read where torch keeps it: in older releases ``torch.cuda.get_arch_list()`` counts the devices first.
    """
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags and _on_gpu(torch) else None


def _backends(torch: ModuleType) -> list[str]:
    """Names of the compute backends that are compiled in (OpenMP, MKL, ...); each is a flag of the build."""
    compiled = []
    for name in _BACKENDS:
        backend = getattr(torch.backends, name, None)
        available = getattr(backend, "is_available", None)
        if available is not None and available():
            compiled.append(name)
    return compiled


def _distributed_backends(torch: ModuleType) -> list[str]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return []
    tests = {name: getattr(distributed, f"is_{name}_available", None) for name in _DISTRIBUTED}
    return [name for name, test in tests.items() if test is not None and test()]


def _library_versions(torch: ModuleType) -> dict[str, Any]:
    """Probes for the GPU libraries of this build, under the names they have on its platform."""
    hip = getattr(getattr(torch, "version", None), "hip", None)
    return {
        ("miopen_version" if hip else "cudnn_version"): lambda: _dnn_version(torch),
        ("rccl_version" if hip else "nccl_version"): lambda: _collectives_version(torch),
    }


def _dnn_version(torch: ModuleType) -> int | None:
    if not (_on_gpu(torch) and torch.backends.cudnn.is_available()):
        return None
    version: int | None = torch.backends.cudnn.version()
    return version


def _collectives_version(torch: ModuleType) -> str | None:
    """Version of the NCCL or RCCL in this process. ncclGetVersion() returns a constant: no GPU takes part."""
    nccl = sys.modules.get("torch.cuda.nccl")
    if nccl is None or not (_on_gpu(torch) and hasattr(torch._C, "_nccl_version")):
        return None
    return ".".join(str(part) for part in nccl.version())
