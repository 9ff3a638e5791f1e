"""Values that break what is done with them: their methods raise, end the process, or never end."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from pydantic import BaseModel


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: float
    inner: Any = None


class Model(BaseModel):
    steps: int
    lr: float


class ReprRaises:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class ReprExits:
    def __repr__(self) -> str:
        raise SystemExit(3)


class EverythingRaises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise ValueError


class EqualityRaises(type):
    """A metaclass; numeric ones that compare element by element exist."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = type.__hash__


class NamelessType(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class OfAnUncomparableType(metaclass=EqualityRaises):
    def __repr__(self) -> str:
        return "<uncomparable>"


class OfANamelessType(metaclass=NamelessType):
    def __repr__(self) -> str:
        raise ValueError


class NameOfAnError(Exception, metaclass=NamelessType):
    pass


class RaisesAnErrorWithoutAName:
    def __repr__(self) -> str:
        raise NameOfAnError


class HashRaises:
    def __hash__(self) -> int:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "<unhashable>"


class ClassRaises:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit(3)

    def __repr__(self) -> str:
        return "<classless>"


def pretends_to_be(kind: type) -> object:
    """What ``isinstance`` takes for something that it is not."""

    class Pretender:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            return kind

        def __repr__(self) -> str:
            return f"<no {kind.__name__}>"

    return Pretender()


class OwnText(str):
    """Its ``str()`` is of its own type again, and so are all its parts."""

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("no")

    def encode(self, *arguments: Any, **options: Any) -> bytes:
        raise RuntimeError("no")


class GrowingInt(int):
    def __int__(self) -> int:
        return 10**5000

    __index__ = __int__

    def bit_length(self) -> int:
        return 1


class OwnFloat(float):
    def __float__(self) -> float:
        raise RuntimeError("no")


class OwnBytes(bytes):
    def decode(self, *arguments: Any, **options: Any) -> Any:
        return object()


class OwnDate(datetime.date):
    def isoformat(self) -> Any:
        return object()

    def __repr__(self) -> str:
        return OwnText("<some day>")


class ItsOwnElement:
    """An array with a single element, which is the array."""

    dtype = "self"
    shape = ()

    def tolist(self) -> Any:
        return self

    def __repr__(self) -> str:
        return "<itself>"


class IterationRaises(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise OSError("disk on fire")

    def __repr__(self) -> str:
        return "<a bad list>"


def array_of_objects(values: list[object]) -> object:
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def with_itself(values: list[object]) -> list[object]:
    """A list that ends with itself, and with a mapping that holds it."""
    values += [values, {"again": values}]
    return values


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(alphabet=st.characters(codec=None, categories=["Cs", "Lu"]))
    | st.binary()
    | st.complex_numbers()
    | st.dates()
    | st.decimals()
    | st.uuids()
    | st.sampled_from(
        # Not those that hypothesis itself cannot look at.
        [ReprRaises, EverythingRaises, HashRaises, ItsOwnElement]
    ).map(lambda cls: cls())
    | st.sampled_from([int, float, str, bytes, dict, list, set, enum.Enum, Path, BaseModel]).map(pretends_to_be)
    | st.text().map(OwnText)
    | st.integers().map(GrowingInt)
    | st.binary().map(OwnBytes)
    | st.just(Color.RED)
    | st.floats(width=32).map(np.float32)
    | st.integers(0, 255).map(np.uint8)
    | st.integers(min_value=2**900, max_value=2**3000)
)


_hashable = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()

anything = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(_hashable, inner)
        | st.sets(_hashable)
        | st.builds(Point, st.floats(), inner)
        | st.lists(inner).map(array_of_objects)
        | st.lists(inner).map(with_itself)
    ),
    max_leaves=12,
)
