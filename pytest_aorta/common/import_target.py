"""Files of modules by their names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def target_file(target: str) -> Path | None:
    """The file of ``module:name`` or ``/path/file.py:name``; ``None`` if it cannot be found."""
    where = target.rpartition(":")[0]
    return Path(where) if where.endswith(".py") else module_file(where)


def module_file(module: str, places: Sequence[str] = ()) -> Path | None:
    """The file of a module. Nothing is imported, neither the module nor the packages around it."""
    spec = module_spec(module, places)
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def module_spec(module: str, places: Sequence[str] = ()) -> ModuleSpec | None:
    """The spec of a module, likewise; ``places``: folders that come before ``sys.path``."""
    parts = module.split(".")
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        spec = PathFinder.find_spec(name, [*places, *sys.path]) if places and number == 1 else None
        finders = (finder for finder in sys.meta_path if spec is None and hasattr(finder, "find_spec"))
        spec = spec or next(filter(None, (finder.find_spec(name, path) for finder in finders)), None)
        path = None if spec is None else spec.submodule_search_locations
        if spec is None or (path is None and number < len(parts)):
            return None
    return spec
