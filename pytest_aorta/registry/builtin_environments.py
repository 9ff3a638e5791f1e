"""The environments that come with the package: both are the host and the interpreter that pytest runs in."""

from __future__ import annotations

from typing import Final

from pytest_aorta.registry.types import BUILTIN_SOURCE, Environment

BUILTIN_ENVIRONMENTS: Final = (
    Environment("local", source_package=BUILTIN_SOURCE),
    # Recipes of other tools call the same thing so.
    Environment("default", source_package=BUILTIN_SOURCE),
)
