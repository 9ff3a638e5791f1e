"""The installed distributions: versions of those that matter, and a digest of them all."""

from __future__ import annotations

import hashlib
import re
from importlib import metadata
from typing import TYPE_CHECKING

from pytest_aorta.probe.plain import words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_aorta.probe.guard import Facts, Guard

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


def packages(guard: Guard) -> Facts:
    """``versions`` of the relevant distributions, ``count`` of all of them, and their ``digest``.

    The digest is the SHA-256 of the sorted lines ``name==version`` (canonical names, UTF-8, each ended by a newline):
    equal digests mean equal installations, by name and version.
    """
    installed = _installed(metadata.distributions(), guard)
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(installed.items()))
    return {
        "versions": {name: version for name, version in sorted(installed.items()) if _relevant(name)},
        "count": len(installed),
        "digest": "sha256:" + hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest(),
    }


def _installed(distributions: Iterable[metadata.Distribution], guard: Guard) -> dict[str, str]:
    """Canonical name -> version. Of two with one name, the first on ``sys.path``, which is the one imported."""
    installed: dict[str, str] = {}
    unreadable = []
    for distribution in distributions:
        try:
            fields = distribution.metadata
            # An interrupted pip leaves folders without metadata behind ("~orch-2.9.dist-info"): nothing installed.
            if "Name" not in fields or "Version" not in fields:
                continue
            name, version = fields["Name"], fields["Version"]
        except Exception as error:
            unreadable.append(f"{type(error).__name__}: {error}")
            continue
        if name and version:
            installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    if unreadable:
        guard.reasons.append(f"packages: {len(unreadable)} distribution(s) unreadable, the first: {unreadable[0]}")
    return installed


def _relevant(name: str) -> bool:
    return name in _NAMES or name.startswith(_FAMILIES)
