"""``--aorta-stop=decided``: the remaining trials of a decided cell are skipped, wherever trials run."""

from __future__ import annotations

import re

import numpy  # noqa: F401  (a stage takes back what was imported on it, and numpy cannot be imported twice)
import pytest
import scipy.special  # noqa: F401  (as numpy)
from support.stage import Stage, counts

#: Fails without the variable of the mitigation ``fixed``; ``FAILS_AT`` are indices that fail with it as well.
WORKLOAD = """
import os

class Flaky:
    def __init__(self, config): pass
    def setup(self): pass
    def run(self):
        index = os.environ["AORTA_TRIAL_INDEX"]
        return {"passed": "FIXED" in os.environ and index not in os.environ.get("FAILS_AT", "").split()}

class Missing(Flaky):
    def setup(self):
        if "FIXED" in os.environ:
            raise RuntimeError("no such device")
"""

CELLS = (
    *("--aorta-workload", "flaky", "--aorta-registry-file", "registry.json"),
    *("--aorta-mitigations", "none", "--aorta-mitigations", "fixed"),
)

UNTIL_DECIDED = (*CELLS, "--aorta-stop=decided", "--aorta-trials", "200")


@pytest.fixture
def flaky(stage: Stage) -> Stage:
    stage.write(flaky=WORKLOAD)
    stage.register(flaky="flaky:Flaky", missing="flaky:Missing")
    stage.write_registry(mitigations={"fixed": {"FIXED": "1"}, "late": {"FIXED": "1", "FAILS_AT": "0 1"}})
    return stage


def per_cell(stage: Stage) -> dict[str, int]:
    """How many trial files each cell has."""
    found: dict[str, int] = {}
    for path in stage.files():
        cell = path.split("/")[1]
        found[cell] = found.get(cell, 0) + 1
    return found


def test_trials_of_decided_cells_are_skipped_with_the_reason(flaky: Stage) -> None:
    done = flaky.run_here(*UNTIL_DECIDED, "-rs")
    assert per_cell(flaky) == {"local-none": 4, "local-fixed": 4}
    assert counts(done) == {"failed": 4, "passed": 4, "skipped": 392}
    text = done.stdout.str()
    assert "1 of 1 cell decided, 392 trials saved (--aorta-stop=decided)" in text
    assert "SKIPPED [196] aorta::flaky[local-none]: decided: every cell that is compared with it" in text
    assert "SKIPPED [196] aorta::flaky[local-fixed]: decided: fixes (0 of 4 against 4 of 4)" in text


@pytest.mark.slow
@pytest.mark.parametrize("side_by_side", [("--aorta-slots", "2"), ("-n", "2")], ids=["slots", "xdist"])
def test_side_by_side_little_more_is_run(flaky: Stage, side_by_side: tuple[str, ...]) -> None:
    done = flaky.run(*UNTIL_DECIDED, *side_by_side)
    found = per_cell(flaky)
    assert all(4 <= number < 30 for number in found.values())
    assert sum(counts(done).values()) == 400
    saved = re.search(r"1 of 1 cell decided, (\d+) trials saved", done.stdout.str())
    assert saved is not None
    assert int(saved[1]) == 400 - sum(found.values())
