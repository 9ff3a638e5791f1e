"""Which directories an action is for: conditions on elements of their values."""

from __future__ import annotations

import builtins
from typing import Annotated, Any

from pydantic import AfterValidator

from pytest_aorta.workflow.tables import OneOf
from pytest_aorta.workflow.values import Json, Operator, check_pointer, is_met

Pointer = Annotated[str, AfterValidator(check_pointer)]

#: A JSON pointer, an operator, and what the element is compared with.
Condition = tuple[Pointer, Operator, Any]


class Selector(OneOf):
    """One condition, or several of which all, or any, have to be met."""

    condition: Condition | None = None
    all: tuple[Condition, ...] | None = None
    any: tuple[Condition, ...] | None = None

    def selects(self, value: Json, directory: str) -> bool:
        """Whether a directory with this value is selected; later conditions are not looked at when one has decided.

        Raises:
            RecipeError: an element is missing, or cannot be compared.
        """
        if self.any is not None:
            return builtins.any(is_met(value, *condition, directory) for condition in self.any)
        conditions = self.all if self.condition is None else (self.condition,)
        return builtins.all(is_met(value, *condition, directory) for condition in conditions or ())
