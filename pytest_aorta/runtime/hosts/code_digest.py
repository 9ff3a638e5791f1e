"""Whether two hosts would run the same code: digests of source files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path


def code_identity(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of every file, by its name; those that do not exist are left out.

    A name is what :func:`package_files` gives, or an absolute path.
    """
    digests = {}
    for name, path in files.items():
        try:
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            continue
    return digests


def package_files(package: str) -> dict[str, Path]:
    """All ``.py`` files of an installed top-level package, by names such as ``pytest_aorta/plan.py``.

    Raises:
        ModuleNotFoundError: it is not installed, or it is a single module.
    """
    folder = _folder(package)
    if folder is None:
        raise ModuleNotFoundError(f"No package named {package!r}", name=package)
    return {f"{package}/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*.py"))}


def locate(names: Iterable[str]) -> dict[str, Path]:
    """Where files of these names are on this host; those of packages that are not installed here are left out."""
    found = {}
    folders: dict[str, Path | None] = {}
    for name in names:
        package, _, rest = name.partition("/")
        if not package:
            found[name] = Path(name)
            continue
        if package not in folders:
            folders[package] = _folder(package)
        folder = folders[package]
        if folder is not None:
            found[name] = folder / rest
    return found


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """A message about the first file, by name, that is not the same on both sides; ``None`` when all are."""
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            return f"{name} is missing there"
        if name not in ours:
            return f"{name} is there, but missing here"
        if ours[name] != theirs[name]:
            return f"{name} differs from the one here"
    return None


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
