"""What is wrong with the tables of a file, in the words of TOML: where, what, and what would be valid."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pytest_aorta.workflow.lines import Location
from pytest_aorta.workflow.recipe import ActionTable, CommandTable, MatrixTable, RecipeTable

#: Characters of a bad value that are shown.
_SHOWN = 100

#: Keys that are listed where a table is missing altogether.
_LISTED = 10

#: By the name of a kind of error of pydantic's, with the context that it gives.
_EXPECTED = {
    "string_type": "a string",
    "path_type": "a string with a path",
    "tuple_type": "an array",
    "mapping_type": "a table",
    "dict_type": "a table",
    "model_type": "a table",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "time_delta_type": 'a duration such as "02:30:00"',
    "time_delta_parsing": 'a duration such as "02:30:00"',
    "finite_number": "a finite number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than_equal": "a number of at most {le:g}",
    "literal_error": "{expected}",
    "invalid_key": "a table whose keys are strings",
    "too_short": "an array that is not empty",
    "string_pattern_mismatch": "a string that matches {pattern}",
}


def describe(error: ValidationError, content: Any, root: Any = RecipeTable) -> tuple[Location, str]:
    """The first error in a recipe, or in another file of tables: where it is, and a sentence.

    Args:
        error: of ``root``.
        content: of the file.
        root: the type of the whole file.
    """
    found = error.errors(include_url=False)
    if found[0]["type"] == "missing":  # what is there in its place says more
        found.sort(key=lambda each: each["type"] != "extra_forbidden")
    kind, value = found[0]["type"], found[0]["input"]
    if kind in ("extra_forbidden", "missing") and isinstance(found[0]["loc"][-1], str):
        table, key = found[0]["loc"][:-1], str(found[0]["loc"][-1])
        own, keys = _known(table, content, root)
        valid = _keys(keys, _at(content, own))
        sentence = _unknown_key(key, valid) if kind == "extra_forbidden" else f"key {key!r} is missing"
        return (*own, key), f"{_beginning(own, content)}{sentence}"
    location, annotation = _known(found[0]["loc"], content, root)
    if found[0]["loc"][-1:] == ("[key]",):
        return location, f"{_beginning(location, content)}key {value!r}: expected a string"
    beginning, path = _names(location, content)
    if not location:  # all of the file
        path = "the file"
    shown = _shown(location, value)
    if kind == "value_error":
        shown = "" if isinstance(value, dict) else shown
        return location, f"{beginning}{path}{shown}: {found[0]['msg'].removeprefix('Value error, ')}"
    expected: dict[str, None] = {}  # several, where several types are valid
    for each in found:
        if each["loc"] == found[0]["loc"] or _known(each["loc"], content, root)[0] == location:
            expected.setdefault(_alternative(each, len(location), annotation))
    return location, f"{beginning}{path}{shown}: expected {' or '.join(expected)}"


def _unknown_key(key: str, valid: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(key.casefold(), valid, 1)
    question = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"unknown key {key!r}; {question}valid: {', '.join(valid)}"


def _alternative(error: Mapping[str, Any], depth: int, annotation: Any) -> str:
    """What an error at a depth of its location, or in one of the types that are valid there, says would be valid."""
    kind, within = error["type"], error["loc"][depth + 1 :]
    if within and isinstance(within[0], str):
        tables = [each for each in _tables(annotation) if within[0] in _fields(each) or kind == "extra_forbidden"]
        return f"a table with {', '.join(_keys(tables[0], None))}" if tables else "a table of tables"
    text = _expected(kind, error.get("ctx", {}), error["msg"], annotation)
    return f"an array in which each is {text}" if within and kind != "missing" else text


def _expected(kind: str, context: Mapping[str, Any], message: str, annotation: Any) -> str:
    tables = list(_tables(annotation))
    if kind == "tuple_type" and tables:
        return "an array of tables, with a header in [[ ]]"
    if kind in ("missing", "too_long"):
        array = next(each for each in _alternatives(annotation) if get_origin(each) is tuple)
        return f"{len(get_args(array))} elements"
    if kind == "model_type" and len(keys := _keys(annotation, None)) <= _LISTED:
        return f"a table with {', '.join(keys)}"
    return _EXPECTED[kind].format(**context) if kind in _EXPECTED else f"something else ({message})"


def _names(location: Location, content: Mapping[str, Any]) -> tuple[str, str]:
    """The action that a location is in, and the keys from there."""
    own = location[2:] if _is_in_action(location) else location
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in own).lstrip(".")
    if not _is_in_action(location):
        return "", path
    action = _at(content, location[:2])
    name = action.get("name") if isinstance(action, Mapping) else None
    number = int(location[1]) + 1
    shown = f"action {name!r}" if isinstance(name, str) else f"action number {number}"
    return shown if not path else f"{shown}: ", path


def _beginning(table: Location, content: Mapping[str, Any]) -> str:
    beginning, path = _names(table, content)
    return f"{beginning}{path}: " if beginning or path else ""


def _is_in_action(location: Location) -> bool:
    return len(location) > 1 and location[0] == "action" and isinstance(location[1], int)


def _at(content: Any, location: Location) -> Any:
    """What a recipe has at a location."""
    for step in location:
        content = content[step]
    return content


def _known(location: Sequence[str | int], content: Any, root: Any) -> tuple[Location, Any]:
    """The beginning of a location of pydantic's that is one of the file, and the type of what is there.

    What follows is the name of a type, where several are valid.
    """
    annotation: Any = root
    for position, step in enumerate(location):
        inner = next((one for each in _alternatives(annotation) for one in _within(each, step)), None)
        try:
            content = content[step]
        except (LookupError, TypeError):
            inner = None
        if inner is None:
            return tuple(location[:position]), annotation
        annotation = inner
    return tuple(location), annotation


def _within(annotation: Any, step: str | int) -> Iterator[Any]:
    """The type of what a step into a value of this type leads to; nothing where that is no step."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from (field.annotation for name, field in _fields(annotation).items() if name == step)
    elif isinstance(step, int) and origin is tuple:
        yield inner[0] if Ellipsis in inner else inner[step]
    elif isinstance(step, str) and origin is not None and issubclass(origin, Mapping):
        yield inner[1]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """Those that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables(inner)


def _fields(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """Those of a table by their keys."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _keys(annotation: Any, content: Any) -> list[str]:
    """The keys of a table; of an action only those that act with what it is."""
    table = next(_tables(annotation))
    useless: set[str] = set()
    if table is ActionTable and isinstance(content, Mapping) and ("command" in content) != ("workload" in content):
        useless = {*(MatrixTable if "command" in content else CommandTable).model_fields}
    return sorted(_fields(table).keys() - useless)


def _shown(location: Location, value: object) -> str:
    """A bad value; of what may hold a secret, its type."""
    is_secret = not {"extra_env", "config", "workload_config", "env"}.isdisjoint(location)
    if is_secret or isinstance(value, dict) or (isinstance(value, list) and _has_table(value)):
        return f" is {_toml_type(value)}"
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    if value is None:
        return " = null"
    text = repr(value) if isinstance(value, (str, list)) else str(value)
    return f" = {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}"


def _has_table(values: list[Any]) -> bool:
    return any(isinstance(each, dict) or (isinstance(each, list) and _has_table(each)) for each in values)


def _toml_type(value: object) -> str:
    names = {str: "a string", list: "an array", dict: "a table", bool: "a boolean", int: "an integer", float: "a float"}
    names[type(None)] = "null"
    return names.get(type(value), "a date or a time")
