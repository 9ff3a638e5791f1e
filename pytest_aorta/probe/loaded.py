"""Which shared libraries this process has loaded, and which modules it has imported.

The RCCL of a wheel, of the system and a preloaded one have one name; the path tells them apart. What was there before a
fork is looked at before the fork: reading ``/proc/self/maps`` takes two milliseconds in a fork.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

from pytest_aorta.probe.guard import Facts, plain

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


@dataclass(frozen=True)
class MappedBefore:
    """``mapped_objects()`` before a fork, with the loader's counters and the identity of each file at that time."""

    facts: Facts
    loads: tuple[int, ...]
    files: dict[str, Identity]

    def has_changed(self) -> bool:
        if library_loads() != self.loads:
            return True
        return any(file_identity(path) != identity for path, identity in self.files.items())


def map_before_forks() -> MappedBefore | None:
    loads = library_loads()
    return None if loads is None else MappedBefore(plain(mapped_objects()), loads, mapped_files())


def mapped_now(before: MappedBefore | None) -> Facts:
    if before is not None and not before.has_changed():
        return before.facts
    facts: Facts = plain(mapped_objects())
    return facts


def mapped_files() -> dict[str, Identity]:
    mapped = {**_mapped(Path("/proc/self/maps")), os.readlink("/proc/self/exe"): False}
    return {path: () if gone else file_identity(path) for path, gone in mapped.items()}


def file_identity(path: str) -> Identity:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def library_loads() -> tuple[int, ...] | None:
    """How many shared objects the dynamic loader has added and removed so far.

    ``None`` where ctypes is not imported (torch does it; this does not).
    """
    return _counter()() if "ctypes" in sys.modules else None


@functools.cache
def _counter() -> Callable[[], tuple[int, ...]]:
    import ctypes

    found: list[int] = []

    # dl_iterate_phdr(3) shows struct dl_phdr_info; its last two fields of six are dlpi_adds and dlpi_subs.
    def see_first(info: int, size: int, data: object) -> int:
        found[:] = (ctypes.c_uint64 * 6).from_address(info)[4:]
        return 1  # no further object: the counters are the same for all

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(see_first)
    iterate = ctypes.CDLL(None).dl_iterate_phdr

    def count() -> tuple[int, ...]:
        iterate(callback, None)
        return tuple(found)

    return count


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
