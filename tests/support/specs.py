"""A trial to ask for, for tests that start none."""

from __future__ import annotations

from pytest_aorta.registry import Environment, WorkloadEntry
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
