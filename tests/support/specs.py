"""A trial to ask for, and options of pytest, for tests that start none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_aorta.registry import Environment, WorkloadEntry
from pytest_aorta.settings import SETTINGS
from pytest_aorta.trials.spec import TrialSpec

SPEC = TrialSpec(
    workload=WorkloadEntry("w", "module:Class", "test"),
    environment=Environment("local", source_package="test"),
    mitigations=("none",),
    overlay={},
    environment_index=0,
    mitigation_index=0,
    trial_index=0,
)


def typed(**given: Any) -> pytest.Config:
    """As much of a configuration as is looked at, with these on the command line."""
    options = SimpleNamespace(**{each.ini: given.get(each.ini) for each in SETTINGS})
    here = SimpleNamespace(dir=Path("/"))
    fields: dict[str, Any] = {"option": options, "getini": lambda name: None, "inipath": None}
    return cast(pytest.Config, SimpleNamespace(**fields, invocation_params=here))
