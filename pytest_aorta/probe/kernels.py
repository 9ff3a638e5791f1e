"""Which builds of kernel libraries a process has loaded, and which files of kernels they choose from.

Two images with equal versions may have other kernels: a library built again, a Tensile library tuned anew, the find-db
of another MIOpen. Only libraries that are loaded are looked at, and nothing is run. Large folders are read for a second
at a time: what has been read is kept in the user's cache under the identity of each file, and the next process goes on.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import os
import re
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_aorta.common.cache import answers_folder, kept
from pytest_aorta.probe.guard import Facts, Guard, printable
from pytest_aorta.probe.loaded import Identity, OutOfTime, file_identity, file_of, is_relevant

#: Seconds that a process may read content.
PATIENCE = 1.0

#: Files, and bytes, whose digests are kept together: a folder of thousands would fill the cache, one by one.
_MOST_FILES, _MOST_BYTES = 64, 2**26

_PIECE = 2**22

#: ``p_type`` and ``n_type`` of a build id: elf(5), and "Notes" in the System V ABI.
_NOTE, _BUILD_ID = 4, 3


@dataclass(frozen=True)
class Database:
    """Files that a library chooses kernels from.

    Attributes:
        name: what it is called.
        library: how the name of the library's file begins.
        variables: those that name its folder, or its file; the first one that is set counts.
        places: else, the first of these that is there, relative to the library's folder, or to the home folder.
        suffixes: of its files.
    """

    name: str
    library: str
    variables: Sequence[str]
    places: tuple[str, ...]
    suffixes: tuple[str, ...]


_TENSILE = (".dat", ".co", ".hsaco", ".yaml", ".txt")
_MIOPEN = (".db", ".kdb", ".txt", ".model")

_BLAS = tuple(
    Database(f"Tensile database of {name}", f"lib{name.lower()}.", variables, (f"{name.lower()}/library",), _TENSILE)
    for name, *variables in (
        ("hipBLASLt", "HIPBLASLT_TENSILE_LIBPATH"),
        ("rocBLAS", "ROCBLAS_TENSILE_LIBPATH"),
        ("hipSPARSELt",),
    )
)

DATABASES = (
    *_BLAS,
    Database("database of MIOpen", "libMIOpen.", ("MIOPEN_SYSTEM_DB_PATH",), ("../share/miopen/db",), _MIOPEN),
    Database("user's database of MIOpen", "libMIOpen.", ("MIOPEN_USER_DB_PATH",), ("~/.config/miopen",), _MIOPEN),
    Database("images of AOTriton", "libaotriton", (), ("aotriton.images",), ("",)),
    Database("algorithms of MSCCL", "librccl.", ("MSCCL_ALGO_DIR",), ("../share/rccl/msccl-algorithms",), (".xml",)),
)


@dataclass
class Reader:
    """Reads files until ``left`` seconds are over: those that it has begun to the end, so that each call gets on."""

    left: float

    def digests(self, paths: Sequence[str]) -> list[str]:
        """The first 40 hexadecimal digits of the SHA-256 of each; ``OutOfTime`` if none are left."""
        if self.left <= 0:
            raise OutOfTime
        began, found = time.monotonic(), []
        for path in paths:
            digest = hashlib.sha256()
            with open(path.rstrip("/"), "rb", buffering=0) as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
            found.append(digest.hexdigest()[:40])
        self.left -= time.monotonic() - began
        return found


#: Libraries of this process when they were last looked at, and what was found.
_noted: tuple[list[str], bool, Facts] | None = None


def kernels(libraries: Sequence[str], guard: Guard, seconds: float = PATIENCE) -> Facts:
    """Facts about loaded libraries, by their paths.

    ``builds``: of each library (``libnccl.so.2``, ``librocblas.so.4 of torch`` in a wheel) its build id, else the
    SHA-256 of its content. ``databases``: of each ``Database`` that is there, ``folder``, ``files``, ``bytes``,
    ``names`` (a digest of names and sizes) and ``content`` (one of names and content), which is ``None`` with a
    ``note`` as long as not all could be read. Forks that have loaded nothing more get what was found before.
    """
    global _noted
    aiter = file_of(sys.modules.get("aiter"))
    if _noted is not None and _noted[:2] == ([*libraries], aiter is not None):
        return _noted[2]
    reader, builds, databases = Reader(seconds), Facts(), Facts()
    for path in libraries:
        with guard.probe(f"kernels.{os.path.basename(path)}"):
            builds.setdefault(_called(path), build_of(path, reader))
    for database in DATABASES:
        for path in libraries:
            if os.path.basename(path).startswith(database.library):
                with guard.probe(f"kernels.{database.name}"):
                    if (found := contents_of(database, path, reader)) is not None:
                        databases.setdefault(database.name, found)
    if aiter is not None:
        with guard.probe("kernels.aiter"):
            jit = Database("JIT folder of aiter", "", ("AITER_JIT_DIR",), ("jit",), (".so",))
            if (found := contents_of(jit, aiter, reader)) is not None:
                databases[jit.name] = found
    _noted = [*libraries], aiter is not None, {"builds": builds, "databases": databases}
    return _noted[2]


def installed_libraries() -> list[str]:
    """Paths of those that torch brings along, and of ROCm's, for a process that has loaded none of them."""
    torch = importlib.util.find_spec("torch")
    places = [os.path.join(each, "lib") for each in (torch.submodule_search_locations or ())] if torch else []
    places.append(os.path.join(os.environ.get("ROCM_PATH") or "/opt/rocm", "lib"))
    paths = {os.path.realpath(path): None for place in places for path in sorted(glob.glob(f"{place}/*.so*"))}
    return [path for path in paths if is_relevant(path)]


#: The folder of a wheel in the path of a library.
_OF_A_WHEEL = re.compile(r"/(?:site|dist)-packages/([^/]+)/")


def _called(path: str) -> str:
    wheel = _OF_A_WHEEL.search(path)
    return os.path.basename(path) + (f" of {wheel[1].removesuffix('.libs')}" if wheel else "")


def build_of(path: str, reader: Reader) -> str | None:
    """``build-id:`` or ``sha256:``, and at most 40 hexadecimal digits; ``None`` if there is no time to read it."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(64)
        if head[:6] == b"\x7fELF\x02\x01":  # 64 bits, least byte first
            (offset,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            headers = os.pread(file.fileno(), size * count, offset)
            for start in range(0, len(headers) - 55, size):
                kind, _, at, _, _, length, _, align = struct.unpack_from("<IIQQQQQQ", headers, start)
                if kind == _NOTE:
                    for name, note, value in _notes(os.pread(file.fileno(), length, at), max(4, align)):
                        if (name, note) == (b"GNU\0", _BUILD_ID):
                            return f"build-id:{value.hex()[:40]}"
    with contextlib.suppress(OutOfTime):
        (digest,) = kept(answers_folder("builds"), (path, file_identity(path)), partial(reader.digests, [path]))
        return f"sha256:{digest}"
    return None


def _notes(section: bytes, align: int) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(section):
        named, valued, kind = struct.unpack_from("<III", section, at)
        value = at + 12 + -(-named // 4) * 4
        value = -(-value // align) * align
        yield section[at + 12 : at + 12 + named], kind, section[value : value + valued]
        at = -(-(value + valued) // align) * align


def contents_of(database: Database, library: str, reader: Reader) -> Facts | None:
    """Its facts as in ``kernels``; ``None`` where there is none."""
    named = next(filter(None, map(os.environ.get, database.variables)), None)
    beside = os.path.dirname(library)
    wanted = [named] if named else [os.path.join(beside, os.path.expanduser(each)) for each in database.places]
    folder = next((os.path.realpath(each) for each in wanted if os.path.exists(each)), None)
    if folder is None:
        return None
    facts: Facts = {"folder": printable(folder), **dict.fromkeys(("files", "bytes", "names", "content"))}
    files = [("", file_identity(folder))] if os.path.isfile(folder) else []
    listed_by = time.monotonic() + PATIENCE
    for place, _, names in os.walk(folder):
        inside = [os.path.join(place, name) for name in names if name.endswith(database.suffixes)]
        files += [(os.path.relpath(path, folder), file_identity(path)) for path in inside]
        if time.monotonic() > listed_by:
            return {**facts, "note": f"more files than can be listed within {PATIENCE:.0f} s"}
    sizes = {name: identity[2] if identity else -1 for name, identity in sorted(files)}
    total = sum(sizes.values())
    facts |= {"files": len(files), "bytes": total, "names": _of_lines(sizes)}
    digests: dict[str, str] = {}
    for group in _groups(sorted(files)):
        paths = [os.path.join(folder, name) for name, _ in group]
        try:
            read = kept(answers_folder("databases"), (folder, group), partial(reader.digests, paths))
            digests |= zip((name for name, _ in group), read, strict=True)
        except OSError as error:
            return {**facts, "note": f"not read: {error.strerror}: {printable(str(error.filename))}"}
        except OutOfTime:
            share = sum(map(sizes.__getitem__, digests)) / total
            return {**facts, "note": f"{share:.0%} of {total / 2**30:.1f} GiB read yet; the next process goes on"}
    return {**facts, "content": _of_lines(digests)}


def _groups(files: Sequence[tuple[str, Identity]]) -> Iterator[list[tuple[str, Identity]]]:
    group: list[tuple[str, Identity]] = []
    for each in files:
        size = sum(identity[2] for _, identity in [*group, each] if identity)
        if group and (len(group) == _MOST_FILES or size > _MOST_BYTES):
            yield group
            group = []
        group.append(each)
    yield group


def _of_lines(values: Mapping[str, object]) -> str:
    lines = "".join(f"{printable(name)} {value}\n" for name, value in values.items())
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()[:40]}"
