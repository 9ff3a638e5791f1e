"""The options that a workload declares: names, types, defaults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Keys of a JSON Schema, and what they say of a value.
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}

_WORDS = {"integer": "whole number", "boolean": "true or false", "string": "text", "null": "null", "object": "mapping"}


@dataclass(frozen=True)
class DeclaredOption:
    """One option; ``takes`` and ``help`` are for the user; ``default`` is JSON, ``None`` where a value is required."""

    name: str
    takes: str
    default: str | None
    help: str


def declared_options(cls: type[Any]) -> list[DeclaredOption]:
    """Those of a nested pydantic ``Config``, else of ``default_config``; none where neither is there."""
    model = getattr(cls, "Config", None)
    if isinstance(model, type) and hasattr(model, "model_validate"):
        return _of_model(model)
    declared = getattr(cls, "default_config", None)
    found = declared if isinstance(declared, Mapping) else {}
    return [DeclaredOption(str(key), _type_name(value), _json(value), "") for key, value in found.items()]


def _of_model(model: Any) -> list[DeclaredOption]:
    try:
        schema = model.model_json_schema(by_alias=True)
    except Exception:  # a type that JSON does not have, such as torch.dtype
        schema = {}
    properties = schema.get("properties", {})
    found = []
    for name, field in model.model_fields.items():
        shown = properties.get(field.alias or name)
        takes = _takes(shown, schema.get("$defs", {})) if shown else inspect.formatannotation(field.annotation)
        default = None if field.is_required() else _json(field.get_default(call_default_factory=True))
        found.append(DeclaredOption(field.alias or name, takes, default, field.description or ""))
    return found


def _takes(schema: Mapping[str, Any], shared: Mapping[str, Any], depth: int = 0) -> str:
    """What a JSON Schema accepts, for the user: ``whole number of at least 1``; what is nested deeply is left out."""
    if depth > 4:
        return "..."
    if "$ref" in schema:
        return _takes(shared.get(schema["$ref"].rpartition("/")[2], {}), shared, depth + 1)
    if "const" in schema or "enum" in schema:
        return f"one of {', '.join(map(str, schema.get('enum', [schema.get('const')])))}"
    if "anyOf" in schema:
        return ", or ".join(_takes(each, shared, depth + 1) for each in schema["anyOf"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of ({_takes(schema.get('items', {}), shared, depth + 1)})"
    bounds = [f"{words} {schema[key]}" for key, words in _BOUNDS.items() if key in schema]
    return " ".join([_WORDS.get(kind, kind), " and ".join(bounds)]).rstrip()


def _type_name(value: Any) -> str:
    return "anything" if value is None else type(value).__name__


def _json(value: Any) -> str:
    from pytest_aorta.trials.conversion import canonical_json, to_plain

    return canonical_json(to_plain(value))
