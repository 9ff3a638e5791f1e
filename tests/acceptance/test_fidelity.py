"""Trials fail as often as fresh processes do; ``python -m benchmarks.fidelity`` shows it for more faults and runs."""

from __future__ import annotations

import pytest

from benchmarks.fidelity import FAULTS, Runs, differing

RUNS = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["order of a set", "a draw at import", "parity of the pid", "a handler of atexit that ends the process"]
)
def test_trials_fail_as_often_as_fresh_processes(name: str) -> None:
    runs = Runs(FAULTS[name], None)
    try:
        pairs = {form: runs.pair(form, RUNS) for form in FAULTS[name].forms}
    finally:
        runs.close()
    # At a level at which no run of the tests is wrong. A rate of 0 or 1, as of forks of one process, is seen below.
    assert not differing([pair.p for pair in pairs.values()], level=1e-4), pairs
    assert all(0 < sum(pair.ours) < RUNS for pair in pairs.values()), pairs
