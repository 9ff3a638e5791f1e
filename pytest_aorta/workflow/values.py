"""Elements of a directory's value: found by JSON pointers, and compared as Row compares them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any, Literal, TypeAlias

from jsonpointer import JsonPointer, JsonPointerException

from pytest_aorta.workflow.errors import RecipeError

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


def check_pointer(pointer: str) -> str:
    """A JSON pointer (RFC 6901), unchanged.

    Raises:
        ValueError: it is none.
    """
    try:
        JsonPointer(pointer)
    except JsonPointerException as error:
        raise ValueError(f"{pointer!r} is not a JSON pointer: {error}; valid are '' and texts such as '/a/b'") from None
    return pointer


def element(value: Json, pointer: str, directory: str) -> Json:
    """The element of a directory's value to which a JSON pointer leads.

    Raises:
        RecipeError: there is none; the message names the directory.
    """
    try:
        found: Json = JsonPointer(pointer).resolve(value)
    except JsonPointerException:
        known = f"; its keys are {', '.join(sorted(value))}" if isinstance(value, dict) and value else ""
        raise RecipeError(f"directory {directory!r} has no element {pointer!r} in its value{known}") from None
    return found


def compared(left: Json, right: Json) -> int | None:
    """-1, 0 or 1; ``None`` where two elements have no order: of different types or lengths, objects, NaN.

    Numbers, texts, booleans and nulls compare with their like, arrays of one length element by element, as in Row
    (module ``expr``).
    """
    if isinstance(left, bool) and isinstance(right, bool):
        return _sign(left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        return None  # which Python takes for numbers
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return _sign(left, right) if left == left and right == right else None
    if isinstance(left, str) and isinstance(right, str):
        return _sign(left, right)
    if left is None and right is None:
        return 0
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return next((order for order in map(compared, left, right) if order != 0), 0)
    return None


def is_met(value: Json, pointer: str, comparison: Operator, expected: Json, directory: str) -> bool:
    """Whether a directory's value meets a condition.

    Raises:
        RecipeError: the value has no such element, or one that cannot be compared with ``expected``.
    """
    found = element(value, pointer, directory)
    order = compared(found, expected)
    if order is None:
        raise RecipeError(
            f"{pointer!r} of directory {directory!r} is {found!r}, which cannot be compared with {expected!r}"
        )
    return _OPERATORS[comparison](order, 0)


def sort_keys(value: Json, pointers: Sequence[str], directory: str) -> list[Json]:
    """The elements by which a directory is sorted.

    Raises:
        RecipeError: the value lacks one.
    """
    return [element(value, pointer, directory) for pointer in pointers]


def sorted_by(keys: Mapping[str, list[Json]]) -> list[str]:
    """Directories in the order of their keys; those with equal keys stay as they are.

    Raises:
        RecipeError: two keys have no order.
    """

    def order(left: str, right: str) -> int:
        found = compared(keys[left], keys[right])
        if found is None:
            raise RecipeError(
                f"directories {left!r} and {right!r} cannot be sorted: {keys[left]!r} and {keys[right]!r} have no order"
            )
        return found

    return sorted(keys, key=cmp_to_key(order))


def _sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)
