"""Four shards that are run in four folders, merged, are what one run would have left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.stage import Stage
from support.workloads import SHAKY

pytestmark = pytest.mark.slow

MATRIX = (
    *("--aorta-workload", "shaky", "--aorta-trials", "3", "--aorta-seed", "7"),
    *("--aorta-mitigations", "none", "--aorta-mitigations", "FIXED=1"),
)


@pytest.fixture(autouse=True)
def shaky(stage: Stage) -> None:
    stage.write(work=SHAKY)
    stage.register(shaky="work:Shaky")


def identity(record: dict[str, Any]) -> list[Any]:
    """What is the same in every run of a trial."""
    keys = ("trial_id", "cell", "trial_index", "exit_status", "request_fingerprint", "config", "seeds")
    seeds = {**(record["seeds"] or {}), "hash": None}  # of a process, which other trials may share elsewhere
    return [seeds if key == "seeds" else record[key] for key in keys]


def table(stage: Stage, results: str) -> list[Any]:
    matrix = json.loads((stage.path / results / "matrix.json").read_text())
    assert matrix["complete"] is True
    return [[cell[key] for key in ("workload", "cell", "planned", "seen", "failures")] for cell in matrix["cells"]]


def test_a_matrix_of_the_command_line(stage: Stage) -> None:
    stage.run_here(*MATRIX, "--aorta-results-dir", "whole")
    for number in range(1, 5):
        stage.run_here(*MATRIX, "--aorta-shard", f"{number}/4", "--aorta-results-dir", f"shard-{number}")
    assert stage.aorta("merge", *(f"shard-{number}" for number in range(1, 5)), "merged").ret == 0
    whole, merged = stage.trials("whole"), stage.trials("merged")
    assert {path: identity(record) for path, record in merged.items()} == {
        path: identity(record) for path, record in whole.items()
    }
    assert table(stage, "merged") == table(stage, "whole")
    # Nothing is left to do, nor was lost: a run that goes on there finds all of it.
    result = stage.run_here(*MATRIX, "--aorta-results-dir", "merged", "--aorta-resume")
    result.stdout.fnmatch_lines(["6 of 6 trials had a result already (--aorta-resume)"])
