"""Untrusted data -> mitigations and environments.

Checked by hand and not by pydantic: the rules are few, and collecting tests must not import pydantic.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, get_args

from pytest_aorta.registry.errors import RegistryError
from pytest_aorta.registry.types import Engine, Environment, Mitigation

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT_FIELDS: Final = ("docker", "venv", "rocm", "launcher", "env", "enter", "engine_options")

ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def mitigation_from(payload: object, *, name: str, source_package: str, where: str) -> Mitigation:
    """A mitigation from a mapping of variables; ``where`` opens the message of a ``RegistryError``."""
    return Mitigation(name, _variables(payload, where), source_package)


def environment_from(
    payload: object, *, name: str, source_package: str, where: str, base: Path | None = None
) -> Environment:
    """An environment from a mapping of its fields; a relative ``venv`` is taken from ``base`` when that is given."""
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
    """Whether to enter, or by what."""
    if value is None or isinstance(value, bool):
        return bool(value)
    for engine in ENGINES:
        if value == engine:
            return engine
    shown = repr(value) if isinstance(value, str) else _kind(value)
    raise RegistryError(f"{where}: must be true, false or one of {', '.join(ENGINES)}, not {shown}")


def _variables(payload: object, where: str) -> dict[str, str]:
    """A checked copy. No message shows a value: it may be a secret."""
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
    """Whether the system can take the string: no NUL, nothing (a lone surrogate) that it cannot encode."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _kind(value: object) -> str:
    """The type, for messages; never the value."""
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)) and not all(isinstance(item, str) for item in value):
        return f"a {type(value).__name__} with something else in it"
    return f"{type(value).__name__}"
