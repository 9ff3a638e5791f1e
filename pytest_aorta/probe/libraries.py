"""Which shared libraries are loaded in this process.

The RCCL of a wheel, of the system and a preloaded one have one name; the path tells them apart.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aorta.probe.library_loads import Loads, library_loads
from pytest_aorta.probe.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

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
_EXTENSION_MODULE = re.compile(r"\.(?:cpython-\w+-[\w-]+|abi3)\.so$")
# What the kernel puts behind the path of a mapped file that has been removed or replaced since.
_GONE = " (deleted)"


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the relevant shared libraries mapped now, sorted; empty where the kernel does not list them."""
    return _relevant(_mapped(maps))


def mapped_objects(maps: Path = Path("/proc/self/maps")) -> Facts:
    """All shared objects mapped now: ``count``, ``digest`` of their paths, ``names`` without their folders.

    ``names`` leaves out extension modules of Python: those are imported, so ``imported_modules()`` counts them.
    ``relevant`` are the paths that ``loaded_libraries()`` gives, ``replaced`` those whose file has been removed or
    overwritten since it was loaded. The digest is the SHA-256 of the sorted paths, each ended by a newline.
    """
    mapped = {path.removesuffix(_GONE): path.endswith(_GONE) for path in _mapped(maps)}
    paths = sorted(path for path in mapped if _SHARED_OBJECT.match(path.rpartition("/")[2]))
    lines = "".join(f"{path}\n" for path in paths)
    return {
        "count": len(paths),
        "digest": "sha256:" + hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest(),
        "names": sorted(name for path in paths if not _EXTENSION_MODULE.search(name := path.rpartition("/")[2])),
        "relevant": _relevant(paths),
        "replaced": [path for path in paths if mapped[path]],
    }


@dataclass(frozen=True)
class MappedBefore:
    """``mapped_objects()`` before a fork.

    Attributes:
        facts: what it gave.
        loads: the loader's counters at that time.
        files: identity of each mapped file, by path.
    """

    facts: Facts
    loads: Loads
    files: dict[str, tuple[int, ...]]


def map_before_forks() -> MappedBefore | None:
    """What is mapped now, for the forks of this process; ``None`` where new libraries could not be noticed."""
    loads = library_loads()
    if loads is None:
        return None
    return MappedBefore(plain(mapped_objects()), loads, mapped_files())


def mapped_files() -> dict[str, tuple[int, ...]]:
    """Identity of the executable, and of each shared object mapped now; empty for a file that has gone since."""
    paths = {path for path in _mapped(Path("/proc/self/maps")) if _SHARED_OBJECT.match(_name(path))}
    with suppress(OSError):  # not Linux
        paths.add(os.readlink("/proc/self/exe"))
    return {path.removesuffix(_GONE): () if path.endswith(_GONE) else file_identity(path) for path in sorted(paths)}


def mapped_now(before: MappedBefore | None) -> Facts:
    """As ``mapped_objects()``; the facts from ``before`` while nothing has been loaded or replaced since."""
    if before is not None and not _changed_since(before):
        return before.facts
    facts: Facts = plain(mapped_objects())
    return facts


def _changed_since(before: MappedBefore) -> bool:
    if library_loads() != before.loads:
        return True
    return any(file_identity(path) != identity for path, identity in before.files.items())


def file_identity(path: str) -> tuple[int, ...]:
    """What changes when the file of this path is another one, or is overwritten; empty where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _mapped(maps: Path) -> set[str]:
    try:
        text = maps.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return set()
    return set(_MAPPED.findall(text))


def _name(path: str) -> str:
    return path.removesuffix(_GONE).rpartition("/")[2]


def _relevant(paths: Iterable[str]) -> list[str]:
    return sorted(path for path in paths if _RELEVANT.match(path.rpartition("/")[2]))
