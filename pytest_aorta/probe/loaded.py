"""What this process has loaded: shared libraries, modules, and the names of variables that are in them.

The RCCL of a wheel, of the system and a preloaded one have one name; the path tells them apart. Code that reads a
variable has its name.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from pytest_aorta.common.cache import answers_folder, kept
from pytest_aorta.probe.guard import Facts, printable, read_text

# Libraries

_RELEVANT = re.compile(
    r"lib(?:nccl|rccl|mscclpp|nvshmem|rocshmem|ucp|fabric"
    r"|amdhip64|hsa-runtime64|hipblas|hipblaslt|rocblas|hipsparse|hipsparselt|rocsolver|rocfft|MIOpen|hiprtc|amd_comgr"
    r"|device_\w+_operations|ck_\w+|[tT]ensile\w*"
    r"|cuda|cudart|cublas|cublasLt|cudnn|cusparse|cusolver|nvrtc"
    r"|torch_cpu|torch_cuda|torch_hip|c10|gomp|omp|iomp5|mkl_\w+|openblas\w*|scipy_openblas\w*|blis|dnnl"
    r"|aotriton\w*|jemalloc|tcmalloc\w*|mimalloc|asan|tsan)[-.\d]*\b.*\.so"
)
_MAPS = "/proc/self/maps"
# The path of a shared object, and what the kernel puts behind that of a file removed or replaced since.
_MAPPED = re.compile(r" (/.*\.so(?:\.[\w.-]+)?)( \(deleted\))?$", re.MULTILINE)

Identity = tuple[int, ...]


def _mapped() -> dict[str, bool]:
    """The mapped shared objects, and whether each is no longer that file on the disk."""
    return {path: bool(gone) for path, gone in sorted(set(_MAPPED.findall(read_text(_MAPS))))}


def libraries() -> Facts:
    """The mapped libraries: how many, the paths of those that matter, and of those replaced on the disk since."""
    mapped = _mapped()
    relevant = [printable(path) for path in mapped if is_relevant(path)]
    return {"count": len(mapped), "relevant": relevant, "replaced": [printable(it) for it in mapped if mapped[it]]}


def is_relevant(path: str) -> bool:
    return _RELEVANT.match(os.path.basename(path)) is not None


def file_identity(path: str) -> Identity:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# Modules


@dataclass(frozen=True)
class ModuleCount:
    """How many modules were imported before a fork, and the one that was imported last."""

    size: int
    last: str


def imported_since(before: ModuleCount) -> list[str] | None:
    """Names that were added to ``sys.modules`` since, in their order; ``None`` if others were removed."""
    added = len(sys.modules) - before.size
    if added < 0:
        return None
    names = list(islice(reversed(sys.modules), added + 1))
    return names if names.pop() == before.last else None


def file_of(module: object) -> str | None:
    try:
        # Past the module's own __getattr__: a lazy module would be loaded by the question.
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    return file if isinstance(file, str) else None


# Child processes


def children_now() -> tuple[int, frozenset[int]]:
    """Values that differ once a child has started or ended: page faults of ended children, and running children.

    Every process has page faults.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    running: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                running += map(int, file.read().split())
        except FileNotFoundError:  # a thread that has ended, or a kernel without this file
            continue
    return usage.ru_minflt + usage.ru_majflt, frozenset(running)


# Names of variables

#: Seconds that a search may take: in a torch for CPUs about one for each name, once per installation.
PATIENCE = 5.0

#: Largest fraction of the time until the deadline that a search may take.
_SHARE = 0.25

#: Files that are recorded by name, for each variable.
_MOST_LABELS = 4

#: Size in bytes from which the answer about a single library is cached: other cells load it beside other libraries.
_LARGE = 2**20

#: Bytes that are searched between two looks at the clock.
_CHUNK = 16 * 2**20

#: Bytes of a constant that compilers turn into operands: ``movabs`` takes 8, a register of SSE 16.
_OPERAND, _VECTOR = 8, 16

#: Longest string that libstdc++'s std::string holds without an allocation, so that code can write it there.
_SHORT_STRING = 15

#: Characters of the names of variables, each as one byte.
_IN_NAMES = frozenset(re.findall(rb"[A-Z0-9_]", bytes(range(128))))

#: Sources of this package: they list names that other code reads.
_OWN = f"{Path(__file__).parents[1]}{os.sep}"

#: Under this name, an answer lists what could not be searched.
_UNSEARCHED = ""


class OutOfTime(Exception): ...


@dataclass
class Watch:
    """Variables to look for at the end of a trial, and the child processes from before the workload's code runs."""

    names: Collection[str]
    #: Whether an import has had child processes already.
    had_children: bool = False
    children: tuple[int, frozenset[int]] = field(default_factory=children_now)
    seconds: float = PATIENCE

    def limit(self, timeout: float | None, stall_timeout: float | None, spent: float) -> None:
        """Leave most of the seconds until the deadline, or until a stall would be noticed, to the cleanup."""
        left = [] if timeout is None else [timeout - spent]
        left += [] if stall_timeout is None else [stall_timeout]
        self.seconds = min([PATIENCE, *(seconds * _SHARE for seconds in left)])

    def look(self) -> Facts:
        """What ``named_variables`` finds, and whether there have been ``subprocesses``, which may read anything."""
        subprocesses = self.had_children or children_now() != self.children
        return {**named_variables(self.names, self.seconds), "subprocesses": subprocesses}


def named_variables(names: Collection[str], seconds: float = PATIENCE) -> Facts:
    """Which shared objects and imported sources of this process contain each of these names.

    ``by``: for each name the ``count`` of these files and the ``first`` of them; ``unsearched``: files that could not
    be read. Or only ``note``: why nothing was searched. What was found is kept in the user's cache, because the next
    trial of a cell would search the same files.

    Args:
        names: of variables.
        seconds: that the search may take; what it has found until then is kept.
    """
    folder = answers_folder("variable-names")
    if folder is None:
        return {"note": "not searched: there is no folder to keep the answers in; XDG_CACHE_HOME may name one"}
    note_sources()
    names, deadline = sorted(set(names)), time.monotonic() + seconds
    files: dict[str, tuple[str, Identity]] = {}
    for path, gone in {**_mapped(), os.readlink("/proc/self/exe"): False}.items():
        files[path] = printable(os.path.basename(path)), () if gone else file_identity(path)
    files |= _sources
    try:
        answer: dict[str, list[str]] = kept(folder, (files, names), lambda: search(files, names, folder, deadline))
    except OutOfTime:
        return {"note": f"not searched: it would have taken longer than {seconds:.1f} s"}
    # The loader compares names of its own by their end alone, so that a search finds some of them only.
    answer = {**{name: ["the dynamic loader"] for name in names if name.startswith("LD_")}, **answer}
    labels = {name: answer.get(name, []) for name in names}
    facts: Facts = {"by": {name: {"count": len(each), "first": each[:_MOST_LABELS]} for name, each in labels.items()}}
    unsearched = sorted(set(answer.get(_UNSEARCHED, [])))
    return {**facts, "unsearched": unsearched[:_MOST_LABELS]} if unsearched else facts


#: Names of the modules that have been looked at, and their sources.
_looked_at: set[str] = set()
_sources: dict[str, tuple[str, tuple[int, ...]]] = {}


def note_sources() -> None:
    """Look at what has been imported since the last time; forks of this process need not look again."""
    for name, loaded in list(sys.modules.items()):
        if name in _looked_at:
            continue
        _looked_at.add(name)
        path = file_of(loaded)
        if path is not None and path not in _sources and path.endswith((".py", ".pyc")) and not path.startswith(_OWN):
            _sources[path] = printable(name), file_identity(path)


def search(
    files: Mapping[str, tuple[str, Identity]], names: Collection[str], folder: Path, deadline: float
) -> dict[str, list[str]]:
    """The labels of the ``files`` that contain each of the names; files are labels and identities, by path."""
    labels: dict[str, list[str]] = {}
    for path, (label, identity) in files.items():
        try:
            if file_identity(path) != identity or not identity:
                raise OSError(f"{path} is another file than the one that was loaded")
            content: bytes | mmap.mmap
            with open(path, "rb") as file:
                is_source = path.endswith((".py", ".pyc"))
                content = file.read() if is_source else mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            for name in names:
                holds = partial(_holds, content, os.fsencode(name), deadline)
                if kept(folder, (path, identity, name), holds) if len(content) >= _LARGE else holds():
                    labels.setdefault(name, []).append(label)
        except OSError:
            labels.setdefault(_UNSEARCHED, []).append(label)
    return labels


def _holds(content: bytes | mmap.mmap, word: bytes, deadline: float) -> bool:
    if isinstance(content, bytes):
        places = _occurrences(content, word, deadline)
        return any(content[at - 1 : at] not in _IN_NAMES and _ends(content, at, word) for at in places)
    if any(_is_stored(content, at, word) for at in _occurrences(content, word[:_OPERAND], deadline)):
        return True
    # oneDNN puts its names together from such parts as ONEDNN_ and MAX_CPU_ISA.
    family, _, rest = word.partition(b"_")
    parts = (family + b"_\0", rest + b"\0")
    return family in (b"ONEDNN", b"DNNL") and all(any(True for _ in _occurrences(content, p, deadline)) for p in parts)


def _occurrences(content: bytes | mmap.mmap, word: bytes, deadline: float) -> Iterator[int]:
    for start in range(0, len(content), _CHUNK):
        if time.monotonic() > deadline:
            raise OutOfTime
        end = start + _CHUNK + len(word) - 1
        at = content.find(word, start, end)
        while at >= 0:
            yield at
            at = content.find(word, at + 1, end)


def _is_stored(content: mmap.mmap, at: int, word: bytes) -> bool:
    # Of two strings of which one is the end of the other, linkers keep only the longer one: anything may precede it.
    if content[at : at + len(word)] == word and _ends(content, at, word):
        return True
    if _OPERAND <= len(word) <= _SHORT_STRING and at >= 2:
        # REX.W, with or without B, and the opcode of movabs with the number of a register.
        return content[at - 2] in (0x48, 0x49) and 0xB8 <= content[at - 1] <= 0xBF
    return len(word) >= _VECTOR and at % _VECTOR == 0 and content[at : at + _VECTOR] == word[:_VECTOR]


def _ends(content: bytes | mmap.mmap, at: int, word: bytes) -> bool:
    return content[at + len(word) : at + len(word) + 1] not in _IN_NAMES
