"""pytest plugin: tells all traced processes when pytest runs its items."""

from collections.abc import Generator
from typing import Any

import pytest
import sitecustomize  # type: ignore[import-not-found,unused-ignore]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop() -> Generator[None, Any, Any]:
    sitecustomize.part[0] = 1
    try:
        return (yield)
    finally:
        sitecustomize.part[0] = 0
