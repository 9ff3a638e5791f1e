"""A trial whose cell was never prepared: its record says what was asked for, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.specs import SPEC

from pytest_aorta.launch.record import lost_record
from pytest_aorta.trials.records import Failure
from pytest_aorta.trials.result import TrialResult
from pytest_aorta.workflow.requests import request_digest, trial_completion

LOST: Failure = Failure(phase="launch", kind="signal", message="its xdist worker was killed")

SPECS = {
    "plain": SPEC,
    "variables": replace(SPEC, overlay={"OMP_NUM_THREADS": "1", "API_TOKEN": "hunter2"}),
    "options": replace(SPEC, overrides={"lr": float("nan"), "sizes": (1, 2)}, steps=7),
    "ranks": replace(SPEC, execution=replace(SPEC.execution, nproc=2, seed=3, launcher="torchrun")),
}


def written(record: TrialResult) -> dict[str, Any]:
    """A record as it is read from its file."""
    read: dict[str, Any] = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    return read


@pytest.mark.parametrize("name", SPECS)
def test_it_counts_for_the_cell_as_it_is_planned(name: str) -> None:
    completion = trial_completion(written(lost_record(SPECS[name], LOST)))

    assert completion is not None
    assert (completion[1], completion[2].digest) == ("infrastructure_failed", request_digest(SPECS[name]))


def test_it_does_not_count_once_something_else_is_asked_for() -> None:
    completions = [trial_completion(written(lost_record(spec, LOST))) for spec in SPECS.values()]

    assert len({completion[2].digest for completion in completions if completion is not None}) == len(SPECS)
