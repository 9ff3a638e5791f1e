"""Conditions on trials as they are typed: ``/config/lr<0.1``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

from pytest_aorta.settings import RequestError
from pytest_aorta.workflow.errors import RecipeError
from pytest_aorta.workflow.values import Json, Operator, check_pointer, is_met

#: What is valid.
_EXPECTED = (
    "POINTER OPERATOR VALUE, such as /config/lr<0.1 or /environment==local, with one of "
    f"{', '.join(get_args(Operator))}"
)

_TEXT = re.compile(r"\s*(?P<pointer>/[^<>=!]*?)\s*(?P<operator><=|>=|==|<|>)(?!=)\s*(?P<value>\S.*?)\s*", re.DOTALL)

_Unit = TypeVar("_Unit")


@dataclass(frozen=True)
class TypedCondition:
    """One of them.

    Attributes:
        text: as it was typed.
        pointer, operator, value: what it says, as a condition of a recipe.
    """

    text: str
    pointer: str
    operator: Operator
    value: Json

    def is_met(self, value: Json) -> bool:
        """Whether a value meets it.

        Raises:
            RecipeError: the value has no such element, or one that cannot be compared.
        """
        return is_met(value, self.pointer, self.operator, self.value, "")


def parse_condition(text: str) -> TypedCondition:
    """A condition; its value is JSON, or else a text.

    Raises:
        ValueError: with what would be valid.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(_EXPECTED)
    try:
        pointer = check_pointer(found["pointer"])
    except ValueError as error:
        raise ValueError(f"{_EXPECTED} ({error})") from None
    try:
        value = json.loads(found["value"])
    except (ValueError, RecursionError):
        value = found["value"]
    return TypedCondition(text, pointer, cast(Operator, found["operator"]), value)


def selected(
    units: Iterable[_Unit], value_of: Callable[[_Unit], Json], conditions: Sequence[TypedCondition], source: str
) -> list[_Unit]:
    """The units that meet all conditions; one without the element that a condition is about does not meet it.

    Args:
        units: to choose from.
        value_of: of a unit; ``None`` for one that has no value, which is not selected.
        conditions: of which all have to be met.
        source: what the conditions were given with, for messages.

    Raises:
        RequestError: no unit has such an element, or none that can be compared: with the elements that there are.
    """
    known = [(unit, value) for unit in units if (value := value_of(unit)) is not None]
    for condition in conditions:
        met, problem, is_known = [], None, False
        for unit, value in known:
            try:
                if condition.is_met(value):
                    met.append((unit, value))
                is_known = True
            except RecipeError as error:
                problem = problem or error
        if known and not is_known and problem is not None:
            raise RequestError(f"{source} {condition.text!r}: {_why(condition, [value for _, value in known])}")
        known = met
    return [unit for unit, _ in known]


def _why(condition: TypedCondition, values: Sequence[Json]) -> str:
    there = pointers(values)
    if condition.pointer in there:
        found = json.dumps(there[condition.pointer])
        return f"{condition.pointer} is {found} there, which cannot be compared with {json.dumps(condition.value)}"
    return f"no trial or directory has {condition.pointer}; there are {', '.join(there) or 'no elements'}"


def pointers(values: Iterable[Json]) -> dict[str, Any]:
    """All pointers that lead to an element of any of these values, with the first such element."""
    found: dict[str, Any] = {}
    for value in values:
        _add_pointers(value, "", found)
    return found


def _add_pointers(value: Json, pointer: str, found: dict[str, Any]) -> None:
    if pointer:
        found.setdefault(pointer, value)
    if isinstance(value, Mapping):
        for key, element in value.items():
            _add_pointers(element, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", found)
