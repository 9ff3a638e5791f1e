"""Workload classes in a Python file, found by reading it: importing would start what a trial has to start."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from pytest_aorta.plugin.given_texts import may_have_workloads

#: Added to the methods of a class whose base is named Workload.
_DECLARED = "(Workload)"


@dataclass(frozen=True)
class FileFacts:
    """What a Python file defines.

    Attributes:
        workloads: name and class of every workload, in the order of the file.
        incomplete: public classes with a base named ``Workload`` and one of its methods, and the one they do not have.
        has_tests: whether pytest would collect something by itself, by the default names.
        lines: where each name is bound that the file has at its top, ``Outer.Inner`` included; from 1.
    """

    workloads: Sequence[tuple[str, str]] = ()
    incomplete: Mapping[str, str] = field(default_factory=dict)
    has_tests: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)


def workload_classes(path: Path) -> Sequence[tuple[str, str]]:
    """Name and class of every workload that a file defines, in its order; empty when it is no valid Python.

    A workload is a public, concrete class with ``setup`` and ``run`` methods, its own or inherited from a class of the
    file, or with a base named ``Workload``. In a file that has tests as well only the latter count: any helper of a
    test may have methods of these names. Its name is the text of a class attribute ``name``, else the class's name.
    """
    return workload_facts(path).workloads


def workload_facts(path: Path) -> FileFacts:
    """What a file defines; of one that cannot have a workload nothing, as it is not parsed for that."""
    source = _source(path)
    return source.facts if source is not None and source.may_have_workloads else FileFacts()


def has_workloads(path: Path) -> bool:
    """Whether trials are to be collected from a file that was given.

    Also where it has nothing but incomplete workloads, and no tests: to be asked for trials and to have none, with no
    word of why, is what a newcomer meets first.
    """
    facts = workload_facts(path)
    return bool(facts.workloads or (facts.incomplete and not facts.has_tests))


def has_tests(path: Path) -> bool:
    """Whether a file with workloads has tests as well."""
    return workload_facts(path).has_tests


def definition_line(path: Path, name: str) -> int:
    """The line, from 1, in which a file binds a name (``Class`` or ``Outer.Inner``); 0 when it does not."""
    source = _source(path)
    return 0 if source is None else source.facts.lines.get(name, 0)


class _Source:
    """One version of a file, which is parsed at most once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.may_have_workloads = may_have_workloads(path.read_bytes())

    @cached_property
    def facts(self) -> FileFacts:
        try:
            return _facts(ast.parse(self._path.read_bytes()))
        except (OSError, SyntaxError, ValueError):
            return FileFacts()


def _source(path: Path) -> _Source | None:
    """``None`` for what cannot be read."""
    try:
        seen = path.stat()
        return _version(path, seen.st_mtime_ns, seen.st_size, seen.st_ino)
    except (OSError, ValueError):
        return None


@cache
def _version(path: Path, *_seen: int) -> _Source:
    return _Source(path)


def _facts(module: ast.Module) -> FileFacts:
    has_tests = _has_tests(module)
    workloads, incomplete = [], {}
    for node, known in _classes(module):
        wanted = {"setup", "run", _DECLARED} if has_tests else {"setup", "run"}
        if node.name.startswith("_"):
            continue
        if wanted <= known.keys() and not any(known.values()):
            workloads.append((_given_name(node) or node.name, node.name))
        missing = [name for name in ("setup", "run") if known.get(name)]
        if _DECLARED in known and len(missing) == 1:
            incomplete[node.name] = missing[0]
    return FileFacts(tuple(workloads), incomplete, has_tests, dict(_bound(module.body)))


def _bound(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, int]]:
    """The names of classes and imports, and what is assigned, with their lines; later ones win."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node.lineno
            yield from _bound(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((prefix + (alias.asname or alias.name), alias.lineno) for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from ((prefix + target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name))
        else:  # classes may be defined under a condition
            for part in ("body", "orelse", "finalbody"):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _bound(getattr(node, part, ()), prefix)


def _classes(module: ast.Module) -> list[tuple[ast.ClassDef, dict[str, bool]]]:
    """The classes of a file, each with the names of its methods, and whether each of these is abstract."""
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}

    def methods(node: ast.ClassDef, seen: frozenset[str]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for base in reversed(node.bases):
            name = last_name(base)
            if name in classes and name not in seen:
                found.update(methods(classes[name], seen | {name}))
            elif name == "Workload":
                found.update(setup=True, run=True, **{_DECLARED: False})
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                found[part.name] = is_abstract(part)
        return found

    return [(node, methods(node, frozenset({node.name}))) for node in classes.values()]


def is_abstract(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """By its decorator, or because all it does is to raise NotImplementedError."""
    if any(last_name(mark) == "abstractmethod" for mark in function.decorator_list):
        return True
    last = function.body[-1]
    raised = last.exc if isinstance(last, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return raised is not None and len(function.body) <= 2 and last_name(raised) == "NotImplementedError"


def last_name(node: ast.expr) -> str:
    """``Workload`` of ``Workload`` and of ``pytest_aorta.Workload``; empty for anything else."""
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


def _has_tests(module: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in module.body
    )


def from_root(arguments: list[str], here: Path, top: Path) -> list[str]:
    """Command line arguments, those made absolute that name a trial of a file relative to ``top``, and not to ``here``.

    As pytest writes node ids into reports, and into its cache, whatever directory it was started in.
    """
    found = []
    for argument in arguments:
        file, _, name = argument.partition("::") if argument.endswith("]") else (argument, "", "")
        below = name and here != top and not (here / file).exists()
        found.append(f"{top / file}::{name}" if below and workload_classes(top / file) else argument)
    return found
