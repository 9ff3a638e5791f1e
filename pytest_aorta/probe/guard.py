"""Probes that may fail, one by one, without taking the others or the trial with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

Facts = dict[str, Any]

_LONGEST_MESSAGE = 300


def printable(text: str) -> str:
    r"""``text`` as an exact ``str`` that encodes as UTF-8: the byte 0xff, a lone surrogate here, becomes ``\udcff``."""
    text = str(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def words(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def plain(value: object) -> Any:
    """``value`` rebuilt from dict, list, str, int, float, bool and None; NaN and infinities become their names."""
    if value is None or isinstance(value, bool):
        return value
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


def describe(probe: str, error: BaseException) -> str:
    """``probe: ExceptionType: message`` on one line, at most about 300 characters."""
    try:
        message = printable(" ".join(str(error).split()))
    except Exception:
        message = "(no message)"  # an exception whose __str__ raises is still an exception with a type
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 3] + "..."
    return f"{probe}: {type(error).__name__}: {message}"


class Guard:
    """Runs probes and keeps why some of them failed."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def fact(self, name: str, probe: Callable[[], T], default: T) -> T:
        """What ``probe()`` returns; ``default``, and a reason, when it raises an ``Exception``."""
        try:
            return probe()
        except Exception as error:
            self.failed(name, error)
            return default

    def failed(self, name: str, error: Exception) -> None:
        """Remember that the probe ``name`` failed with ``error``."""
        self.reasons.append(describe(name, error))

    def facts(self, section: str, probes: Mapping[str, Callable[[], object]]) -> Facts:
        """One plain value per name; ``None``, and a reason under ``section.name``, for those whose probe raised."""
        found: Facts = {}
        for name, probe in probes.items():
            try:
                found[name] = plain(probe())
            except Exception as error:
                self.failed(f"{section}.{name}", error)
                found[name] = None
        return found
