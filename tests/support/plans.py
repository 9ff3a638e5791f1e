"""Trials of plans that were never made from a selection, and options of pytest, for tests that start none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from pytest_aorta.registry import Environment, Mitigation, WorkloadEntry
from pytest_aorta.settings import SETTINGS
from pytest_aorta.trials.spec import TrialSpec


def environment(name: str = "here", **variables: str) -> Environment:
    return Environment(name, env=variables, source_package="test")


def mitigation(name: str, **variables: str) -> Mitigation:
    return Mitigation(name, variables, "test")


def entry(name: str = "w") -> WorkloadEntry:
    return WorkloadEntry(name, f"module:{name.title()}", "test")


def cell_of(
    workload: str = "w",
    environment_name: str = "local",
    mitigations: tuple[str, ...] = ("none",),
    *,
    trials: int = 1,
    indices: tuple[int, int] = (0, 0),
    **fields: Any,
) -> list[TrialSpec]:
    return [
        TrialSpec(
            workload=entry(workload),
            environment=environment(environment_name),
            mitigations=mitigations,
            overlay={},
            environment_index=indices[0],
            mitigation_index=indices[1],
            trial_index=index,
            **fields,
        )
        for index in range(trials)
    ]


SPEC = cell_of()[0]


def grid(workloads: int, environments: int, sets: int, trials: int) -> list[list[TrialSpec]]:
    return [
        cell_of(f"w{w}", f"e{e}", (f"m{m}",), trials=trials, indices=(e, m))
        for w in range(workloads)
        for e in range(environments)
        for m in range(sets)
    ]


grids = st.builds(grid, st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4))


def typed(**given: Any) -> pytest.Config:
    """As much of a configuration as is looked at, with these on the command line."""
    options = SimpleNamespace(**{each.ini: given.get(each.ini) for each in SETTINGS})
    here = SimpleNamespace(dir=Path("/"))
    fields: dict[str, Any] = {"option": options, "getini": lambda name: None, "inipath": None}
    return cast(pytest.Config, SimpleNamespace(**fields, invocation_params=here))
