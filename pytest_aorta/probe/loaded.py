"""Which shared libraries a process has loaded, and which modules it has imported."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.guard import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_aorta.probe.guard import Facts
    from pytest_aorta.probe.packages import Installed


Loads = tuple[int, int]


def library_loads() -> Loads | None:
    """How many shared objects the loader has added and removed so far, as ``dl_iterate_phdr(3)`` counts them.

    ``None`` where ctypes is not imported (this does not import it; torch does), and where libc has no such counters.
    Takes microseconds, where reading ``/proc/self/maps`` takes close to a millisecond in a fork.
    """
    return None if "ctypes" not in sys.modules else _counter()()


@functools.cache
def _counter() -> Callable[[], Loads | None]:
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = (
            ("address", ctypes.c_void_p),
            ("name", ctypes.c_void_p),
            ("headers", ctypes.c_void_p),
            ("count", ctypes.c_uint16),
            ("adds", ctypes.c_ulonglong),
            ("subs", ctypes.c_ulonglong),
        )

    found: list[Loads] = []

    def see_first(info: Any, size: int, data: object) -> int:
        if size >= ctypes.sizeof(Info):
            found[:] = [(info.contents.adds, info.contents.subs)]
        return 1  # no further object: the counters are the same for all

    iterate = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
    if iterate is None:  # macOS
        return lambda: None

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)(see_first)

    def count() -> Loads | None:
        iterate(callback, None)
        return found[0] if found else None

    return count


# Which shared libraries are loaded in this process.
#
# The RCCL of a wheel, of the system and a preloaded one have one name; the path tells them apart.


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


# Of names that belong to no distribution, a workload has a few; a program that makes modules up may have thousands.
_MOST_OTHERS = 100


@dataclass(frozen=True)
class ModuleCount:
    """``sys.modules`` as it was counted before a fork.

    Attributes:
        facts: what ``imported_modules()`` gave.
        size: number of modules.
        last: the name that was imported last.
    """

    facts: Facts
    size: int
    last: str


def count_modules(installed: Installed) -> ModuleCount:
    """Count what is imported now, for the forks of this process."""
    return ModuleCount(imported_modules(installed), len(sys.modules), next(reversed(sys.modules)))


def imported_modules(installed: Installed, before: ModuleCount | None = None) -> Facts:
    """``count`` of all, ``stdlib`` of the standard library's, and the others by where they came from.

    ``by_distribution``: ``version`` and number of ``modules`` of each distribution that something has been imported
    from, by name. ``other``: number of ``modules`` and ``path`` of every top-level name that lies outside of the
    installed distributions; ``distributions`` names those that claim the name nevertheless: an editable installation,
    a file that hides one, or a namespace that several share.

    With a count from ``before``, only what has been imported since is looked at: in a fork, each module that is
    touched costs a copy of its page of memory.
    """
    names = None if before is None else imported_since(before)
    if before is None or names is None:
        names = list(sys.modules)
        facts: Facts = {"count": 0, "stdlib": 0, "by_distribution": {}, "other": {}}
    else:
        facts = before.facts
    if not names:
        return facts
    by_distribution, other = dict(facts["by_distribution"]), dict(facts["other"])
    stdlib = facts["stdlib"]
    for name, modules in Counter(name.partition(".")[0] for name in names).items():
        if name in sys.stdlib_module_names:
            stdlib += modules
            continue
        path = file_of(sys.modules.get(name))
        owners = installed.owners.get(name, ())
        if len(owners) == 1 and path is not None and path.startswith(owners[0].folder + os.sep):
            owner = owners[0].name
            entry = by_distribution.get(owner, {"version": installed.versions.get(owner), "modules": 0})
            by_distribution[owner] = {**entry, "modules": entry["modules"] + modules}
        elif name in other:
            other[name] = {**other[name], "modules": other[name]["modules"] + modules}
        elif len(other) < _MOST_OTHERS:
            other[name] = {"modules": modules, "path": path}
            if owners:
                other[name]["distributions"] = sorted({owner.name for owner in owners})
    return {
        "count": facts["count"] + len(names),
        "stdlib": stdlib,
        "by_distribution": dict(sorted(by_distribution.items())),
        "other": dict(sorted(other.items())),
    }


def imported_since(before: ModuleCount) -> list[str] | None:
    """Names that ``sys.modules``, which keeps their order, has got since; ``None`` where some have gone as well."""
    added = len(sys.modules) - before.size
    if added < 0:
        return None
    names = list(islice(reversed(sys.modules), added + 1))
    return names if names.pop() == before.last else None


def file_of(module: object) -> str | None:
    """The file of a module, the folder of a namespace; ``None`` without one, and for what is no module."""
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
