"""Which shared libraries this process has loaded, and which modules it has imported.

The RCCL of a wheel, of the system and a preloaded one have one name; the path tells them apart.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

from pytest_aorta.probe.guard import Facts

_RELEVANT = re.compile(
    r"lib(?:nccl|rccl|mscclpp|nvshmem|rocshmem|ucp|fabric"
    r"|amdhip64|hsa-runtime64|hipblas|hipblaslt|rocblas|hipsparse|rocsolver|MIOpen|hiprtc|amd_comgr"
    r"|cuda|cudart|cublas|cublasLt|cudnn|cusparse|cusolver|nvrtc"
    r"|torch_cpu|torch_cuda|torch_hip|c10|gomp|omp|iomp5|mkl_\w+|openblas\w*|scipy_openblas\w*|blis|dnnl"
    r"|aotriton\w*|jemalloc|tcmalloc\w*|mimalloc|asan|tsan)[-.\d]*\b.*\.so"
)
# address, permissions, offset, device, inode, path
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ \d+ +(/.*)$", re.MULTILINE)
_SHARED_OBJECT = re.compile(r".+\.so(?:\.[\w.-]+)?$")
# What the kernel puts behind the path of a mapped file that has been removed or replaced since.
_GONE = " (deleted)"

Identity = tuple[int, ...]


# Libraries


def _mapped(maps: Path) -> dict[str, bool]:
    try:
        paths = set(_MAPPED.findall(maps.read_text(encoding="utf-8", errors="replace")))
    except FileNotFoundError:
        return {}
    found = {path.removesuffix(_GONE): path.endswith(_GONE) for path in sorted(paths)}
    return {path: gone for path, gone in found.items() if _SHARED_OBJECT.match(os.path.basename(path))}


def mapped_objects(maps: Path = Path("/proc/self/maps")) -> Facts:
    mapped = _mapped(maps)
    return {
        "count": len(mapped),
        "relevant": [path for path in mapped if _RELEVANT.match(os.path.basename(path))],
        "replaced": [path for path, gone in mapped.items() if gone],
    }


def mapped_files() -> dict[str, Identity]:
    mapped = {**_mapped(Path("/proc/self/maps")), os.readlink("/proc/self/exe"): False}
    return {path: () if gone else file_identity(path) for path, gone in mapped.items()}


def file_identity(path: str) -> Identity:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


# Modules


@dataclass(frozen=True)
class ModuleCount:
    """How many modules were imported before a fork, and the one that was imported last."""

    size: int
    last: str


def imported_since(before: ModuleCount) -> list[str] | None:
    """Names that ``sys.modules``, which keeps their order, has got since; ``None`` where some have gone as well."""
    added = len(sys.modules) - before.size
    if added < 0:
        return None
    names = list(islice(reversed(sys.modules), added + 1))
    return names if names.pop() == before.last else None


def file_of(module: object) -> str | None:
    if not isinstance(module, ModuleType):
        return None
    # Past the module's own __getattr__: a lazy module would be loaded by the question.
    attributes = object.__getattribute__(module, "__dict__")
    file = attributes.get("__file__")
    if isinstance(file, str):
        return file
    with suppress(Exception):  # whatever a module has put there
        folder = next(iter(attributes["__path__"]))
        return folder if isinstance(folder, str) else None
    return None
