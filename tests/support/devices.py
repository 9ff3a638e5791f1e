"""Tests that take ids of devices for names, as they are on a host without GPUs."""

from __future__ import annotations

import pytest

from pytest_aorta.runtime.resources.devices import are_named_only, find_devices

names_devices = pytest.mark.skipif(
    not are_named_only(find_devices()), reason="the ids that are used here would be real"
)
