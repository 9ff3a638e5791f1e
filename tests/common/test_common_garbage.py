"""The garbage collector is as it was, once it has been paused."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pytest_aorta.plugin.trial_item import collector_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Whatever a test does."""
    yield
    gc.enable()


@pytest.mark.parametrize("before", [True, False])
def test_it_is_as_it_was_afterwards(before: bool) -> None:
    if not before:
        gc.disable()
    with pytest.raises(KeyError):
        fail_while_paused()
    assert gc.isenabled() is before


def fail_while_paused() -> None:
    with collector_paused():
        assert not gc.isenabled()
        raise KeyError
