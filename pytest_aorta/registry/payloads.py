"""Untrusted data -> mitigations and environments.

Checked by hand and not by pydantic: the rules are few, and collecting tests must not import pydantic.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, get_args

from pytest_aorta.registry.types import (
    Engine,
    Environment,
    Mitigation,
    RegistryCollisionError,
    RegistryError,
    one_line_of,
)
from pytest_aorta.settings import OPTION

ENVIRONMENT_FIELDS: Final = ("docker", "venv", "rocm", "launcher", "env", "enter", "engine_options")

ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def mitigation_from(payload: object, *, name: str, source_package: str, where: str) -> Mitigation:
    """Of variables, and options of the workload as ``config.NAME``."""
    options = {}
    if isinstance(payload, Mapping):
        options = {key: value for key, value in payload.items() if isinstance(key, str) and _is_option(key)}
        payload = {key: value for key, value in payload.items() if key not in options}
    own = {key.removeprefix(OPTION): value for key, value in options.items()}
    return Mitigation(name, _variables(payload, where), source_package, options=own)


def _is_option(text: str) -> bool:
    return text.startswith(OPTION) and text != OPTION and text.isprintable()


def option_value(text: str) -> Any:
    """The value of ``config.NAME=TEXT``; a text that is JSON is read as such."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def variable_from(text: str) -> Mitigation | None:
    """The mitigation that ``NAME=VALUE`` is, called so; ``None`` where it is none.

    ``config.NAME=VALUE`` is an option of the workload.
    """
    name, _, value = text.partition("=")
    if _is_option(name) and text.isprintable():
        return Mitigation(text, {}, "the command line", options={name.removeprefix(OPTION): option_value(value)})
    is_one = _VARIABLE.match(name) and _fits_environ(value) and text.isprintable()
    return Mitigation(text, {name: value}, "the command line") if is_one else None


def environment_from(
    payload: object, *, name: str, source_package: str, where: str, base: Path | None = None
) -> Environment:
    if not isinstance(payload, Mapping):
        raise RegistryError(f"{where}: must be a mapping of fields, not {_kind(payload)}")
    for key in payload:
        if key not in ENVIRONMENT_FIELDS:
            raise RegistryError(f"{where}: unknown field {key!r}; valid fields: {', '.join(ENVIRONMENT_FIELDS)}")
    venv = _text(payload.get("venv"), f"{where}.venv")
    if venv is not None:
        venv = os.path.expanduser(venv)
        if base is not None:
            venv = str(base / venv)
    docker = _text(payload.get("docker"), f"{where}.docker")
    enter = _engine(payload.get("enter"), f"{where}.enter")
    engine_options = _words(payload.get("engine_options"), f"{where}.engine_options")
    if enter and docker is None:
        raise RegistryError(f"{where}.enter: there is nothing to enter; name an image in the field 'docker'")
    if engine_options and not enter:
        raise RegistryError(f'{where}.engine_options: no engine is started; add "enter": true')
    return Environment(
        name,
        docker=docker,
        venv=venv,
        rocm=_text(payload.get("rocm"), f"{where}.rocm"),
        launcher=_words(payload.get("launcher"), f"{where}.launcher"),
        env=_variables(payload.get("env", {}), f"{where}.env"),
        enter=enter,
        engine_options=engine_options,
        source_package=source_package,
    )


def _engine(value: object, where: str) -> bool | Engine:
    if value is None or isinstance(value, bool):
        return bool(value)
    for engine in ENGINES:
        if value == engine:
            return engine
    shown = repr(value) if isinstance(value, str) else _kind(value)
    raise RegistryError(f"{where}: must be true, false or one of {', '.join(ENGINES)}, not {shown}")


def _variables(payload: object, where: str) -> dict[str, str]:
    if not isinstance(payload, Mapping):
        raise RegistryError(f"{where}: must be a mapping of environment variables, not {_kind(payload)}")
    variables: dict[str, str] = {}
    for key, value in payload.items():
        if not isinstance(key, str):
            raise RegistryError(f"{where}: the name of a variable must be a string, not {_kind(key)}")
        if not _VARIABLE.match(key):
            # "NAME=value" as the name is a likely slip: what follows the "=" is a value.
            shown = key if "=" not in key else key.partition("=")[0] + "=..."
            raise RegistryError(
                f"{where}: {shown!r} is not the name of an environment variable "
                "(ASCII letters, digits and '_', not a digit first)"
            )
        if not isinstance(value, str):
            raise RegistryError(f"{where}.{key}: the value must be a string, not {_kind(value)}")
        if not _fits_environ(value):
            raise RegistryError(f"{where}.{key}: the value holds a character that no environment variable can hold")
        variables[key] = value
    return variables


def _text(value: object, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise RegistryError(f"{where}: must be a string, not {_kind(value)}")
    if not value.strip() or not _fits_environ(value):
        raise RegistryError(f"{where}: {value!r} is empty or holds a character that no command line can hold")
    return value


def _words(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise RegistryError(f"{where}: {value!r} cannot be split into words: {error}") from error
    elif isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        words = list(value)
    else:
        raise RegistryError(f"{where}: must be a string or a list of strings, not {_kind(value)}")
    if not all(map(_fits_environ, words)):
        raise RegistryError(f"{where}: {words!r} hold a character that no command line can hold")
    return tuple(words)


def _fits_environ(value: str) -> bool:
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)) and not all(isinstance(item, str) for item in value):
        return f"a {type(value).__name__} with something else in it"
    return f"{type(value).__name__}"


# Registry files in JSON, for mitigations and environments that no package brings.
#
# ``{"version": 1, "mitigations": {name: {VARIABLE: value}}, "environments": {name: {field: value}}}``

VERSION: Final = 1

_KEYS: Final = ("version", "mitigations", "environments")


def read_sidecars(paths: Sequence[Path]) -> list[tuple[Path, Mitigation | Environment]]:
    by_name: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.name in by_name:
            raise RegistryCollisionError(
                f"two registry files are called {path.name!r}: {by_name[path.name]} and {path}; "
                "results name a file without its folder, so the names must differ"
            )
        by_name[path.name] = path
    return [(path, each) for path in by_name.values() for each in _read_sidecar(path)]


def _read_sidecar(path: Path) -> Iterator[Mitigation | Environment]:
    content = _parse(path)
    for key in content:
        if key not in _KEYS:
            raise RegistryError(f"{path}: unknown key {key!r}; valid keys: {', '.join(_KEYS)}")
    if "version" not in content:
        raise RegistryError(f"{path}: the key 'version' is missing; this release reads \"version\": {VERSION}")
    version = content["version"]
    if type(version) is not int or version != VERSION:  # not isinstance: true is an int in Python
        raise RegistryError(f'{path}: version {version!r} is not known; this release reads "version": {VERSION}')
    source = f"sidecar:{path.name}"  # without its folder, which differs between hosts
    for key in ("mitigations", "environments"):
        section = content.get(key, {})
        if not isinstance(section, dict):
            raise RegistryError(f"{path}: {key}: must be an object of names, not {type(section).__name__}")
        for name, payload in section.items():
            where = f"{path}: {key}.{name}"
            if key == "mitigations":
                yield mitigation_from(payload, name=name, source_package=source, where=where)
            else:
                base = path.absolute().parent
                yield environment_from(payload, name=name, source_package=source, where=where, base=base)


def _parse(path: Path) -> dict[str, object]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RegistryError(f"cannot read the registry file {path}: {error.strerror or error}") from error

    def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # The json module lets the last one win, which here would drop a mitigation without a word.
        unique: dict[str, object] = {}
        for key, value in pairs:
            if key in unique:
                raise RegistryCollisionError(f"{path}: the key {key!r} is there twice in one object")
            unique[key] = value
        return unique

    try:
        content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=refuse_duplicates)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RegistryError(f"{path}:{line}: not UTF-8: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise RegistryError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise RegistryError(f"{path}: not usable: nested too deeply") from None
    if not isinstance(content, dict):
        raise RegistryError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?\Z")


@dataclass(frozen=True)
class PluginEntry:
    """One line of a distribution's ``entry_points.txt``, in the group ``aorta.<kind>``."""

    kind: str
    name: str
    value: str
    distribution: str
    _entry_point: metadata.EntryPoint = field(repr=False, compare=False)

    @property
    def source(self) -> str:
        """The distribution and the value, as messages name them."""
        return f"distribution {self.distribution!r} ({self.value})"

    @property
    def _described(self) -> str:
        return f"entry point {self.name!r} of group 'aorta.{self.kind}' in {self.source}"

    def target(self) -> str:
        """``module:attribute``; ``RegistryError`` when the value is not of that form. Imports nothing."""
        match = _VALUE.match(self.value)
        if match is None or not match["attribute"]:
            raise RegistryError(f"{self._described} does not have the form module:attribute")
        return f"{match['module']}:{match['attribute']}"

    def payload(self) -> object:
        """Import what the entry points to; raises ``RegistryError`` whatever the import raises."""
        self.target()
        try:
            payload: object = self._entry_point.load()
        except KeyboardInterrupt:
            raise
        # Not only Exception: a module that calls sys.exit() or pytest.skip() while it is imported must not end the run.
        except BaseException as error:
            raise RegistryError(f"{self._described} cannot be loaded: {one_line_of(error)}") from error
        return payload


def plugin_entries(kinds: Iterable[str]) -> Iterator[PluginEntry]:
    """The entries of all kinds, in the order of ``sys.path``; a distribution that is found twice there counts once.

    ``importlib.metadata`` drops shadowed distributions itself, but compares their names as spelled in the names of
    their folders: Python 3.10 takes Foo.egg-info (an editable install) and foo-1.0.dist-info for two.
    """
    everything = metadata.entry_points()  # once: each call reads the metadata of everything that is installed
    for kind in kinds:
        first: dict[str, object] = {}
        seen: set[tuple[str, str, str]] = set()
        for entry in everything.select(group=f"aorta.{kind}"):
            name = _distribution_name(entry)
            key = re.sub(r"[-_.]+", "-", name).lower()
            identity = (key, entry.name, entry.value)
            if first.setdefault(key, entry.dist) is entry.dist and identity not in seen:
                seen.add(identity)
                yield PluginEntry(kind, entry.name, entry.value, name, entry)


def _distribution_name(entry_point: metadata.EntryPoint) -> str:
    with suppress(Exception):  # a folder without a METADATA file: what happens depends on the Python version
        if entry_point.dist is not None and "Name" in (fields := entry_point.dist.metadata):
            return fields["Name"]
    return f"(without metadata: {entry_point.value})"
