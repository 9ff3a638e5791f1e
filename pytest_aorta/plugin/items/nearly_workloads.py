"""What keeps the classes of a file from being workloads, for a run that has collected nothing from it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_aorta.common.terminal_text import one_line
from pytest_aorta.plugin.items.discovery import is_abstract, last_name
from pytest_aorta.plugin.options import given_options, is_typed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_METHODS = ("setup", "run")

_AS_COMMAND = "a script runs as it is with --aorta-command 'python {}'"


def lines_of_empty_run(terminal: pytest.TerminalReporter, status: int, config: pytest.Config) -> list[str]:
    """What to say of a run that has ended with such a status, and that has not come to its first item."""
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        return lacking_lines(config)
    errors = [report for report in terminal.stats.get("error", []) if isinstance(report, pytest.CollectReport)]
    return script_lines(config, {config.rootpath / report.nodeid.partition("::")[0] for report in errors})


def lacking_lines(config: pytest.Config) -> list[str]:
    """What to say of a run that has collected nothing.

    One line for each file on the command line in which something is nearly a workload. Where an option of ours is on
    the command line, so that trials were wanted, also for files with nothing of the kind; and where nothing was named,
    what could be.
    """
    wanted = _wanted(config)
    files = _given_files(config)
    found = {file: what_lacks(file, wanted) for file in files}
    lines = [one_line(f"no workload in {file.name}: {text}") for file, text in found.items() if text]
    is_named = config.args_source == config.ArgsSource.ARGS or is_typed(config)
    if wanted and not is_named and not config.getini("aorta_workload") and not config.getini("aorta_command"):
        lines.append(
            "no trials: of what? --aorta-workload NAME (pytest-aorta list workloads has the names), "
            "--aorta-command 'python train.py', or a file with a workload or a recipe"
        )
    return lines


def script_lines(config: pytest.Config, failed: Collection[Path]) -> list[str]:
    """One line for each script on the command line that pytest has failed to import, where trials were wanted."""
    scripts = [file for file in _given_files(config) if file in failed and _wanted(config) and _is_script(file)]
    return [one_line(f"{file.name}: {_AS_COMMAND.format(file.name)}") for file in scripts]


def _wanted(config: pytest.Config) -> bool:
    return bool(given_options(config))


def _given_files(config: pytest.Config) -> list[Path]:
    files = [config.invocation_params.dir / str(argument).partition("::")[0] for argument in config.args]
    return [file for file in files if file.suffix == ".py" and file.is_file()]


def _is_script(path: Path) -> bool:
    """Whether a file has neither a class nor a test."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    functions = (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    is_tested = any(node.name.startswith("test") for node in functions)
    return not is_tested and not any(isinstance(node, ast.ClassDef) for node in body)


def what_lacks(path: Path, wanted: bool = True) -> str:
    """A message: what the classes of a file lack to be workloads.

    Empty where none is nearly a workload, and where the file is not valid Python.

    Args:
        path: of the file, which is not imported.
        wanted: whether to say also that a file has no class which is nearly one.
    """
    try:
        module = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    lacking = [text for node in classes.values() if (text := _lacks(node, classes, _imported(module)))]
    if lacking:
        return "; ".join(lacking) + ". A workload has setup() and run(), and its file is read and not imported"
    if not wanted:
        return ""
    if classes:
        return f"{', '.join(classes)}: neither setup() nor run()"
    return f"it defines no class; {_AS_COMMAND.format(path.name)}"


def _lacks(node: ast.ClassDef, classes: dict[str, ast.ClassDef], imported: dict[str, str]) -> str:
    """What keeps a class from being a workload; empty where nothing suggests that it was meant to be one."""
    family = list(_family(node, classes, set()))
    foreign = {name: imported[name] for each in family for name in map(last_name, each.bases) if name in imported}
    is_declared = any(last_name(base) == "Workload" for each in family for base in each.bases)
    own = {
        part.name: part
        for each in reversed(family)
        for part in each.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    missing = [f"{name}()" for name in _METHODS if name not in own]
    if not is_declared and len(missing) == len(_METHODS) and not any("workload" in base.lower() for base in foreign):
        return ""
    if node.name.startswith("_"):
        return f"{node.name} begins with an underscore, which keeps it private"
    abstract = [f"{name}()" for name in _METHODS if name in own and is_abstract(own[name])]
    if not missing or is_declared:
        lacking = abstract or (missing if is_declared else [])
        return f"{node.name} does not define {' and '.join(lacking)}" if lacking else ""
    text = f"{node.name} has no {' and no '.join(missing)}"
    for base, where in foreign.items():
        text += f" in this file, and its base {base} is in another one ({where})"
    return text


def _family(node: ast.ClassDef, classes: dict[str, ast.ClassDef], seen: set[str]) -> Iterator[ast.ClassDef]:
    """A class, and its bases in the same file."""
    if node.name not in seen:
        seen.add(node.name)
        yield node
        for base in map(last_name, node.bases):
            if base in classes:
                yield from _family(classes[base], classes, seen)


def _imported(module: ast.Module) -> dict[str, str]:
    """Names that a file imports, and the modules they are from."""
    return {
        alias.asname or alias.name: "." * node.level + (node.module or "")
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
