"""A workload's options: defaults and overrides to what its constructor receives."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_aorta.settings import RequestError
from pytest_aorta.trials.aorta import RESERVED
from pytest_aorta.trials.conversion import to_plain


class ConfigError(RequestError):
    """An option that the workload does not have, or a value that does not fit."""


@dataclass(frozen=True)
class Config:
    """``value`` goes to the constructor, ``plain`` into the record; ``warnings`` name options without effect."""

    value: Any
    plain: dict[str, Any]
    warnings: tuple[str, ...] = ()


def resolve_config(cls: type[Any], overrides: Mapping[str, Any], steps: int | None) -> Config:
    """Merge defaults, overrides and ``steps``.

    With a nested pydantic ``Config``, values are validated (text is read as the field's type) and unknown keys refused.
    Without one, the class's ``default_config`` is overlaid, and text that is JSON is read as JSON; an option that is
    not in there is a warning.

    Raises:
        ConfigError: naming the option, its value, and what would be valid.
    """
    given = dict(overrides)
    if steps is not None:
        given["steps"] = steps
    reserved = [key for key in given if str(key).startswith(RESERVED)]
    if reserved:
        raise ConfigError(
            f"{cls.__name__}: the option {reserved[0]!r} cannot be given: the runner adds what starts with {RESERVED}"
        )
    model = getattr(cls, "Config", None)
    if isinstance(model, type) and hasattr(model, "model_validate"):
        return _validated(cls, model, given)
    declared = getattr(cls, "default_config", None)
    if declared is not None and not isinstance(declared, Mapping):
        raise ConfigError(f"{cls.__name__}.default_config has to be a dict, and is a {type(declared).__name__}")
    default = dict(declared or {})
    merged = {**default, **{key: _guess(value) for key, value in given.items()}}
    unknown = [] if declared is None else [key for key in given if key not in default]
    return Config(merged, to_plain(merged), tuple(_unknown(cls, key, default) for key in unknown))


def _unknown(cls: type[Any], key: str, known: Collection[str]) -> str:
    return f"{cls.__name__}.default_config has no option {key!r}{_nearest(key, known)}; it may have no effect"


def _nearest(key: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(str(key), map(str, known), 1)
    if nearest:
        return f" (did you mean {nearest[0]!r}?)"
    return f" (known: {', '.join(sorted(map(str, known))) or 'none'})"


def _validated(cls: type[Any], model: Any, given: dict[str, Any]) -> Config:
    from pydantic import ValidationError

    valid = {field.alias or name: field for name, field in model.model_fields.items()}
    unknown = [key for key in given if key not in valid and key not in model.model_fields]
    if unknown and model.model_config.get("extra") != "allow":
        raise ConfigError(
            f"{cls.__name__} has no option {', '.join(map(repr, unknown))}; valid: {', '.join(sorted(valid)) or 'none'}"
        )
    try:
        value = _validate(model, given)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, item['loc'])) or 'config'}={item['input']!r}: {item['msg']}" for item in error.errors()
        ]
        raise ConfigError(f"{cls.__name__}: " + "; ".join(lines)) from error
    try:
        plain = value.model_dump(mode="json")
    except Exception:  # an option that pydantic cannot write, such as a torch.dtype
        plain = dict(value)
    return Config(value, to_plain(plain))


def _validate(model: Any, given: dict[str, Any]) -> Any:
    """As given first; where a text does not fit, as the JSON that it may be (``sizes=[64,128]``)."""
    from pydantic import ValidationError

    try:
        return model.model_validate(given)
    except ValidationError:
        guessed = {key: _guess(value) for key, value in given.items()}
        if guessed == given:
            raise
        try:
            return model.model_validate(guessed)
        except ValidationError:
            pass
        raise


def _guess(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):  # the latter of a text with thousands of brackets
        return {"true": True, "false": False, "none": None}.get(value.lower(), value)
