"""What is wrong with a file of tables, TOML or YAML, in one sentence: where, what, and what would be valid."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

#: Names and indexes from the root, as pydantic has them: ``("action", 0, "group", "maximum_size")``.
Location = tuple[str | int, ...]

_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_LINE = re.compile(rf"\s*(?P<header>\[\[?)?\s*(?P<names>{_NAME}(?:\s*\.\s*{_NAME})*)\s*[\]=]")

#: Characters of a bad value that are shown.
_SHOWN = 100

#: Tables whose values may be secrets.
_SECRET = {"extra_env", "config", "workload_config", "env"}

#: Python's words in messages of pydantic, and TOML's.
_WORDS = [
    (r"a valid (dictionary or instance of \w+|dictionary|mapping)", "a table"),
    (r"a valid (tuple|list)", "an array"),
    (r"a valid integer\b.*", "a whole number"),
    (r"a valid (string|number)\b.*", r"a \1"),
    (r"a valid boolean\b.*", "true or false"),
    (r"a valid timedelta\b.*", 'a duration such as "02:30:00"'),
    (r"greater than or equal to", "a number of at least"),
    (r"greater than", "a number above"),
    (r"(Tuple|List) should have at least 1 .*", "an array that is not empty"),
    (r"(Tuple|List) should have at most (\d+) .*", r"an array of at most \2 elements"),
    (r"String should match pattern '(.*)'", r"a string that matches \1"),
    (r"Field required", "more elements"),
]


def key_lines(text: str) -> Mapping[Location, int]:
    """The lines of keys and tables in a valid TOML text, counted from 1; tomllib keeps no positions.

    Keys within inline tables and arrays are not listed.
    """
    found: dict[Location, int] = {(): 1}
    counts: dict[Location, int] = {}  # of the elements of arrays of tables
    table: Location = ()
    quote = None  # of the long string that a line is in
    for number, line in enumerate(text.splitlines(), 1):
        if quote is None and (match := _LINE.match(line)):
            names = [name.strip("\"'") for name in re.findall(_NAME, match["names"])]
            if match["header"]:
                table = ()
                for name in names:
                    table = (*table, name)
                    if match["header"] == "[[" and len(names) == len([each for each in table if type(each) is str]):
                        counts[table] = counts.get(table, -1) + 1
                    if table in counts:
                        table = (*table, counts[table])
                found.setdefault(table, number)
            else:
                for end in range(1, len(names) + 1):
                    found.setdefault((*table, *names[:end]), number)
        for delimiter in re.findall(r'"""|' + "'''", line):
            quote = delimiter if quote is None else None if quote == delimiter else quote
    return found


def line_of(lines: Mapping[Location, int], location: Sequence[str | int]) -> int:
    """The line of a location, or of the nearest one around it that stands in the text."""
    return next(lines[tuple(location[:end])] for end in range(len(location), -1, -1) if tuple(location[:end]) in lines)


def describe(error: ValidationError, content: Any, root: Any) -> tuple[Location, str]:
    """The first error in the content of a file whose type is ``root``: where it is, and a sentence."""
    found = error.errors(include_url=False)
    if found[0]["type"] == "missing":  # an unknown key in its place says more
        found.sort(key=lambda each: each["type"] != "extra_forbidden")
    kind, value, steps = found[0]["type"], found[0]["input"], found[0]["loc"]
    if kind in ("extra_forbidden", "missing") and isinstance(steps[-1], str):
        location, annotation = _known(steps[:-1], content, root)
        table, key = content, str(steps[-1])
        for step in location:
            table = table[step]
        valid = _keys(annotation, table)
        sentence = f"key {key!r} is missing"
        if kind == "extra_forbidden":
            nearest = difflib.get_close_matches(key.casefold(), valid, 1)
            question = f"did you mean {nearest[0]!r}? " if nearest else ""
            sentence = f"unknown key {key!r}; {question}valid: {', '.join(valid)}"
        place = _place(location, content)
        return (*location, key), f"{place}: {sentence}" if place else sentence
    location, annotation = _known(steps, content, root)
    place = _place(location, content) or "the file"
    if steps[-1:] == ("[key]",):
        return location, f"{place}: key {value!r}: expected a string"
    if kind == "value_error":
        shown = "" if isinstance(value, dict) else _shown(location, value)
        return location, f"{place}{shown}: {found[0]['msg'].removeprefix('Value error, ')}"
    here = [each for each in found if _known(each["loc"], content, root)[0] == location]
    expected = " or ".join(dict.fromkeys(_words(each["msg"]) for each in here))
    keys = _keys(annotation, None)
    with_keys = f" with {', '.join(keys)}" if kind == "model_type" and len(keys) <= 10 else ""
    return location, f"{place}{_shown(location, value)}: expected {expected}{with_keys}"


def _words(message: str) -> str:
    message = message.removeprefix("Input should be ")
    for python, toml in _WORDS:
        message = re.sub(python, toml, message)
    return message


def _place(location: Location, content: Any) -> str:
    beginning = ""
    if len(location) > 1 and location[0] == "action" and isinstance(location[1], int):
        action = content["action"][location[1]]
        name = action.get("name") if isinstance(action, Mapping) else None
        beginning = f"action {name!r}" if isinstance(name, str) else f"action number {location[1] + 1}"
        location = location[2:]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).lstrip(".")
    return ": ".join(filter(None, (beginning, path)))


def _known(location: Sequence[str | int], content: Any, root: Any) -> tuple[Location, Any]:
    """The beginning of a location of pydantic's that is one of the file, and the type of what is there.

    The names of types follow, where several are valid.
    """
    annotation = root
    for position, step in enumerate(location):
        inner = next(iter(_within(annotation, step)), None)
        try:
            content = content[step]
        except (LookupError, TypeError):
            inner = None
        if inner is None:
            return tuple(location[:position]), annotation
        annotation = inner
    return tuple(location), annotation


def _within(annotation: Any, step: str | int) -> Iterator[Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for each in inner:
            yield from _within(each, step)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from (each.annotation for name, each in annotation.model_fields.items() if (each.alias or name) == step)
    elif isinstance(step, int) and origin is tuple:
        yield inner[0] if Ellipsis in inner else inner[step]
    elif isinstance(step, str) and origin is not None and issubclass(origin, Mapping):
        yield inner[1]


def _keys(annotation: Any, content: Any) -> list[str]:
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        if not (inner := [each for each in get_args(annotation) if each is not type(None)]):
            return []
        annotation = inner[-1]
    useless = annotation.useless_keys(content) if hasattr(annotation, "useless_keys") else set()
    return sorted({field.alias or name for name, field in annotation.model_fields.items()} - useless)


def _shown(location: Location, value: object) -> str:
    if not _SECRET.isdisjoint(location) or "{" in str(value):
        return f" is {_toml_type(value)}"
    text = repr(value) if isinstance(value, (str, list)) else str(value)
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    return f" = {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}"


def _toml_type(value: object) -> str:
    names = {str: "a string", list: "an array", dict: "a table", bool: "a boolean", int: "an integer", float: "a float"}
    return names.get(type(value), "a date or a time" if value is not None else "null")
