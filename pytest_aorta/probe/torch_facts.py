"""How torch was built, and what it has been set to; torch is never imported for it, and no GPU is woken."""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType
from typing import Any

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
    is_hip = bool(getattr(getattr(torch, "version", None), "hip", None))
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
            "backends": lambda: [name for name in _BACKENDS if _says(torch.backends, name, "is_available")],
            "distributed_backends": _distributed_backends,
            "miopen_version" if is_hip else "cudnn_version": lambda: _dnn_version(torch),
            "rccl_version" if is_hip else "nccl_version": lambda: _collectives_version(torch),
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


def _says(owner: Any, name: str, question: str) -> bool:
    asked = getattr(getattr(owner, name, None), question, None)
    return asked is not None and bool(asked())


def _on_gpu(torch: ModuleType) -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def _arch_list(torch: ModuleType) -> list[str] | None:
    # Where torch keeps it: in older releases torch.cuda.get_arch_list() counts the devices first.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags and _on_gpu(torch) else None


def _distributed_backends() -> list[str]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return []
    return [name for name in _DISTRIBUTED if getattr(distributed, f"is_{name}_available", lambda: False)()]


def _dnn_version(torch: ModuleType) -> int | None:
    if not (_on_gpu(torch) and torch.backends.cudnn.is_available()):
        return None
    version: int | None = torch.backends.cudnn.version()
    return version


def _collectives_version(torch: ModuleType) -> str | None:
    # ncclGetVersion() returns a constant: no GPU takes part.
    nccl = sys.modules.get("torch.cuda.nccl")
    if nccl is None or not (_on_gpu(torch) and hasattr(torch._C, "_nccl_version")):
        return None
    return ".".join(str(part) for part in nccl.version())


_SDPA = {
    "flash": "flash_sdp_enabled",
    "memory_efficient": "mem_efficient_sdp_enabled",
    "math": "math_sdp_enabled",
    "cudnn": "cudnn_sdp_enabled",
}
_CUDNN = ("enabled", "benchmark", "deterministic", "benchmark_limit")
_MEMORY = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "out_of_memory": "num_ooms",
    "retried_allocations": "num_alloc_retries",
}


def torch_state(guard: Guard, over: bool = True) -> Facts | None:
    """Settings of torch that decide what it computes, and its devices; ``None`` when it has not been imported.

    Settings of the calling thread where torch keeps them per thread: gradients, autocast, the default device.
    ``over`` is false in a process whose workload has not run yet: then no question that would fix a setting.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return guard.facts(
        "torch",
        {
            "threads": lambda: {"intraop": torch.get_num_threads(), "interop": torch.get_num_interop_threads()},
            # Asking makes torch read ATEN_CPU_CAPABILITY, which it does only once.
            "cpu_capability": lambda: torch.backends.cpu.get_cpu_capability() if over else None,
            "default_dtype": lambda: torch.get_default_dtype(),
            "default_device": _default_device,
            "grad_enabled": lambda: torch.is_grad_enabled(),
            "anomaly_enabled": lambda: torch.is_anomaly_enabled(),
            "autocast": lambda: [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)],
            "deterministic": lambda: {
                "algorithms": torch.are_deterministic_algorithms_enabled(),
                "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
                "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
            },
            "float32_matmul_precision": lambda: _matmul_precision(torch),
            "matmul": lambda: _matmul(torch.backends.cuda.matmul),
            "cudnn": lambda: {
                **{name: getattr(torch.backends.cudnn, name) for name in _CUDNN},
                "fp32_precision": _fp32_precision(torch.backends.cudnn),
            },
            "mkldnn": lambda: {"enabled": getattr(torch.backends.mkldnn, "enabled", None)},
            "sdpa": lambda: [name for name, ask in _SDPA.items() if getattr(torch.backends.cuda, ask, lambda: False)()],
            "allocator": lambda: {
                "settings": getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: None)() or None,
                "backend": getattr(torch._C, "_cuda_getAllocatorBackend", lambda: None)(),
            },
            "devices": lambda: {kind: found for kind in ("cuda", "xpu") if (found := _devices(kind)) is not None},
            "process_group": _process_group,
        },
    )


def _default_device() -> str:
    # Not torch.get_default_device(): that makes a tensor on the device to learn its number, and so starts a GPU.
    device = getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None)
    return "cpu" if device is None else str(device)


def _matmul_precision(torch: ModuleType) -> str | None:
    try:
        precision: str = torch.get_float32_matmul_precision()
    except RuntimeError:  # refused since torch 2.9 when the newer setting, which is recorded as well, has been used
        return None
    return precision


def _matmul(settings: Any) -> Facts:
    return {
        "fp32_precision": _fp32_precision(settings),
        "allow_fp16_reduced_precision_reduction": settings.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": settings.allow_bf16_reduced_precision_reduction,
    }


def _fp32_precision(settings: object) -> str | None:
    """``ieee``, ``tf32``, ...; ``none`` is torch's own default.

    Asked in the newer way where there is one: torch refuses the older way once the newer has been used.
    """
    precision: str | None = getattr(settings, "fp32_precision", None)
    if precision is not None:
        return precision
    allowed = getattr(settings, "allow_tf32", None)
    return None if allowed is None else "tf32" if allowed else "ieee"


def _devices(kind: str) -> Facts | None:
    module = sys.modules.get(f"torch.{kind}")
    if module is None or not module.is_initialized():
        return None
    stats = [module.memory_stats(index) for index in range(module.device_count())]
    memory = [{name: each.get(key) for name, key in _MEMORY.items()} for each in stats]
    return {"count": len(memory), "current": module.current_device(), "memory": memory}


def _process_group() -> Facts | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return {
        "backend": distributed.get_backend(),
        "world_size": distributed.get_world_size(),
        "rank": distributed.get_rank(),
    }
