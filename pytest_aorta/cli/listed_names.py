"""Registered names as plain data: what each stands for, or why it cannot be used."""

from __future__ import annotations

import ast
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec

    from pytest_aorta.registry import Registry
    from pytest_aorta.registry.registry import Kind

#: One name: its ``source`` package, and what it stands for, or its ``problem``.
Entry = dict[str, Any]


def registered(registry: Registry, kind: Kind) -> list[Entry]:
    """The names of one kind, sorted; ``problem`` is ``None`` for those that can be used."""
    from pytest_aorta.registry.errors import RegistryError, one_line_of

    names, entry_of = _KINDS[kind]
    entries = []
    for name in names(registry):
        entry: Entry = {"name": name, "source": registry.source_package(kind, name), "problem": None}
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a plugin that prints while it is imported
                entry |= entry_of(registry, name)
        except RegistryError as error:
            entry["problem"] = str(error)
        except Exception as error:
            entry["problem"] = one_line_of(error)
        entries.append(entry)
    return entries


def _workload(registry: Registry, name: str) -> Entry:
    target = registry.workload(name).target
    module, _, cls = target.rpartition(":")
    spec = _found(module)
    problem = None if spec is not None else f"there is no module {module}"
    return {"target": target, "summary": _summary(spec, cls), "problem": problem}


def _found(module: str) -> ModuleSpec | None:
    """Where a module is; other than with ``importlib.util.find_spec``, the packages around it are not imported."""
    places: Sequence[str] | None = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        found = (finder.find_spec(".".join(parts[:end]), places) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        if places is None:
            return spec if end == len(parts) else None
    return spec


def _summary(spec: ModuleSpec | None, cls: str) -> str:
    """The first line of a class's docstring, read and not imported; empty where there is none."""
    if spec is None or not str(spec.origin).endswith(".py"):
        return ""
    try:
        module = ast.parse(Path(str(spec.origin)).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            return (ast.get_docstring(node) or "").partition("\n")[0].replace("``", "")
    return ""


def _mitigation(registry: Registry, name: str) -> Entry:
    mitigation = registry.mitigation(name)
    return {"variables": _variables(mitigation.env), "read_by": mitigation.read_by}


def _environment(registry: Registry, name: str) -> Entry:
    environment = registry.environment(name)
    parts = {
        "docker": environment.docker,
        "venv": environment.venv,
        "rocm": environment.rocm,
        "launcher": list(environment.launcher),
        "enter": environment.enter,
    }
    problem = None
    if environment.venv and not environment.enter and not Path(environment.venv, "bin", "python").expanduser().exists():
        problem = f"there is no virtual environment in {environment.venv}"
    return {
        "kind": environment.kind,
        **{key: value for key, value in parts.items() if value},
        "variables": _variables(environment.env),
        "problem": problem,
    }


def _collector(registry: Registry, name: str) -> Entry:
    return {"name": registry.collector(name)}


def _variables(variables: Any) -> dict[str, str]:
    from pytest_aorta.probe.variables import shown_value

    return {name: shown_value(name, value) for name, value in variables.items()}


_KINDS: dict[Kind, tuple[Callable[[Registry], list[str]], Callable[[Registry, str], Entry]]] = {
    "workloads": (lambda registry: registry.workload_names(), _workload),
    "mitigations": (lambda registry: registry.mitigation_names(), _mitigation),
    "environments": (lambda registry: registry.environment_names(), _environment),
    "collectors": (lambda registry: registry.collector_names(), _collector),
}
