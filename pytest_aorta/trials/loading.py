"""Importing the class of a workload, and describing it as plain data."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_aorta.trials import aorta
from pytest_aorta.trials.config import ConfigError, resolve_config
from pytest_aorta.trials.sources import data_files, source_root, sources


class WorkloadLoadError(Exception):
    """A target does not lead to a workload class."""


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
    """Whether importing ``name`` executes this file."""
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
        aorta.check_isolation(cls)
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
    """The file that defines a class."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None)
