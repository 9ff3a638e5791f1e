"""Keywords of the fixtures that start trials."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from pytest_aorta.settings import RequestError


def check_keywords(fixture: str, call: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse the keywords that a fixture does not have, and name those of ``call``, which has.

    Raises:
        RequestError: there are some.
    """
    __tracebackhide__ = True
    names = ", ".join(repr(name) for name in unknown)
    if names:
        parameters = inspect.signature(call).parameters.values()
        known = ", ".join(each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY)
        raise RequestError(f"{fixture} has no keyword {names}; it takes {known}")
