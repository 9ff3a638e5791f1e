"""Finds workload classes in Python files by parsing: an import would start what only a trial may start.

Files that are given as arguments are collected. If none has a workload, a line says why.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from pytest_aorta.common.import_target import module_file
from pytest_aorta.common.texts import one_line
from pytest_aorta.plugin import may_have_workloads
from pytest_aorta.plugin.options import given_options, is_typed

_METHODS = ("setup", "run")

_AS_COMMAND = "a script runs as it is with --aorta-command 'python {}'"


@dataclass(frozen=True)
class FileFacts:
    #: Name and class of every workload, in the order of the file: a public, concrete class with ``setup`` and ``run``
    #: methods, its own or inherited from a class of the file, or with a base named ``Workload``. None in a file that
    #: has tests: there, such classes are helpers.
    workloads: Sequence[tuple[str, str]] = ()
    #: What each class lacks that is nearly a workload; and whether one of them has a base named ``Workload``.
    lacks: Sequence[str] = ()
    is_incomplete: bool = False
    has_tests: bool = False
    has_classes: bool = False
    is_valid: bool = False


def workload_facts(path: Path, *, always: bool = False) -> FileFacts:
    """The classes and tests of a file; unless ``always``, a file that cannot have a workload is not parsed."""
    try:
        seen = path.stat()
    except (OSError, ValueError):
        return FileFacts()
    return _facts(path, (seen.st_mtime_ns, seen.st_size, seen.st_ino), always)


@lru_cache
def _facts(path: Path, version: tuple[int, ...], always: bool) -> FileFacts:
    try:
        text = path.read_bytes()
        if not always and not may_have_workloads(text):
            return FileFacts()
        module = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return FileFacts()
    has_tests = any(map(_is_test, module.body))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    workloads, lacks, is_incomplete = [], [], False
    for name, node in classes.items():
        methods, is_declared = _methods(node, classes, frozenset({name}))
        missing = [method for method in _METHODS if methods.get(method, True)]
        if len(missing) == 1:
            lacks.append(f"{name} has no {missing[0]}()")
        if not has_tests and not name.startswith("_"):
            is_incomplete |= is_declared and len(missing) == 1
            if not missing and not any(methods.values()):
                workloads.append((_given_name(node) or name, name))
    return FileFacts(workloads, lacks, is_incomplete, has_tests, bool(classes), is_valid=True)


def _is_test(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test") or any(_last_name(base).endswith("TestCase") for base in node.bases)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _methods(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], seen: frozenset[str]
) -> tuple[dict[str, bool], bool]:
    """The methods of a class, each with whether it is abstract; and whether a base is named ``Workload``."""
    methods: dict[str, bool] = {}
    is_declared = False
    for name in map(_last_name, reversed(node.bases)):
        if name in classes and name not in seen:
            inherited, declared = _methods(classes[name], classes, seen | {name})
            methods |= inherited
            is_declared |= declared
        elif name == "Workload":
            methods |= dict.fromkeys(_METHODS, True)
            is_declared = True
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            last = part.body[-1]
            raised = last.exc if isinstance(last, ast.Raise) else None
            raised = raised.func if isinstance(raised, ast.Call) else raised
            raises = raised is not None and len(part.body) <= 2 and _last_name(raised) == "NotImplementedError"
            methods[part.name] = raises or any(_last_name(mark) == "abstractmethod" for mark in part.decorator_list)
    return methods, is_declared


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _given_name(node: ast.ClassDef) -> str | None:
    for part in node.body:
        if isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(part.value, ast.Constant):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            if any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
                return part.value.value if isinstance(part.value.value, str) else None
    return None


def what_lacks(path: Path, wanted: bool = True) -> str:
    """Say what the classes of a file lack to be workloads; empty if none is nearly one.

    ``wanted``: whether trials are asked for; then also say that a file has no such class.
    """
    facts = workload_facts(path, always=True)
    if facts.lacks:
        return "; ".join(
            [*facts.lacks, "a workload has setup() and run(), its own or of a base in its file, which is not imported"]
        )
    if not wanted or not facts.is_valid or facts.workloads:
        return ""
    if facts.has_tests:
        return "it has tests, whose classes are helpers: aorta_run(CLASS) in a test, or a file of its own, runs one"
    return f"it defines none; {_AS_COMMAND.format(path.name)}"


#: Files with workloads among the arguments.
GIVEN = pytest.StashKey[set[Path]]()


def find_given(config: pytest.Config) -> bool:
    """Find the files with workloads among the arguments, and rewrite arguments such that pytest finds them.

    Files with incomplete workloads count, too, so that a newcomer is told why there are no trials.
    """
    here, top = config.invocation_params.dir, config.rootpath
    files = config.stash[GIVEN] = set()
    for place, argument in enumerate(config.args):
        given, _, name = argument.partition("::")
        # A trial by its node id, as pytest writes it into reports and its cache, whatever directory it was started in.
        is_trial_below = argument.endswith("]") and name and here != top and not (here / given).exists()
        if is_trial_below and workload_facts(top / given).workloads:
            given = str(top / given)
            config.args[place] = f"{given}::{name}"
        path = os.path.normpath(os.path.join(here, given))
        file = Path(path) if path.endswith(".py") else None
        if config.option.pyargs and not os.path.exists(path):
            file = module_file(given)
        if file is not None and ((facts := workload_facts(file)).workloads or facts.is_incomplete):
            files.add(file)
    return bool(files)


def lines_of_empty_run(terminal: pytest.TerminalReporter, status: int, config: pytest.Config) -> list[str]:
    """Lines for a run that ended with this status before its first item.

    One line for each given file with a class that is nearly a workload. If an option of ours asks for trials, one for
    each other file as well; and, if nothing was named, a line on what could be.
    """
    wanted = bool(given_options(config))
    given = [config.invocation_params.dir / str(argument).partition("::")[0] for argument in config.args]
    files = [file for file in given if file.suffix == ".py" and file.is_file()]
    if status != pytest.ExitCode.NO_TESTS_COLLECTED:
        errors = [report for report in terminal.stats.get("error", []) if isinstance(report, pytest.CollectReport)]
        failed = {config.rootpath / report.nodeid.partition("::")[0] for report in errors}
        of = {file: workload_facts(file, always=True) for file in files if wanted and file in failed}
        scripts = [file for file, it in of.items() if it.is_valid and not it.has_tests and not it.has_classes]
        return [one_line(f"{file.name}: {_AS_COMMAND.format(file.name)}") for file in scripts]
    lacks = {file: what_lacks(file, wanted) for file in files}
    lines = [one_line(f"no workload in {file.name}: {text}") for file, text in lacks.items() if text]
    is_named = config.args_source == config.ArgsSource.ARGS or is_typed(config)
    if wanted and not is_named and not config.getini("aorta_workload") and not config.getini("aorta_command"):
        lines.append(
            "no trials: of what? --aorta-workload NAME (pytest-aorta list workloads has the names), "
            "--aorta-command 'python train.py', or a file with a workload or a recipe"
        )
    return lines
