"""The class of a workload: imported, described as plain data, with digests of the files that decide what it does."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_aorta.probe.loaded import imported_since
from pytest_aorta.trials import config as aorta
from pytest_aorta.trials.config import ConfigError, resolve_config

if TYPE_CHECKING:
    from pytest_aorta.probe.loaded import ModuleCount


#: Bytes of a file that are read for its digest; of a larger one, size and time of modification stand for them.
READ_AT_MOST = 64 * 2**20

_CHUNK = 2**20

#: Folders of what is installed, known by name and version.
INSTALLED = ("site-packages", "dist-packages")

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
    inside = None if root is None or root.name in INSTALLED else f"{root}{os.sep}"
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
    if inside is not None and file.startswith(inside):
        # A virtual environment may lie below a workload's folder; what is installed there is not its source.
        return any(f"{os.sep}{folder}{os.sep}" in file[len(inside) - 1 :] for folder in INSTALLED)
    if file.startswith((_OWN, _STDLIB)):
        return True
    folders = file.split(os.sep)
    return any(folder in INSTALLED or folder.startswith(_COMPILED) for folder in folders)


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


class WorkloadLoadError(Exception): ...


def load_class(target: str) -> type[Any]:
    """Import ``module:Class`` or ``/path/file.py:Class``.

    Raises:
        WorkloadLoadError: there is no such attribute, or it is no workload.
        Exception: any that the import raises.
    """
    where, _, name = target.rpartition(":")
    module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    cls: Any = module
    for part in name.split("."):
        cls = getattr(cls, part, None)
        if cls is None:
            raise WorkloadLoadError(f"{where} has no {name!r}")
    if not isinstance(cls, type):
        raise WorkloadLoadError(f"{target} is a {type(cls).__name__}, not a class")
    missing = [method for method in ("setup", "run") if not callable(getattr(cls, method, None))]
    if missing:
        raise WorkloadLoadError(f"{target} is no workload: it has no {' and no '.join(missing)}()")
    return cls


def workload_arguments(target: str) -> list[str]:
    """``sys.argv`` as a script in the workload's file has it without arguments.

    Imports the packages around a module; where it cannot be found, its name stands for its file.
    """
    where = target.rpartition(":")[0]
    if where.endswith(".py"):
        return [where]
    with contextlib.suppress(Exception):  # the import of the workload will raise it again
        spec = importlib.util.find_spec(where)
        if spec is not None and spec.origin is not None:
            return [spec.origin]
    return [where]


def set_arguments(target: str) -> None:
    """Give this process the ``sys.argv`` of a workload: those of the runner are not for its ``argparse``."""
    sys.argv = [target.rpartition(":")[0]]  # for the packages around it
    sys.argv = workload_arguments(target)


@contextlib.contextmanager
def own_arguments(target: str) -> Iterator[None]:
    """Give this process the ``sys.argv`` of a workload for a while."""
    before = sys.argv
    try:
        set_arguments(target)
        yield
    finally:
        sys.argv = before


def _load_file(path: Path) -> ModuleType:
    """Import a file under the name that a process started by it can import it by, too.

    ``multiprocessing`` with ``spawn`` or ``forkserver`` hands ``sys.path`` down, and names of modules in pickles.
    """
    name, root = module_name(path)
    # As with `python file.py`, its neighbours can be imported.
    _put_first(path.parent)
    _put_first(root)
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file(loaded, path):
        return loaded
    if loaded is None and _leads_to(name, path):
        return importlib.import_module(name)
    # Another module has the name. Descendants with an interpreter of their own cannot import this one.
    return _load_under(f"aorta_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}", path)


def module_name(path: Path) -> tuple[str, Path]:
    """The dotted name of a file, and the folder that has to be on ``sys.path`` for it: above its outermost package."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _put_first(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _is_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).exists() and path.samefile(file)


def _leads_to(name: str, path: Path) -> bool:
    importlib.invalidate_caches()
    if "." in path.stem or not path.is_file():
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).exists() and path.samefile(spec.origin)


def _load_under(name: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadLoadError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def describe(cls: type[Any], overrides: dict[str, Any], steps: int | None) -> dict[str, Any]:
    """What the host needs of a workload before its first trial: the fields of ``launch.workload_info.WorkloadInfo``.

    ``config_error`` is a message when the options, or what the class declares, do not fit, else ``None``.
    """
    config: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    startup: dict[str, str] = {}
    own: dict[str, Any] = {}
    data: dict[str, str | None] = {}
    scope, config_error = "global", None
    try:
        resolved = resolve_config(cls, overrides, steps)
        config, warnings, data = resolved.plain, resolved.warnings, data_files(cls, resolved.value)
        own = cls.aorta_description(resolved.value) if hasattr(cls, "aorta_description") else {}
        scope = aorta.result_scope(cls)
        startup = aorta.startup_variables(cls, resolved.value if isinstance(resolved.value, dict) else config)
    except (ConfigError, aorta.DeclarationError) as error:
        config_error = str(error)
    root = source_root(cls)
    return {
        "launch_mode": getattr(cls, "launch_mode", "single_process"),
        "min_world_size": int(getattr(cls, "min_world_size", 1)),
        "timeout_sec": getattr(cls, "timeout_sec", None),
        "result_scope": scope,
        "source": source_file(cls),
        "source_root": None if root is None else str(root),
        "sources": sources(cls),
        "data_files": data,
        "config": config,
        "config_error": config_error,
        "config_warnings": list(warnings),
        "startup_variables": startup,
        "requires_process": aorta.requires_process(cls),
        **own,
    }


def source_file(cls: type[Any]) -> str | None:
    return getattr(sys.modules.get(cls.__module__), "__file__", None)
