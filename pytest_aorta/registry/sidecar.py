"""Registry files in JSON, for mitigations and environments that no package brings.

``{"version": 1, "mitigations": {name: {VARIABLE: value}}, "environments": {name: {field: value}}}``
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_aorta.registry.errors import RegistryCollisionError, RegistryError
from pytest_aorta.registry.payloads import environment_from, mitigation_from

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_aorta.registry.types import Environment, Mitigation

VERSION: Final = 1

_KEYS: Final = ("version", "mitigations", "environments")

T = TypeVar("T")


@dataclass(frozen=True)
class Sidecar:
    """The checked content of one file."""

    path: Path
    mitigations: tuple[Mitigation, ...]
    environments: tuple[Environment, ...]

    @property
    def source_package(self) -> str:
        """How trial files name the file: without its folder, which differs between hosts."""
        return _source_package(self.path)

    @property
    def source(self) -> str:
        """The file, as messages name it."""
        return f"the registry file {self.path}"


def read_sidecars(paths: Sequence[Path]) -> list[Sidecar]:
    """Read every file; two of the same name are refused, as results could not tell them apart.

    Raises:
        RegistryError: a file that cannot be read or used; the message has the file and, for bad JSON, the line.
        RegistryCollisionError: two files of one name, or a key twice in one JSON object.
    """
    by_name: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.name in by_name:
            raise RegistryCollisionError(
                f"two registry files are called {path.name!r}: {by_name[path.name]} and {path}; "
                "results name a file without its folder, so the names must differ"
            )
        by_name[path.name] = path
    return [read_sidecar(path) for path in by_name.values()]


def read_sidecar(path: Path) -> Sidecar:
    """Read and check one file; see :func:`read_sidecars` for the errors."""
    content = _parse(path)
    for key in content:
        if key not in _KEYS:
            raise RegistryError(f"{path}: unknown key {key!r}; valid keys: {', '.join(_KEYS)}")
    if "version" not in content:
        raise RegistryError(f"{path}: the key 'version' is missing; this release reads \"version\": {VERSION}")
    version = content["version"]
    if type(version) is not int or version != VERSION:  # not isinstance: true is an int in Python
        raise RegistryError(f'{path}: version {version!r} is not known; this release reads "version": {VERSION}')
    source_package = _source_package(path)
    base = path.absolute().parent
    return Sidecar(
        path,
        _section(
            content,
            "mitigations",
            path,
            lambda name, payload, where: mitigation_from(
                payload, name=name, source_package=source_package, where=where
            ),
        ),
        _section(
            content,
            "environments",
            path,
            lambda name, payload, where: environment_from(
                payload, name=name, source_package=source_package, where=where, base=base
            ),
        ),
    )


def _source_package(path: Path) -> str:
    return f"sidecar:{path.name}"


def _section(content: dict[str, object], key: str, path: Path, build: Callable[[str, object, str], T]) -> tuple[T, ...]:
    section = content.get(key, {})
    if not isinstance(section, dict):
        raise RegistryError(f"{path}: {key}: must be an object of names, not {type(section).__name__}")
    return tuple(build(name, payload, f"{path}: {key}.{name}") for name, payload in section.items())


def _parse(path: Path) -> dict[str, object]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RegistryError(f"cannot read the registry file {path}: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RegistryError(f"{path}:{line}: not UTF-8: {error.reason}") from None

    def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # The json module lets the last one win, which here would drop a mitigation without a word.
        unique: dict[str, object] = {}
        for key, value in pairs:
            if key in unique:
                raise RegistryCollisionError(f"{path}: the key {key!r} is there twice in one object")
            unique[key] = value
        return unique

    try:
        content = json.loads(text, object_pairs_hook=refuse_duplicates)
    except json.JSONDecodeError as error:
        raise RegistryError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise RegistryError(f"{path}: not usable: nested too deeply") from None
    if not isinstance(content, dict):
        raise RegistryError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content
