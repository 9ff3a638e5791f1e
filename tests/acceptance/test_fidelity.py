"""Trials fail as often as fresh processes do; ``python -m benchmarks.fidelity`` shows it for more faults and runs."""

from __future__ import annotations

import pytest

from benchmarks.fidelity import FAULTS, Runs
from pytest_aorta.launch.host.starts import fisher

RUNS = 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["order of a set", "a draw at import", "a handler of atexit that ends the process"])
def test_trials_fail_as_often_as_fresh_processes(name: str) -> None:
    runs = Runs(FAULTS[name], None)
    try:
        for form, (fresh, ours) in runs.pairs(RUNS).items():
            counts = [(sum(each), len(each) - sum(each)) for each in (fresh, ours)]
            assert fisher(*counts) > 0.001, (form, counts)
            assert 0 < sum(ours) < RUNS, form
    finally:
        runs.close()
