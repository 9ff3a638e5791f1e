"""Workload classes in Python files, found by reading them: importing would start what a trial has to start."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pytest_aorta.plugin import may_have_workloads

_METHODS = ("setup", "run")

AS_COMMAND = "a script runs as it is with --aorta-command 'python {}'"


@dataclass(frozen=True)
class FoundClass:
    name: str
    workload: str
    methods: Mapping[str, bool]
    is_declared: bool
    foreign: Mapping[str, str]

    @property
    def is_workload(self) -> bool:
        is_concrete = not any(self.methods.values())
        return not self.name.startswith("_") and is_concrete and all(name in self.methods for name in _METHODS)

    @property
    def lacks(self) -> str:
        """What keeps it from being a workload; empty where nothing suggests that it was meant to be one."""
        missing = [f"{name}()" for name in _METHODS if name not in self.methods]
        if len(missing) == len(_METHODS) and not any("workload" in base.lower() for base in self.foreign):
            return ""
        if self.name.startswith("_"):
            return f"{self.name} begins with an underscore, which keeps it private"
        if not missing:
            abstract = [f"{name}()" for name in _METHODS if self.methods[name]]
            return f"{self.name} does not define {' and '.join(abstract)}" if abstract else ""
        text = f"{self.name} has no {' and no '.join(missing)}"
        for base, module in self.foreign.items():
            text += f" in this file, and its base {base} is in another one ({module})"
        return text


@dataclass(frozen=True)
class FileFacts:
    classes: Sequence[FoundClass] = ()
    has_tests: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)
    is_valid: bool = False

    @property
    def workloads(self) -> list[FoundClass]:
        """In a file that has tests as well only those that say so: any helper of a test may have such methods."""
        return [found for found in self.classes if found.is_workload and (found.is_declared or not self.has_tests)]

    @property
    def is_incomplete(self) -> bool:
        return not self.has_tests and any(
            found.is_declared and sum(found.methods[name] for name in _METHODS) == 1
            for found in self.classes
            if not found.name.startswith("_")
        )


def workload_classes(path: Path) -> list[tuple[str, str]]:
    """Name and class of every workload that a file defines, in its order.

    A workload is a public, concrete class with ``setup`` and ``run`` methods, its own or inherited from a class of the
    file, or with a base named ``Workload``.
    """
    return [(found.workload, found.name) for found in workload_facts(path).workloads]


def workload_facts(path: Path) -> FileFacts:
    """What a file defines; of one that cannot have a workload nothing, as it is not parsed for that."""
    version = _version(path)
    return _facts(path, *version) if version and _may_have_workloads(path, *version) else FileFacts()


def definition_line(path: Path, name: str) -> int:
    """The line, from 1, in which a file binds a name (``Class`` or ``Outer.Inner``); 0 when it does not."""
    version = _version(path)
    return _facts(path, *version).lines.get(name, 0) if version else 0


def what_lacks(path: Path, wanted: bool = True) -> str:
    """What the classes of a file lack to be workloads; empty where none is nearly one.

    ``wanted``: say also that a file has no class which is nearly one.
    """
    version = _version(path)
    facts = _facts(path, *version) if version else FileFacts()
    if lacking := [found.lacks for found in facts.classes if found.lacks]:
        return "; ".join(lacking) + ". A workload has setup() and run(), and its file is read and not imported"
    if not wanted or not facts.is_valid:
        return ""
    if facts.classes:
        return f"{', '.join(found.name for found in facts.classes)}: neither setup() nor run()"
    return f"it defines no class; {AS_COMMAND.format(path.name)}"


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = path.stat()
    except (OSError, ValueError):
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


@cache
def _may_have_workloads(path: Path, *version: int) -> bool:
    try:
        return may_have_workloads(path.read_bytes())
    except OSError:
        return False


@cache
def _facts(path: Path, *version: int) -> FileFacts:
    try:
        module = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return FileFacts()
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    has_tests = any(
        (isinstance(node, functions) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in module.body
    )
    return FileFacts(_classes(module), has_tests, dict(_bound(module.body)), is_valid=True)


def _bound(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node.lineno
            yield from _bound(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((prefix + (alias.asname or alias.name), alias.lineno) for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from ((prefix + target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):  # classes may be defined under a condition
            for part in ("body", "orelse", "finalbody"):
                yield from _bound(getattr(node, part, ()), prefix)


def _classes(module: ast.Module) -> list[FoundClass]:
    nodes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: "." * node.level + (node.module or "")
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def describe(node: ast.ClassDef, seen: frozenset[str]) -> FoundClass:
        methods: dict[str, bool] = {}
        foreign: dict[str, str] = {}
        is_declared = False
        for name in map(_last_name, reversed(node.bases)):
            if name in nodes and name not in seen:
                base = describe(nodes[name], seen | {name})
                methods |= base.methods
                foreign |= base.foreign
                is_declared |= base.is_declared
            elif name == "Workload":
                methods |= dict.fromkeys(_METHODS, True)
                is_declared = True
            elif name in imported:
                foreign[name] = imported[name]
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                methods[part.name] = _is_abstract(part)
        return FoundClass(node.name, _given_name(node) or node.name, methods, is_declared, foreign)

    return [describe(node, frozenset({node.name})) for node in nodes.values()]


def _is_abstract(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if any(_last_name(mark) == "abstractmethod" for mark in function.decorator_list):
        return True
    last = function.body[-1]
    raised = last.exc if isinstance(last, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return raised is not None and len(function.body) <= 2 and _last_name(raised) == "NotImplementedError"


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _given_name(node: ast.ClassDef) -> str | None:
    for part in node.body:
        if isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(part.value, ast.Constant):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            if any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
                return part.value.value if isinstance(part.value.value, str) else None
    return None


def is_script(file: Path) -> bool:
    version = _version(file)
    facts = _facts(file, *version) if version else FileFacts()
    return facts.is_valid and not facts.has_tests and not facts.classes
