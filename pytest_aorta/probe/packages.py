"""The installed distributions: versions of those that matter, and a digest of them all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pytest_aorta.probe.guard import Facts, Guard, plain, words

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
    return {
        "versions": {name: version for name, version in sorted(installed.items()) if _relevant(name)},
        "count": len(installed),
        "digest": _digest(installed),
    }


def package_list(installed: Mapping[str, str]) -> Facts:
    """``digest`` as in ``packages``, ``count``, and ``versions`` of all distributions, as plain data."""
    versions = dict(sorted(installed.items()))
    listing: Facts = plain({"digest": _digest(versions), "count": len(versions), "versions": versions})
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
    versions: dict[str, str] = {}
    unreadable = []
    for distribution in metadata.distributions():
        try:
            fields = _headers(distribution)
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


def _headers(distribution: metadata.Distribution) -> dict[str, str]:
    # distribution.metadata parses the description at the end as well.
    text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
    return dict(_HEADER.findall(re.split(r"\n\r?\n", text, maxsplit=1)[0]))


def _digest(versions: Mapping[str, str]) -> str:
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest()


def _relevant(name: str) -> bool:
    return name in _NAMES or name.startswith(_FAMILIES)
