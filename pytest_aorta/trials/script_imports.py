"""The files that a Python script imports from its own folder, found without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Files that are read; more belong to a library rather than to a script.
_MOST = 500

_INSTALLED = {"site-packages", "dist-packages"}


def imported_files(script: str, path: Sequence[str]) -> list[str]:
    """Files of the modules that a script imports, and that these import, wherever an ``import`` stands.

    Args:
        script: its file.
        path: folders that modules are looked for in, as in ``sys.path``; what is installed is left out.
    """
    folders = [Path(folder) for folder in path if _INSTALLED.isdisjoint(Path(folder).parts)]
    found: dict[Path, None] = {}
    waiting = [Path(script)]
    while waiting and len(found) < _MOST:
        file = waiting.pop()
        for imported in _imports(file, folders):
            if imported not in found and imported != Path(script):
                found[imported] = None
                waiting.append(imported)
    return [str(file) for file in found]


def _imports(file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):  # the script itself will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, folders)
        elif isinstance(node, ast.ImportFrom):
            places = [file.parents[node.level - 1]] if 0 < node.level <= len(file.parents) else folders
            module = f"{node.module}." if node.module else ""
            for alias in node.names:
                yield from _files(f"{module}{alias.name}", places)


def _files(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Those of a module and of the packages around it; the last part may also be a name in a module."""
    parts = name.split(".")
    for folder in folders:
        top = folder / parts[0]
        if not (top.is_dir() or top.with_suffix(".py").is_file()):
            continue
        for number in range(1, len(parts) + 1):
            path = folder.joinpath(*parts[:number])
            yield from (file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file())
        return


def search_path(script: str, *, is_module: bool) -> list[str]:
    """Where a script finds modules beside those that are installed: as ``python`` makes ``sys.path``."""
    first = os.curdir if is_module else os.path.dirname(script) or os.curdir
    return [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
