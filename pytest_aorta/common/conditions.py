"""JSON pointers into values of directories and trials, and conditions on their elements: ``/config/lr<0.1``."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, lru_cache
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from jsonpointer import JsonPointer, JsonPointerException

from pytest_aorta.common import RequestError

#: What ``json.loads`` returns.
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

Operator = Literal["<", "<=", "==", ">=", ">"]

_OPERATORS: Mapping[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}

_EXPECTED = (
    "POINTER OPERATOR VALUE, such as /config/lr<0.1 or /environment==local, with one of "
    f"{', '.join(get_args(Operator))}"
)

_TEXT = re.compile(r"\s*(?P<pointer>/[^<>=!]*?)\s*(?P<operator><=|>=|==|<|>)(?!=)\s*(?P<value>\S.*?)\s*", re.DOTALL)

_Unit = TypeVar("_Unit")


def check_pointer(pointer: str) -> str:
    """Check a JSON pointer (RFC 6901) and return it; raises ``ValueError`` if it is none."""
    try:
        JsonPointer(pointer)
    except JsonPointerException as error:
        raise ValueError(f"{pointer!r} is not a JSON pointer: {error}; valid are '' and texts such as '/a/b'") from None
    return pointer


#: The same few pointers are looked up in each directory.
_pointer = lru_cache(JsonPointer)


def element(value: Json, pointer: str, directory: str) -> Json:
    """The element at a pointer; raises ``RequestError`` with the directory's name if there is none."""
    parsed = _pointer(pointer)
    if len(parsed.parts) == 1 and type(value) is dict and parsed.parts[0] in value:  # of most, at a tenth of the time
        return value[parsed.parts[0]]
    try:
        element: Json = parsed.resolve(value)
    except JsonPointerException:
        known = f"; its keys are {', '.join(sorted(value))}" if isinstance(value, dict) and value else ""
        raise RequestError(f"directory {directory!r} has no element {pointer!r} in its value{known}") from None
    return element


def compared(left: Json, right: Json) -> int | None:
    """-1, 0 or 1; ``None`` if two elements have no order: different types or lengths, objects, NaN.

    As in Row: numbers, texts, booleans and nulls compare with their like, arrays of one length element by element.
    """
    if type(left) is float and type(right) is float:  # most are: a third of the time
        return _sign(left, right) if left == left and right == right else None
    if isinstance(left, bool) or isinstance(right, bool):  # which Python takes for numbers
        return _sign(left, right) if isinstance(left, bool) and isinstance(right, bool) else None
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return _sign(left, right) if left == left and right == right else None
    if isinstance(left, str) and isinstance(right, str):
        return _sign(left, right)
    if left is None and right is None:
        return 0
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return next((order for order in map(compared, left, right) if order != 0), 0)
    return None


def _sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def is_met(value: Json, pointer: str, comparison: Operator, expected: Json, directory: str) -> bool:
    """Whether a directory's value meets a condition; raises ``RequestError`` if it has no comparable element."""
    present = element(value, pointer, directory)
    order = compared(present, expected)
    if order is None:
        raise RequestError(
            f"{pointer!r} of directory {directory!r} is {present!r}, which cannot be compared with {expected!r}"
        )
    return _OPERATORS[comparison](order, 0)


def sorted_by(keys: Mapping[str, list[Json]]) -> list[str]:
    """Directories sorted by their keys, or unsorted without keys; raises ``RequestError`` if two keys have no order."""

    def order(left: str, right: str) -> int:
        relation = compared(keys[left], keys[right])
        if relation is None:
            raise RequestError(
                f"directories {left!r} and {right!r} cannot be sorted: {keys[left]!r} and {keys[right]!r} have no order"
            )
        return relation

    return sorted(keys, key=cmp_to_key(order))


@dataclass(frozen=True)
class TypedCondition:
    """A condition of the command line, with the ``text`` that was typed."""

    text: str
    pointer: str
    operator: Operator
    value: Json


def parse_condition(text: str) -> TypedCondition:
    """A condition; its value is JSON, or else a text. Raises ``ValueError`` with what would be valid."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(_EXPECTED)
    try:
        pointer = check_pointer(match["pointer"])
    except ValueError as error:
        raise ValueError(f"{_EXPECTED} ({error})") from None
    try:
        value = json.loads(match["value"])
    except (ValueError, RecursionError):
        value = match["value"]
    return TypedCondition(text, pointer, cast(Operator, match["operator"]), value)


def selected(
    units: Iterable[_Unit], value_of: Callable[[_Unit], Json], conditions: Sequence[TypedCondition], source: str
) -> list[_Unit]:
    """The units that meet all conditions. A unit without a value, or without the element, does not meet them.

    Raises:
        RequestError: no unit has such an element, or none that can be compared; ``source`` names the option.
    """
    known = [(unit, value) for unit in units if (value := value_of(unit)) is not None]
    for condition in conditions:
        met, is_known = [], False
        for unit, value in known:
            try:
                if is_met(value, condition.pointer, condition.operator, condition.value, ""):
                    met.append((unit, value))
                is_known = True
            except RequestError:
                pass
        if known and not is_known:
            raise RequestError(f"{source} {condition.text!r}: {_why(condition, [value for _, value in known])}")
        known = met
    return [unit for unit, _ in known]


def _why(condition: TypedCondition, values: Sequence[Json]) -> str:
    there = pointers(values)
    if condition.pointer in there:
        present = json.dumps(there[condition.pointer])
        return f"{condition.pointer} is {present} there, which cannot be compared with {json.dumps(condition.value)}"
    return f"no trial or directory has {condition.pointer}; there are {', '.join(there) or 'no elements'}"


def pointers(values: Iterable[Json]) -> dict[str, Any]:
    """All pointers that lead to an element of any of these values, with the first such element."""
    by_pointer: dict[str, Any] = {}

    def add(value: Json, pointer: str) -> None:
        if pointer:
            by_pointer.setdefault(pointer, value)
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(inner, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")

    for value in values:
        add(value, "")
    return by_pointer
