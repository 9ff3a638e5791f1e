"""Tables of a recipe: each key may be left out, and is taken from another table then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

_Table = TypeVar("_Table", bound="Table")

# Strict: otherwise, pydantic takes ``true`` for 1, and a string for the number that it spells.
WholeNumber = Annotated[int, Field(strict=True)]
PositiveWhole = Annotated[int, Field(strict=True, gt=0)]
NonNegativeWhole = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True)]
PositiveNumber = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegativeNumber = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Table(BaseModel):
    """A table of a recipe; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OneOf(Table):
    """A table of which exactly one key is set."""

    def model_post_init(self, context: object) -> None:
        """Count the keys.

        Raises:
            ValueError: not one key is set.
        """
        if len(self.model_fields_set) != 1:
            raise ValueError(f"set exactly one of {', '.join(type(self).model_fields)}")


def completed(own: _Table, template: _Table) -> _Table:
    """A table with the keys that it leaves out from a template; so are tables within it, and those by name.

    Tables of which one key excludes the others are taken whole.
    """
    update = {}
    for name in template.model_fields_set:
        theirs = getattr(template, name)
        update[name] = _completed_value(getattr(own, name), theirs) if name in own.model_fields_set else theirs
    return own.model_copy(update=update)


def _completed_value(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, Table) and isinstance(theirs, Table) and not isinstance(ours, OneOf):
        return completed(ours, theirs)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        both = {name: _completed_value(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}
        return {**theirs, **ours, **both}
    return ours
