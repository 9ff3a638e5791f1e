"""Workload classes in Python files, found by reading them: importing would start what a trial has to start."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    @property
    def is_workload(self) -> bool:
        is_concrete = not any(self.methods.values())
        return not self.name.startswith("_") and is_concrete and all(name in self.methods for name in _METHODS)

    @property
    def lacks(self) -> str:
        """What keeps it from being a workload; empty where nothing suggests that it was meant to be one."""
        missing = [name for name in _METHODS if self.methods.get(name, True)]
        return f"{self.name} has no {missing[0]}()" if len(missing) == 1 else ""


@dataclass(frozen=True)
class FileFacts:
    classes: Sequence[FoundClass] = ()
    has_tests: bool = False
    is_valid: bool = False

    @property
    def workloads(self) -> list[FoundClass]:
        """None in a file that has tests: there, such classes are helpers."""
        return [found for found in self.classes if found.is_workload and not self.has_tests]

    @property
    def is_incomplete(self) -> bool:
        return not self.has_tests and any(
            found.is_declared and sum(found.methods[name] for name in _METHODS) == 1
            for found in self.classes
            if not found.name.startswith("_")
        )

    @property
    def is_script(self) -> bool:
        return self.is_valid and not self.has_tests and not self.classes


def workload_classes(path: Path) -> list[tuple[str, str]]:
    """Name and class of every workload that a file defines, in its order.

    A workload is a public, concrete class with ``setup`` and ``run`` methods, its own or inherited from a class of the
    file, or with a base named ``Workload``.
    """
    return [(found.workload, found.name) for found in workload_facts(path).workloads]


def workload_facts(path: Path, *, always: bool = False) -> FileFacts:
    """What a file defines; unless ``always``, one that cannot have a workload is not parsed for that."""
    version = _version(path)
    return _facts(path, version, always) if version else FileFacts()


def what_lacks(path: Path, wanted: bool = True) -> str:
    """What the classes of a file lack to be workloads; empty where none is nearly one.

    ``wanted``: say also that a file has no class which is nearly one.
    """
    facts = workload_facts(path, always=True)
    if lacking := [found.lacks for found in facts.classes if found.lacks]:
        lacking.append("a workload has setup() and run(), its own or of a base in its file, which is not imported")
        return "; ".join(lacking)
    if not wanted or not facts.is_valid or facts.workloads:
        return ""
    if facts.has_tests:
        return "it has tests, whose classes are helpers: aorta_run(CLASS) in a test, or a file of its own, runs one"
    return f"it defines none; {AS_COMMAND.format(path.name)}"


def definition_line(path: Path, name: str) -> int:
    """The line, from 1, in which a file defines a class (``Class`` or ``Outer.Inner``); 0 when it does not."""
    version = _version(path)
    return _line(path, version, name) if version else 0


def _version(path: Path) -> tuple[int, ...]:
    try:
        seen = path.stat()
    except (OSError, ValueError):
        return ()
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


@cache
def _facts(path: Path, version: tuple[int, ...], always: bool) -> FileFacts:
    try:
        text = path.read_bytes()
        if not always and not may_have_workloads(text):
            return FileFacts()
        module = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return FileFacts()
    return FileFacts(_classes(module), any(map(_is_test, module.body)), is_valid=True)


def _is_test(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test") or any(_last_name(base).endswith("TestCase") for base in node.bases)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


@cache
def _line(path: Path, version: tuple[int, ...], name: str) -> int:
    try:
        node: ast.AST | None = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return 0
    for part in name.split("."):
        inner = [] if node is None else list(ast.walk(node))[1:]
        node = next((each for each in inner if isinstance(each, ast.ClassDef) and each.name == part), None)
    return getattr(node, "lineno", 0)


def _classes(module: ast.Module) -> list[FoundClass]:
    nodes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}

    def describe(node: ast.ClassDef, seen: frozenset[str]) -> FoundClass:
        methods: dict[str, bool] = {}
        is_declared = False
        for name in map(_last_name, reversed(node.bases)):
            if name in nodes and name not in seen:
                base = describe(nodes[name], seen | {name})
                methods |= base.methods
                is_declared |= base.is_declared
            elif name == "Workload":
                methods |= dict.fromkeys(_METHODS, True)
                is_declared = True
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                methods[part.name] = _is_abstract(part)
        return FoundClass(node.name, _given_name(node) or node.name, methods, is_declared)

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
