"""Objects by their names."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_target(target: str) -> Any:
    """The object that ``module:name`` names; the name may have dots."""
    module, _, qualname = target.partition(":")
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found
