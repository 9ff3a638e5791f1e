"""Where in a TOML text a key is set: tomllib parses, but keeps no positions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

#: Names and indexes from the root, as pydantic has them: ``("action", 0, "group", "maximum_size")``.
Location = tuple[str | int, ...]

_NAME = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER = re.compile(rf"^\s*(?P<open>\[\[?)\s*(?P<names>{_DOTTED})\s*\]")
_KEY = re.compile(rf"^\s*(?P<names>{_DOTTED})\s*=")
_LONG_STRING = re.compile(r'"""|' + r"'''")


def key_lines(text: str) -> Mapping[Location, int]:
    """Where each key and each table of a valid TOML text stands: its location, and the line, counted from 1.

    Keys within inline tables and arrays are not listed; they stand where the key stands to which these belong.
    """
    found: dict[Location, int] = {(): 1}
    counts: dict[Location, int] = {}
    table: Location = ()
    quote: str | None = None  # of the long string that this line is in
    for number, line in enumerate(text.splitlines(), 1):
        if quote is None:
            if header := _HEADER.match(line):
                table = _table(_names(header["names"]), header["open"] == "[[", counts)
                found.setdefault(table, number)
            elif key := _KEY.match(line):
                _add(found, table, _names(key["names"]), number)
        quote = _open_quote(line, quote)
    return found


def line_of(lines: Mapping[Location, int], location: Sequence[str | int]) -> int:
    """The line of a location, or of the nearest one around it that stands in the text."""
    return next(lines[tuple(location[:end])] for end in range(len(location), -1, -1) if tuple(location[:end]) in lines)


def _table(names: Sequence[str], is_array: bool, counts: dict[Location, int]) -> Location:
    """The location of a header; names of arrays stand for their last element."""
    place: Location = ()
    for position, name in enumerate(names):
        place = (*place, name)
        if is_array and position == len(names) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place


def _add(found: dict[Location, int], table: Location, names: Sequence[str], number: int) -> None:
    for end in range(1, len(names) + 1):
        found.setdefault((*table, *names[:end]), number)


def _names(dotted: str) -> list[str]:
    return [_unquoted(name) for name in re.findall(_NAME, dotted)]


def _unquoted(name: str) -> str:
    if name.startswith('"'):
        return str(json.loads(name))
    return name[1:-1] if name.startswith("'") else name


def _open_quote(line: str, quote: str | None) -> str | None:
    """The delimiter of the long string that is open at the end of a line."""
    for delimiter in _LONG_STRING.findall(line):
        if quote is None:
            quote = delimiter
        elif quote == delimiter:
            quote = None
    return quote
