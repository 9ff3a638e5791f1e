"""The installed distributions: versions of those that matter, and a digest of them all."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

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

# The first folder of a line of RECORD, or a single module beside the metadata.
_RECORDED = re.compile(r"^(?:([^/,.\n]+)/[^,\n]*\.(?:py|so)|([^/,.\n]+)(?:\.[^/,\n]+)?\.(?:py|so)),", re.MULTILINE)


_HEADER = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE)


class Owner(NamedTuple):
    name: str
    folder: str


@dataclass(frozen=True)
class Installed:
    """The installed distributions.

    Attributes:
        versions: canonical name -> version. Of two with one name, the first on ``sys.path``, which is the one imported.
        owners: top-level name of modules -> distributions that say it is theirs.
    """

    versions: dict[str, str] = field(default_factory=dict)
    owners: dict[str, tuple[Owner, ...]] = field(default_factory=dict)


def packages(installed: Installed) -> Facts:
    """``versions`` of the relevant distributions, ``count`` of all of them, and their ``digest``.

    The digest is the SHA-256 of the sorted lines ``name==version`` (canonical names, UTF-8, each ended by a newline):
    equal digests mean equal installations, by name and version.
    """
    return {
        "versions": {name: version for name, version in sorted(installed.versions.items()) if _relevant(name)},
        "count": len(installed.versions),
        "digest": _digest(installed.versions),
    }


def package_list(installed: Installed) -> Facts:
    """``digest`` as in ``packages``, ``count``, and ``versions`` of all distributions, as plain data."""
    versions = dict(sorted(installed.versions.items()))
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


def installed_distributions(guard: Guard) -> Installed:
    versions: dict[str, str] = {}
    owners: dict[str, tuple[Owner, ...]] = {}
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
            owner = Owner(canonical, os.path.dirname(str(distribution.locate_file("x"))))
            for top in _top_level_names(distribution):
                owners[top] = (*owners.get(top, ()), owner)
    if unreadable:
        guard.reasons.append(f"packages: {len(unreadable)} distribution(s) unreadable, the first: {unreadable[0]}")
    return Installed(versions, owners)


def _headers(distribution: metadata.Distribution) -> dict[str, str]:
    # distribution.metadata parses the description at the end as well.
    text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
    return dict(_HEADER.findall(re.split(r"\n\r?\n", text, maxsplit=1)[0]))


def _top_level_names(distribution: metadata.Distribution) -> set[str]:
    """Names that can be imported from it.

    Found without ``metadata.packages_distributions()``, which takes a millisecond for each distribution.
    """
    try:
        names = distribution.read_text("top_level.txt")
        if names is not None:
            return set(names.split())
        return {folder or module for folder, module in _RECORDED.findall(distribution.read_text("RECORD") or "")}
    except (OSError, UnicodeDecodeError):
        return set()


def _digest(versions: Mapping[str, str]) -> str:
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
    return "sha256:" + hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest()


def _relevant(name: str) -> bool:
    return name in _NAMES or name.startswith(_FAMILIES)
