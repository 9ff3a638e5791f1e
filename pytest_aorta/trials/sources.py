"""The files that decide what a workload does, beside what is installed: digests of its modules and of its data."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.loaded import imported_since

if TYPE_CHECKING:
    from pytest_aorta.probe.loaded import ModuleCount

#: Bytes of a file that are read for its digest; of a larger one, size and time of modification stand for them.
READ_AT_MOST = 64 * 2**20

_CHUNK = 2**20

#: Folders of what is installed, known by name and version.
_INSTALLED = ("site-packages", "dist-packages")

#: Beginnings of folders in which torch and Triton keep what they have compiled.
_COMPILED = ("torchinductor_", ".triton", "torch_extensions", "inductor_cache")

_STDLIB = f"{os.path.dirname(os.__file__)}{os.sep}"
_OWN = f"{Path(__file__).parents[1]}{os.sep}"


def source_root(cls: type[Any]) -> Path | None:
    """The folder of a class's package, or of its module; ``None`` where it has no file."""
    own = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if own is None:
        return None
    top = cls.__module__.partition(".")[0]
    package = getattr(sys.modules.get(top), "__file__", None) if "." in cls.__module__ else None
    return Path(package or own).parent.resolve()


def sources(cls: type[Any]) -> dict[str, str]:
    """Digests of the loaded modules that are no part of an installed distribution, and of all of the class's package.

    By path: relative to ``source_root``, absolute outside of it.
    """
    return sources_among(list(sys.modules), source_root(cls), cls.__module__)


def imported_later(cls: type[Any], before: ModuleCount | None, known: Mapping[str, str]) -> dict[str, str]:
    """``sources`` of what has been imported since ``before``, or by now, except those that are ``known``."""
    names = None if before is None else imported_since(before)
    if names == []:
        return {}
    found = sources_among(list(sys.modules) if names is None else names, source_root(cls))
    return {path: digest for path, digest in found.items() if path not in known}


def sources_among(names: Iterable[str], root: Path | None, own: str = "") -> dict[str, str]:
    """As ``sources``, of the loaded modules with these names; ``own`` is the class's."""
    inside = None if root is None or root.name in _INSTALLED else f"{root}{os.sep}"
    found: set[str] = set()
    for name in names:
        if name != own and (name == "__main__" or name.partition(".")[0] in sys.stdlib_module_names):
            continue
        file = _file(name)
        if file is not None and (name == own or not _is_known_otherwise(file, inside)):
            found.add(os.path.realpath(file))
    return {_key(file, inside): digest for file in sorted(found) if (digest := file_digest(Path(file))) is not None}


def _file(name: str) -> str | None:
    module = sys.modules.get(name)
    try:
        # Past the module's own __getattr__: a lazy module would be loaded by the question.
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None
    return file if isinstance(file, str) and "\0" not in file else None


def _is_known_otherwise(file: str, inside: str | None) -> bool:
    """Whether a file is installed, compiled from something else, or ours."""
    if inside is not None and file.startswith(inside):
        # A virtual environment may lie below a workload's folder; what is installed there is not its source.
        return any(f"{os.sep}{folder}{os.sep}" in file[len(inside) - 1 :] for folder in _INSTALLED)
    if file.startswith((_OWN, _STDLIB)):
        return True
    folders = file.split(os.sep)
    return any(folder in _INSTALLED or folder.startswith(_COMPILED) for folder in folders)


def _key(file: str, inside: str | None) -> str:
    return file[len(inside) :] if inside is not None and file.startswith(inside) else file


def file_digest(path: Path) -> str | None:
    """16 hexadecimal digits of a file's content, or of all files below a folder; ``None`` when it is not there.

    Of a file of more than ``READ_AT_MOST`` bytes, size and time of modification as text; of a folder with more than
    these, the digits are taken of the sizes and times of its files.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return _folder_digest(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        return _content_digest(path) if status.st_size <= READ_AT_MOST else _size_and_time(status)
    except OSError:
        return None


def _content_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()[:16]


def _size_and_time(status: os.stat_result) -> str:
    return f"{status.st_size} bytes of {status.st_mtime_ns}"


def _folder_digest(folder: Path) -> str:
    files = {file: file.stat() for file in sorted(folder.rglob("*")) if file.is_file()}
    is_small = sum(status.st_size for status in files.values()) <= READ_AT_MOST
    lines = (
        f"{file.relative_to(folder)}\0{_content_digest(file) if is_small else _size_and_time(status)}\n"
        for file, status in files.items()
    )
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def data_files(cls: type[Any], config: Any) -> dict[str, str | None]:
    """Digests of the files and folders that a workload declares as ``data_files``, by the paths that it declares.

    ``config`` is what the constructor would get. A relative path is one in the working directory, as for ``open``, or
    else one beside the workload's file.

    Raises:
        TypeError: what is declared are no paths.
    """
    declared: Any = getattr(cls, "data_files", ())
    if callable(declared):
        declared = declared(config)
    paths = [declared] if isinstance(declared, str | os.PathLike) else declared
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise TypeError(
            f"data_files of {cls.__qualname__} is {declared!r}; expected a list of paths, or a class method that "
            "takes the options and returns one"
        )
    root = source_root(cls)
    return {os.fspath(path): _declared_digest(Path(path), root) for path in paths}


def _declared_digest(path: Path, root: Path | None) -> str | None:
    here = file_digest(path)
    return here if here is not None or root is None else file_digest(root / path)
