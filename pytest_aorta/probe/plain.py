"""Whatever a probe found, as something that strict JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def printable(text: str) -> str:
    r"""``text`` as an exact ``str`` that encodes as UTF-8.

    Paths and variables that are not valid UTF-8 reach Python with lone surrogates, which neither pydantic nor a UTF-8
    file accepts: the byte 0xff comes out as the six characters ``\udcff``.
    """
    text = str(text)
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def words(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def plain(value: object) -> Any:
    """``value`` rebuilt from dict, list, str, int, float, bool and None; NaN and infinities become their names."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    return printable(str(value))
