"""What a trial imports: which installed distributions it depends on, and watching modules while they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_IN_SITE_PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]+)")


def imported_modules() -> list[str]:
    """Top-level modules of installed distributions that this process has imported, sorted."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    names_of_files = (_IN_SITE_PACKAGES.findall(file) for file in files if isinstance(file, str))
    return sorted({names[-1].partition(".")[0] for names in names_of_files if names})


def site_packages(venv: str | None) -> list[str]:
    """Where the distributions of an environment are: of this interpreter, or of a virtual environment."""
    if venv is None:
        return sys.path
    return [str(path) for path in Path(venv).expanduser().glob("lib*/python3*/site-packages")]


def _modules_of(distribution: Distribution) -> set[str]:
    listed = (distribution.read_text("top_level.txt") or "").split()
    files = [str(file) for file in distribution.files or () if not str(file).startswith("..")] if not listed else []
    inside = {
        re.split(r"[/.]", file)[0] for file in files if ".dist-info/" not in file and file.endswith((".py", ".so"))
    }
    return {*(name.partition("/")[0] for name in listed), *inside}


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def concerned(changed: Iterable[str], imported: Collection[str], paths: Sequence[str], own: str = "") -> set[str]:
    """The changed distributions that a trial has imported, or that an imported one requires.

    The libraries of ``nvidia-nccl-cu12`` are loaded by torch, which requires it, and no module of it is imported. One
    that is gone is known by its name; where a module is gone with it, all that are gone count.

    Args:
        changed: their names.
        imported: top-level modules that the trial has imported.
        paths: where the distributions are now.
        own: the distribution of the workload.
    """
    from importlib.metadata import distributions

    there = {_name(each.metadata["Name"] or ""): each for each in distributions(path=list(paths))}
    provided = {name: _modules_of(each) for name, each in there.items()}
    modules = {module for each in provided.values() for module in each}
    is_missing = any(module not in modules and not _is_file_in(paths, module) for module in imported)
    needed = {*map(_name, imported), _name(own)}
    needed |= {name for name, each in provided.items() if not each.isdisjoint(imported)}
    left = list(needed)
    while left:
        distribution = there.get(left.pop())
        for text in (distribution and distribution.requires) or ():
            name = _name(re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0])
            if "extra ==" not in text and name not in needed:
                needed.add(name)
                left.append(name)
    return {each for each in changed if _name(each) in needed or (is_missing and _name(each) not in there)}


def _is_file_in(paths: Sequence[str], module: str) -> bool:
    return any(any(Path(path).glob(f"{module}*")) for path in paths if path)


class WatchedImports(importlib.abc.MetaPathFinder):
    """Runs code of ours around the execution of modules that ``wants`` and ``concerns`` choose, and first finds them.

    The injected file (``launch/child/bootstrap``) has a finder of its own, because it imports nothing of this package.
    """

    def __init__(self) -> None:
        sys.meta_path.insert(0, self)

    def wants(self, name: str) -> bool:
        """Whether a module is looked for here."""
        return True

    def concerns(self, spec: importlib.machinery.ModuleSpec) -> bool:
        """Whether a module that has been found is executed by ``execute``."""
        return hasattr(spec.loader, "exec_module")

    def execute(self, name: str, execute: Callable[[ModuleType], object], module: ModuleType) -> None:
        """Execute a module by calling ``execute`` with it."""
        execute(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the other finders; its loader calls ``execute`` of this class."""
        if not self.wants(fullname):
            return None
        finders = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next(filter(None, (each.find_spec(fullname, path, target) for each in finders)), None)
        if spec is not None and self.concerns(spec):
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                loader.exec_module = execute
                self.execute(fullname, execute, module)

            loader.exec_module = exec_module
        return spec
