"""What is wrong with a file of tables, TOML or YAML, in one sentence: where, what, and what would be valid."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

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
    return next(lines[tuple(location[:end])] for end in range(len(location), -1, -1) if tuple(location[:end]) in lines)


def check_table(table: type[BaseModel], content: Any, useless: Collection[str] = ()) -> None:
    """Raise what pydantic reports where ``content`` is no such table, or has a key that it has not.

    ``useless``: keys that are known, but not worth naming.
    """
    keys = sorted({field.alias or name for name, field in table.model_fields.items()})
    if not isinstance(content, Mapping):
        with_keys = f" with {', '.join(keys)}" if len(keys) <= 10 else ""
        raise PydanticCustomError("no_table", "{what}", {"what": f"a table{with_keys}"})
    for key in content:
        if key not in keys:
            valid = [each for each in keys if each not in useless]
            nearest = difflib.get_close_matches(str(key).casefold(), valid, 1)
            question = f"did you mean {nearest[0]!r}? " if nearest else ""
            sentence = f"unknown key {key!r}; {question}valid: {', '.join(valid)}"
            raise PydanticCustomError("unknown_key", "{sentence}", {"key": key, "sentence": sentence})


def describe(error: ValidationError, content: Any) -> tuple[Location, str]:
    """The first error in the content of a file: where it is, and a sentence."""
    errors = error.errors(include_url=False)
    found, steps = errors[0], errors[0]["loc"]
    is_key = steps[-1:] == ("[key]",)
    location = _known(steps[:-2] if is_key else steps, content)
    place = _place(location, content)
    if found["type"] == "unknown_key":
        return (*location, found["ctx"]["key"]), f"{place}: {found['msg']}" if place else found["msg"]
    if found["type"] == "missing" and isinstance(steps[-1], str):
        sentence = f"key {steps[-1]!r} is missing"
        return location, f"{place}: {sentence}" if place else sentence
    place, value = place or "the file", found["input"]
    if is_key:
        return location, f"{place}: key {value!r}: expected a string"
    if found["type"] == "value_error":
        shown = "" if isinstance(value, dict) else _shown(location, value)
        return location, f"{place}{shown}: {found['msg'].removeprefix('Value error, ')}"
    expected = dict.fromkeys(_words(each["msg"]) for each in errors if _known(each["loc"], content) == location)
    return location, f"{place}{_shown(location, value)}: expected {' or '.join(expected)}"


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


def _known(location: Sequence[str | int], content: Any) -> Location:
    for position, step in enumerate(location):
        try:
            content = content[step]
        except (LookupError, TypeError):
            return tuple(location[:position])
    return tuple(location)


def _shown(location: Location, value: object) -> str:
    if not _SECRET.isdisjoint(location) or "{" in str(value):
        names = {str: "a string", list: "an array", dict: "a table", bool: "a boolean", int: "an integer"}
        others = {float: "a float", type(None): "null"}
        return f" is {(names | others).get(type(value), 'a date or a time')}"
    text = repr(value) if isinstance(value, (str, list)) else str(value)
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    return f" = {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}"
