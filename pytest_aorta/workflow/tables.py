"""Reading of TOML and YAML into checked tables, with errors that name file, line and valid values."""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.finding import FILES_OF_ROW, RecipeError, UnknownKey

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

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
    lines: dict[Location, int] = {(): 1}
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
                lines.setdefault(table, number)
            else:
                for end in range(1, len(names) + 1):
                    lines.setdefault((*table, *names[:end]), number)
        for delimiter in re.findall(r'"""|' + "'''", line):
            quote = delimiter if quote is None else None if quote == delimiter else quote
    return lines


def line_of(lines: Mapping[Location, int], location: Sequence[str | int]) -> int:
    return next(lines[tuple(location[:end])] for end in range(len(location), -1, -1) if tuple(location[:end]) in lines)


def check_table(
    table: type[BaseModel], content: Any, useless: Collection[str] = (), unknown: list[str] | None = None
) -> Any:
    """Return ``content`` without unknown keys; raise a pydantic error if it is no table, or a key is misspelled.

    ``useless``: known keys that messages do not propose. ``unknown``: receives keys unlike any known one; without it,
    they are errors, too.
    """
    keys = sorted({field.alias or name for name, field in table.model_fields.items()})
    if not isinstance(content, Mapping):
        with_keys = f" with {', '.join(keys)}" if len(keys) <= 10 else ""
        raise PydanticCustomError("no_table", "{what}", {"what": f"a table{with_keys}"})
    for key in content:
        if key not in keys:
            valid = [each for each in keys if each not in useless]
            nearest = difflib.get_close_matches(str(key).casefold(), valid, 1)
            if not nearest and unknown is not None:
                unknown.append(str(key))
                content = {name: value for name, value in content.items() if name != key}
                continue
            question = f"did you mean {nearest[0]!r}? " if nearest else ""
            sentence = f"unknown key {key!r}; {question}valid: {', '.join(valid)}"
            raise PydanticCustomError("unknown_key", "{sentence}", {"key": key, "sentence": sentence})
    return content


def describe(error: ValidationError, content: Any) -> tuple[Location, str]:
    """The first error in the content of a file: its location, and a sentence."""
    errors = error.errors(include_url=False)
    first, steps = errors[0], errors[0]["loc"]
    is_key = steps[-1:] == ("[key]",)
    location = _known(steps[:-2] if is_key else steps, content)
    place = _path_text(location, content)
    if first["type"] == "unknown_key":
        return (*location, first["ctx"]["key"]), f"{place}: {first['msg']}" if place else first["msg"]
    if first["type"] == "missing" and isinstance(steps[-1], str):
        sentence = f"key {steps[-1]!r} is missing"
        return location, f"{place}: {sentence}" if place else sentence
    place, value = place or "the file", first["input"]
    if is_key:
        return location, f"{place}: key {value!r}: expected a string"
    if first["type"] == "value_error":
        shown = "" if isinstance(value, dict) else _value_text(location, value)
        return location, f"{place}{shown}: {first['msg'].removeprefix('Value error, ')}"
    expected = dict.fromkeys(_words(each["msg"]) for each in errors if _known(each["loc"], content) == location)
    return location, f"{place}{_value_text(location, value)}: expected {' or '.join(expected)}"


def _words(message: str) -> str:
    message = message.removeprefix("Input should be ")
    for python, toml in _WORDS:
        message = re.sub(python, toml, message)
    return message


def _path_text(location: Location, content: Any) -> str:
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


def _value_text(location: Location, value: object) -> str:
    if not _SECRET.isdisjoint(location) or "{" in str(value):
        names = {str: "a string", list: "an array", dict: "a table", bool: "a boolean", int: "an integer"}
        others = {float: "a float", type(None): "null"}
        return f" is {(names | others).get(type(value), 'a date or a time')}"
    text = repr(value) if isinstance(value, (str, list)) else str(value)
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    return f" = {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}"


class StrictTable(BaseModel):
    """A table of a file. An unknown key is an error, or goes to the context of the validation."""

    # Built when a file is read: most commands read only one.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _is_a_table(cls, content: Any, info: ValidationInfo) -> Any:
        return (
            content if isinstance(content, cls) else check_table(cls, content, cls.useless_keys(content), info.context)
        )

    @classmethod
    def useless_keys(cls, content: Any) -> set[str]:
        return set()


class OneOf(StrictTable):
    """A table with exactly one key set."""

    def model_post_init(self, context: object) -> None:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"set exactly one of {', '.join(type(self).model_fields)}")


def completed(ours: Any, theirs: Any) -> Any:
    """Fill the missing keys of a table from a template, recursively.

    A ``OneOf`` is taken whole.
    """
    if isinstance(ours, StrictTable) and isinstance(theirs, StrictTable) and not isinstance(ours, OneOf):
        update = {name: getattr(theirs, name) for name in theirs.model_fields_set}
        for name in update.keys() & ours.model_fields_set:
            update[name] = completed(getattr(ours, name), update[name])
        return ours.model_copy(update=update)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return {**theirs, **ours, **{name: completed(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}}
    return ours


def parse_tables(table: Any, text: str, file: Path) -> Any:
    return validated(table, read_toml(text, file), key_lines(text), file)


def read_toml(text: str, file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"is not valid TOML: {error}", file) from None
    return content


def validated(table: Any, content: Mapping[str, Any], lines: Mapping[Location, int], file: Path) -> Any:
    unknown: list[str] | None = [] if file.name in FILES_OF_ROW else None
    try:
        table_read = TypeAdapter(table).validate_python(content, context=unknown)
        for key in dict.fromkeys(unknown or ()):
            text = f"{file}: unknown key {key!r}, perhaps of a later version of Row: it does nothing here"
            warnings.warn(UnknownKey(text), stacklevel=2)
        return table_read
    except ValidationError as error:
        location, sentence = describe(error, content)
        raise RecipeError(sentence, file, line_of(lines, location)) from None


def read_yaml(file: Path) -> tuple[Any, dict[Location, int]]:
    """The content of a YAML file and the lines of its keys; raises ``RequestError`` where YAML cannot be read."""
    try:
        import yaml
    except ImportError:
        raise RequestError("a sweep recipe is YAML; to read it: pip install 'pytest-aorta[sweeps]'") from None
    lines: dict[Location, int] = {(): 1}
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
        if node is None:
            return None, lines
        _add_lines(node, (), lines, file)
        return yaml.SafeLoader("").construct_document(node), lines
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", file) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"is not valid YAML: {what}", file, None if mark is None else mark.line + 1) from None


def _add_lines(node: Any, location: Location, lines: dict[Location, int], file: Path) -> None:
    children = node.value if node.id == "mapping" else []
    if node.id == "sequence":
        children = [(element, element) for element in node.value]
    for index, (key, value) in enumerate(children):
        below: Location = (*location, index if key is value else str(key.value))
        if below in lines:
            raise RecipeError(f"{'.'.join(map(str, below))} is there twice", file, key.start_mark.line + 1)
        lines[below] = key.start_mark.line + 1
        _add_lines(value, below, lines, file)
