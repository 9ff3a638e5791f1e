"""The software of a trial: installed distributions, the repository of the workload, and torch.

Torch is never imported for it, and no GPU is woken.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_aorta.probe.guard import Facts, Guard, ask, plain_data, words

# Distributions: versions of those that matter, and a digest of them all

_NAMES = words(
    """
    torch torchvision torchaudio torchtitan torchao torchelastic triton pytorch-triton pytorch-triton-rocm
    numpy scipy pydantic pydantic-core psutil threadpoolctl
    pytest pytest-aorta pytest-xdist pytest-timeout
    transformers accelerate datasets peft trl safetensors tokenizers megatron-core
    flash-attn xformers apex deepspeed fairscale bitsandbytes transformer-engine vllm sglang lightning pytorch-lightning
    aiter amd-aiter fbgemm-gpu mpi4py cupy jax
    """
)
# The wheels that bring the GPU libraries along: nvidia-nccl-cu12, rocm-sdk-core, ...
_FAMILIES = ("nvidia-", "rocm", "cuda-", "triton-", "jax-", "torch-")

_HEADER = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE)


def packages(installed: Mapping[str, str]) -> Facts:
    """``versions`` of the relevant distributions, ``count`` of all of them, and their ``digest``.

    The digest is the SHA-256 of the sorted lines ``name==version`` (canonical names, UTF-8, each ended by a newline):
    equal digests mean equal installations, by name and version.
    """
    relevant, lines = {}, ""
    for name, version in sorted(installed.items()):
        lines += f"{name}=={version}\n"
        if name in _NAMES or name.startswith(_FAMILIES):
            relevant[name] = version
    digest = hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest()
    return {"versions": relevant, "count": len(installed), "digest": f"sha256:{digest}"}


def package_list(installed: Mapping[str, str]) -> Facts:
    """``digest`` as in ``packages``, ``count``, and ``versions`` of all distributions, as plain data."""
    listing: Facts = plain_data({**packages(installed), "versions": dict(sorted(installed.items()))})
    return listing


def package_list_name(digest: str) -> str:
    """The file in which a results directory has the list with this digest: once, for thousands of trials."""
    return f"packages-{digest.removeprefix('sha256:')[:16]}.json"


def read_package_list(folder: Path, digest: str) -> dict[str, str] | None:
    """The ``versions`` of the list with this digest in ``folder``; ``None`` where there is none."""
    try:
        versions = json.loads((folder / package_list_name(digest)).read_text(encoding="utf-8"))["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return versions if isinstance(versions, dict) else None


def installed_distributions(guard: Guard) -> dict[str, str]:
    """Versions by canonical name. Of two with one name, the first on ``sys.path``, which is the one imported."""
    from importlib import metadata

    versions: dict[str, str] = {}
    unreadable = []
    for distribution in metadata.distributions():
        try:
            # distribution.metadata parses the description at the end as well.
            text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
            fields = dict(_HEADER.findall(re.split(r"\n\r?\n", text, maxsplit=1)[0]))
            # An interrupted pip leaves folders without metadata behind ("~orch-2.9.dist-info"): nothing installed.
            if "Name" not in fields or "Version" not in fields:
                continue
            name, version = fields["Name"], fields["Version"]
        except Exception as error:
            unreadable.append(f"{type(error).__name__}: {error}")
            continue
        if name and version and (canonical := re.sub(r"[-_.]+", "-", name).lower()) not in versions:
            versions[canonical] = version
    if unreadable:
        guard.reasons.append(f"packages: {len(unreadable)} distribution(s) unreadable, the first: {unreadable[0]}")
    return versions


# The repository that holds the workload's source, when its cell starts

_GIT_TIMEOUT_SEC = 5.0

# No lock in a repository that is being worked in, no question on the terminal, no fetch of missing objects.
_ENVIRON = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}


def git_state(source: Path | None, guard: Guard) -> Facts | None:
    """``root``, ``commit``, ``branch``, ``dirty``, ``changed_files`` and ``source_tracked`` of ``source``'s repository.

    ``None`` without a source, outside of a repository, and where git is not installed. ``commit`` is ``None`` before
    the first commit, ``branch`` when HEAD is detached. ``dirty`` and ``changed_files`` (a count) are about tracked
    files: results written beside the source do not count. ``source_tracked`` is ``False`` when the commit does not
    contain the source at all.
    """
    git = shutil.which("git")
    if source is None or git is None:
        return None
    source = Path(os.path.realpath(source))
    for root in (source, *source.parents):
        if (root / ".git").exists():
            break
    else:
        return None

    def output(*question: str) -> str:
        # fsmonitor would leave a daemon behind.
        command = [git, "-C", str(root), "-c", "core.fsmonitor=false", "--literal-pathspecs", *question]
        return ask(command, _GIT_TIMEOUT_SEC, _ENVIRON).strip()

    state: Facts = dict.fromkeys(("root", "commit", "branch", "dirty", "changed_files", "source_tracked"))
    state["root"] = str(root)
    with guard.probe("git.status"):
        lines = output("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no").splitlines()
        heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
        changed = sum(not line.startswith("#") for line in lines)
        state |= {
            "commit": None if heads.get("branch.oid") == "(initial)" else heads.get("branch.oid"),
            "branch": None if heads.get("branch.head") == "(detached)" else heads.get("branch.head"),
            "dirty": changed > 0,
            "changed_files": changed,
        }
    with guard.probe("git.tracked"):
        state["source_tracked"] = bool(output("ls-files", "--cached", "--", str(source.relative_to(root))))
    return state


# Torch: how it was built, and what it has been set to

_BACKENDS = ("cpu", "cudnn", "cusparselt", "miopen", "mkl", "mkldnn", "nnpack", "openmp")
_DISTRIBUTED = ("gloo", "mpi", "nccl", "ucc", "xccl")


def torch_build(guard: Guard, installed: Mapping[str, str]) -> Facts:
    """Facts about torch; only ``imported`` and the ``version`` that is ``installed`` while it is not imported.

    Only what is compiled in is asked for. After questions that look as harmless, no forked child can use a GPU:
    ``torch.cuda.is_available()``, ``torch.cuda.get_arch_list()``, ``torch.backends.cudnn.version()`` (which torch 2.11
    compares with the devices) and, on ROCm, ``torch.__config__.show()``.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {"imported": False, "version": installed.get("torch")}
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
            "backends": lambda: [
                name
                for name in _BACKENDS
                if getattr(getattr(torch.backends, name, None), "is_available", lambda: False)()
            ],
            "distributed_backends": _distributed_backends,
            "miopen_version" if is_hip else "cudnn_version": lambda: _dnn_version(torch),
            "rccl_version" if is_hip else "nccl_version": lambda: _collectives_version(torch),
            "parallel_info": lambda: torch.__config__.parallel_info().splitlines(),
            "intraop_threads": lambda: torch.get_num_threads(),
            "interop_threads": lambda: torch.get_num_interop_threads(),
        },
    )


def _on_gpu(torch: ModuleType) -> bool:
    return bool(torch.version.cuda or torch.version.hip)


def _distributed_backends() -> list[str]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return []
    return [name for name in _DISTRIBUTED if getattr(distributed, f"is_{name}_available", lambda: False)()]


def _dnn_version(torch: ModuleType) -> int | None:
    library = getattr(torch._C, "_cudnn", None)  # of ROCm builds, too
    version: int | None = library.getVersionInt() if library is not None and _on_gpu(torch) else None
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
            "devices": lambda: {kind: devices for kind in ("cuda", "xpu") if (devices := _devices(kind)) is not None},
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
