"""From the record of a trial to the line of the index that stands for it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from pytest_aorta.workflow.requests import recorded_digest
from pytest_aorta.workspace.index.completions import TrialCompletion, is_valid

#: The request of a record that does not say it; no cell has it, so such a record is stale.
UNKNOWN_REQUEST = ""


def trial_completion(action: str, record: Mapping[str, Any]) -> TrialCompletion | None:
    """The completion that a record, as it is in its file, stands for; ``None`` where it is no record of a trial."""
    cell, trial, status = (record.get(name) for name in ("cell", "trial_index", "exit_status"))
    if not isinstance(cell, str) or not isinstance(trial, int) or not isinstance(status, str):
        return None
    request = recorded_digest(record) or UNKNOWN_REQUEST
    found = TrialCompletion(action, cell, trial, status, request, recorded_sources(record))
    return found if is_valid(found) else None


def recorded_sources(record: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the source files that a record names, by absolute path.

    A record has those of the workload's own package relative to its folder. Files that cannot be found, as those in a
    container, are left out: nothing can be said of them here.
    """
    parts, request = record.get("fingerprint_parts"), record.get("request")
    if not isinstance(parts, Mapping) or not isinstance(request, Mapping):
        return {}
    workload = request.get("workload", {})
    target, cwd = workload.get("target", ""), str(request.get("cwd", ""))
    root = _source_root(target, cwd, tuple(request.get("sys_path", ())))
    found = {}
    for part in ("sources", "imported_later"):
        for name, digest in parts.get(part, {}).items():
            path = os.path.join(root, name) if root is not None else name
            if os.path.isabs(path) and _is_file(path):
                found[path] = digest
    return found


@lru_cache(maxsize=2**16)
def _is_file(path: str) -> bool:
    return os.path.isfile(path)


@lru_cache(maxsize=1024)
def _source_root(target: str, cwd: str, sys_path: tuple[str, ...]) -> str | None:
    """The folder that ``trials.sources.source_root`` has given, without importing anything."""
    module = target.rpartition(":")[0]
    if module.endswith(".py"):
        return os.path.dirname(os.path.realpath(os.path.join(cwd, module)))
    top, *below = module.split(".")
    spec = _spec(top, [cwd, *sys_path, *sys.path])
    if spec is None:
        return None
    if spec.origin is not None:
        return os.path.dirname(os.path.realpath(spec.origin))
    places = list(spec.submodule_search_locations or ())  # a namespace package has no file
    for name in below:
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            return None
        if name == below[-1] and spec.origin is not None:
            return os.path.dirname(os.path.realpath(spec.origin))
        places = list(spec.submodule_search_locations or ())
    return None


def _spec(name: str, places: list[str]) -> ModuleSpec | None:
    try:
        return PathFinder.find_spec(name, places) or importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
