"""Workload classes in a Python file, found by reading it: importing would start what a trial has to start."""

from __future__ import annotations

import ast
from pathlib import Path

#: Added to the methods of a class whose base is named Workload.
_DECLARED = "(Workload)"


def workload_classes(path: Path) -> list[tuple[str, str]]:
    """Name and class of every workload that a file defines, in its order; empty when it is no valid Python.

    A workload is a public, concrete class with ``setup`` and ``run`` methods, its own or inherited from a class of the
    file, or with a base named ``Workload``. In a file that has tests as well only the latter count: any helper of a
    test may have methods of these names. Its name is the text of a class attribute ``name``, else the class's name.
    """
    module = _parsed(path)
    if module is None:
        return []
    only_declared = _has_tests(module)
    found = []
    for node, known in _classes(module):
        wanted = {"setup", "run", _DECLARED} if only_declared else {"setup", "run"}
        if not node.name.startswith("_") and wanted <= known.keys() and not any(known.values()):
            found.append((_given_name(node) or node.name, node.name))
    return found


def incomplete_classes(path: Path) -> dict[str, str]:
    """Public classes with a base named ``Workload`` and one of its methods, and the method that they do not have."""
    module = _parsed(path)
    found = {}
    for node, known in [] if module is None else _classes(module):
        missing = [name for name in ("setup", "run") if known.get(name)]
        if _DECLARED in known and len(missing) == 1 and not node.name.startswith("_"):
            found[node.name] = missing[0]
    return found


def _classes(module: ast.Module) -> list[tuple[ast.ClassDef, dict[str, bool]]]:
    """The classes of a file, each with the names of its methods, and whether each of these is abstract."""
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}

    def methods(node: ast.ClassDef, seen: frozenset[str]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for base in reversed(node.bases):
            name = _last_name(base)
            if name in classes and name not in seen:
                found.update(methods(classes[name], seen | {name}))
            elif name == "Workload":
                found.update(setup=True, run=True, **{_DECLARED: False})
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                found[part.name] = _is_abstract(part)
        return found

    return [(node, methods(node, frozenset({node.name}))) for node in classes.values()]


def _is_abstract(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """By its decorator, or because all it does is to raise NotImplementedError."""
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
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        for target in targets:
            value = getattr(part, "value", None)
            if isinstance(target, ast.Name) and target.id == "name" and isinstance(value, ast.Constant):
                return value.value if isinstance(value.value, str) else None
    return None


def has_tests(path: Path) -> bool:
    """Whether a file has something that pytest would collect by itself, by the default names."""
    module = _parsed(path)
    return module is None or _has_tests(module)


def _has_tests(module: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in module.body
    )


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
