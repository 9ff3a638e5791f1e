"""Anything a workload returns, as plain data; and plain data as strict JSON."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import os
from collections.abc import Mapping, Sequence, Set
from typing import Any

#: Longest text kept of a value that is neither a number nor a text nor a container of those.
_REPR_LIMIT = 1000

#: Largest array or tensor that is kept element by element.
_ARRAY_LIMIT = 4096

#: Deepest nesting that is kept; pydantic stops at 255, and readers in other languages earlier.
_DEPTH_LIMIT = 64

#: Longest integer in bits: what a float can hold; Python refuses decimal ones of some thousand digits altogether.
_INT_BITS = 1023

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(value: object, notes: list[str] | None = None, where: str = "") -> Any:
    """Reduce a value to ``None``, ``bool``, ``int``, ``float``, ``str``, ``list`` and ``dict`` with ``str`` keys.

    NumPy and torch scalars become numbers, small arrays lists. What has no such form becomes its ``repr``, and a line
    that names the place is added to ``notes``. Lets only ``KeyboardInterrupt`` of the value's methods through.
    """
    return _plain(value, [] if notes is None else notes, where, ())


def _plain(value: Any, notes: list[str], where: str, inside: tuple[int, ...]) -> Any:
    """``inside``: identities of the containers around the value."""
    kind = type(value)
    # Not "in (bool, float, str)", which would ask a metaclass whether it is equal.
    if value is None or kind is float or kind is str or kind is bool:
        return value
    if kind is int and value.bit_length() <= _INT_BITS:
        return value
    if id(value) in inside or len(inside) > _DEPTH_LIMIT:
        notes.append(f"{where or 'value'}: nested too deeply or contains itself; kept as text")
        return _text(value)
    try:
        return _reduce(value, notes, where, (*inside, id(value)))
    except KeyboardInterrupt:  # the user's, not the value's
        raise
    except BaseException as error:
        notes.append(f"{where or 'value'}: {_type_name(error)} while reading it; kept as text")
    return _text(value)


def _reduce(value: Any, notes: list[str], where: str, inside: tuple[int, ...]) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, notes, where, inside)
    # The methods of the bases, because those of a subclass may return anything.
    if isinstance(value, int):
        number = int.__int__(value)
        if number.bit_length() > _INT_BITS:
            notes.append(f"{where or 'value'}: an integer of {number.bit_length()} bits; kept as text")
            return hex(number)[:_REPR_LIMIT]
        return bool(number) if isinstance(value, bool) else number
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes.decode(value, errors="backslashreplace")
    if isinstance(value, os.PathLike):
        return str.__str__(os.fsdecode(os.fspath(value)))
    if isinstance(value, datetime.datetime | datetime.date):
        return str.__str__(value.isoformat())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _mapping(value, notes, where, inside)
    if isinstance(value, Set):
        value = sorted(value, key=repr)
    if isinstance(value, Sequence):
        return [_plain(element, notes, f"{where}[{index}]", inside) for index, element in enumerate(value)]
    if callable(getattr(value, "model_dump", None)):
        return _plain(value.model_dump(), notes, where, inside)
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        # numpy and torch alike; detached and on the host first, where the value has such a method.
        if callable(getattr(value, "detach", None)):
            value = value.detach().cpu()
        size = math.prod(value.shape)
        if size > _ARRAY_LIMIT:
            shape = tuple(value.shape)
            notes.append(f"{where or 'value'}: {size} elements; kept as text")
            return f"<{_type_name(value)} of shape {shape}, {value.dtype}>"
        listed = value.tolist()
        # numpy.longdouble has no Python counterpart, and returns itself
        return float(listed) if type(listed) is type(value) else _plain(listed, notes, where, inside)
    notes.append(f"{where or 'value'}: {_type_name(value)} has no JSON form; kept as text")
    return _text(value)


def _mapping(value: Mapping[Any, Any], notes: list[str], where: str, inside: tuple[int, ...]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, element in value.items():
        name = str(_plain(key, notes, where, inside))
        name = name.encode(errors="backslashreplace").decode()  # pydantic cannot write a key with lone surrogates
        while name in plain:  # 1 and "1" are different keys in Python, and one in JSON
            notes.append(f"{where or 'value'}: two keys read {name!r}; the second got an underscore")
            name += "_"
        plain[name] = _plain(element, notes, f"{where}.{name}" if where else name, inside)
    return plain


def _text(value: object) -> str:
    try:
        text = str.__str__(repr(value))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"<{_type_name(value)}, whose repr raised {_type_name(error)}>"
    return text[:_REPR_LIMIT]


def _type_name(value: object) -> str:
    # Not by getattr, which asks the metaclass.
    name: str = type.__dict__["__qualname__"].__get__(type(value))
    return name


def encode_non_finite(value: Any) -> Any:
    """Replace NaN and infinities by the strings ``NaN``, ``Infinity``, ``-Infinity``, for strict JSON.

    A text that already reads so gets a backslash in front, which ``decode_non_finite`` takes away again.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return "\\" + value if value.lstrip("\\") in _NON_FINITE else value
    if isinstance(value, list):
        return [encode_non_finite(element) for element in value]
    if isinstance(value, dict):
        return {key: encode_non_finite(element) for key, element in value.items()}
    return value


def decode_non_finite(value: Any) -> Any:
    """The inverse of ``encode_non_finite``."""
    if isinstance(value, str):
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        return value[1:] if value.startswith("\\") and value.lstrip("\\") in _NON_FINITE else value
    if isinstance(value, list):
        return [decode_non_finite(element) for element in value]
    if isinstance(value, dict):
        return {key: decode_non_finite(element) for key, element in value.items()}
    return value


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN tokens. What digests are taken of."""
    return json.dumps(encode_non_finite(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
